"""The library ray: that it is there, and that errors of its tasks come out as shoal's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from shoal.errors import ShoalError, UsageError, WorkerError
from shoal.hints import pip_install


def ray_library() -> Any:
    """Import and return the module ``ray``; `UsageError` with the command that installs it, if it is missing."""
    try:
        import ray  # noqa: PLC0415  # optional
    except ImportError as error:
        msg = "packing with Ray needs the library ray, which is not installed"
        raise UsageError(msg, hint=pip_install("ray")) from error
    return ray


def ray_data() -> Any:
    """Import and return the module ``ray.data``; `UsageError` if it or what it needs is missing."""
    ray_library()
    if lacking := [name for name in ("pandas", "pyarrow") if find_spec(name) is None]:
        msg = f"Ray Data needs {' and '.join(lacking)}, not installed here"
        raise UsageError(msg, hint=f"pip install {' '.join(lacking)}, or all that it needs: pip install 'ray[data]'")
    import ray.data  # noqa: PLC0415  # optional

    return ray.data


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise the errors of tasks as they were in the task.

    Raises
    ------
    WorkerError
        Ray gave up: worker processes or machines died again and again, or memory did not suffice.
    """
    ray = ray_library()
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ShoalError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        msg = f"Ray gave up: {str(error).strip().splitlines()[0]:.300}"
        raise WorkerError(msg, hint="run again to go on: what is finished is kept") from error

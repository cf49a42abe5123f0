"""The library ray: its import, and conversion of its errors to errors of shoal."""

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
    """Import and return the module ``ray.data``; `UsageError` if it or its requirements are missing."""
    ray_library()
    if lacking := [name for name in ("pandas", "pyarrow") if find_spec(name) is None]:
        msg = f"Ray Data needs {' and '.join(lacking)}, not installed here"
        raise UsageError(msg, hint=f"pip install {' '.join(lacking)}, or all requirements: pip install 'ray[data]'")
    import ray.data  # noqa: PLC0415  # optional

    return ray.data


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise errors of tasks as in the task, and `WorkerError` if Ray gave up: processes or machines died repeatedly."""
    ray = ray_library()
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ShoalError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        msg = f"Ray gave up: {str(error).strip().splitlines()[0]:.300}"
        raise WorkerError(msg, hint="run again to continue: finished units are kept") from error

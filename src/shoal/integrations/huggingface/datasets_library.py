"""Hugging Face ``datasets``, imported when it is first needed."""

from __future__ import annotations

from typing import Any

from shoal.errors import UsageError

_OLDEST = (4, 8)


def datasets_library() -> Any:
    """Import and return the module ``datasets``.

    Raises
    ------
    UsageError
        It is not installed, or older than 4.8: such a version does not pass the epoch to its sources.
    """
    try:
        import datasets  # noqa: PLC0415  # optional, and slow to import
    except ImportError as error:
        msg = "Hugging Face datasets are asked for, and the library is not installed"
        raise UsageError(msg, hint="pip install datasets") from error
    version = tuple(int(word) for word in datasets.__version__.split(".")[:2])
    if version < _OLDEST:
        msg = f"datasets {datasets.__version__} is installed; it takes {'.'.join(map(str, _OLDEST))} or newer"
        raise UsageError(msg, hint="pip install --upgrade datasets")
    return datasets

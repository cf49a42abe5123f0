"""pyarrow, where it is installed."""

from __future__ import annotations

from typing import Any

from shoal.errors import UsageError

__all__ = ["arrow_library"]


def arrow_library(what: str) -> Any:
    """pyarrow, or an error that says what needs it.

    Raises
    ------
    UsageError
        It is not installed.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415  # optional, and slow to import
    except ImportError:
        msg = f"{what} needs pyarrow, which is not installed"
        raise UsageError(msg, hint="pip install 'shoal[parquet]'") from None
    return pa

"""Import of pyarrow, with an error if it is missing or too old."""

from __future__ import annotations

from functools import cache
from typing import Any

from shoal.errors import UsageError
from shoal.hints import pip_install

_OLDEST = 18  # 17 writes a last row group that is longer than its footer says


def arrow_library(what: str) -> Any:
    """Return pyarrow, or raise an error that names what needs it.

    Raises
    ------
    UsageError
        It is not installed, or older than the oldest tested version.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415  # optional, and slow to import
    except ImportError:
        msg = f"{what} needs pyarrow, which is not installed"
        raise UsageError(msg, hint=pip_install("parquet")) from None
    if _is_too_old(pa.__version__):
        msg = f"{what} needs pyarrow {_OLDEST} or newer, and {pa.__version__} is installed"
        raise UsageError(msg, hint=pip_install("parquet", upgrade=True))
    return pa


@cache
def _is_too_old(version: str) -> bool:
    major = version.partition(".")[0]
    return major.isdigit() and int(major) < _OLDEST

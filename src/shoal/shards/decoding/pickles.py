"""Pickles: the only place where bytes of a dataset may run code, and only where somebody said that they may.

Whatever reads a pickle out of a shard (a field of a tar, a column of MDS, an array of objects) asks here.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.errors import UsageError

__all__ = ["array_loader", "refusal", "torch_loader", "unpickler"]


def unpickler(what: str, *, allow_pickle: bool, how: str) -> Callable[[bytes], Any]:
    """What loads a pickle; ``how`` is the call by which pickles are allowed.

    >>> unpickler("a column of pickles", allow_pickle=False, how="...")
    Traceback (most recent call last):
    shoal.errors.UsageError: a column of pickles can run any code when it is read...

    Raises
    ------
    UsageError
        Pickles are not allowed.
    """
    if not allow_pickle:
        raise refusal(what=what, how=how)
    return pickle.loads


def refusal(*, what: str, how: str) -> UsageError:
    """The error that says why a pickle is not read."""
    msg = f"{what} can run any code when it is read, so it is not"
    return UsageError(msg, hint=f"if you trust whoever wrote it: {how}")


def array_loader(*, allow_pickle: bool) -> Callable[[bytes], Any]:
    """What loads an array of an ``.npy`` file; one of objects is a pickle."""

    def load(data: bytes) -> Any:
        stream = io.BytesIO(data)
        try:
            return np.lib.format.read_array(stream, allow_pickle=allow_pickle)
        except ValueError as error:
            if "allow_pickle" not in str(error):
                raise
            raise refusal(what="an array of objects", how="decode(..., allow_pickle=True)") from None

    return load


def torch_loader() -> Callable[[bytes], Any]:
    """What loads a file of ``torch.save``, whatever is in it; needs torch."""

    def load(data: bytes) -> Any:
        try:
            import torch  # noqa: PLC0415  # optional, and slow to import
        except ImportError:
            msg = "files of torch need torch, which is not installed"
            raise UsageError(msg, hint="install it as pytorch.org says, or decode({'pth': bytes})") from None
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)

    return load

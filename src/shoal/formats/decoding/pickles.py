"""Pickles: the only place where bytes of a dataset may run code, and only where somebody said that they may.

Whatever reads a pickle out of a shard (a field of a tar, a column of MDS, an array of objects) asks here.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from shoal.errors import UsageError

__all__ = ["array_loader", "refusal", "torch_loader", "unpickler"]


def unpickler(what: str, *, allow_pickle: bool, how: str) -> Callable[[bytes], Any]:
    """What loads a pickle, or raises ValueError where it is damaged; ``how`` is the call by which pickles are allowed.

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
    return partial(_unpickled, what)


def _unpickled(what: str, data: bytes) -> Any:
    try:
        return pickle.loads(data)  # noqa: S301  # where somebody said so
    except MemoryError:
        raise
    except ImportError as error:
        msg = f"{what} needs a module that cannot be imported: {error}"
        raise UsageError(msg, hint="install it, or put where it lies on PYTHONPATH") from error
    except Exception as error:  # what a damaged one brings its classes to
        msg = f"{type(error).__name__}: {error}"
        raise ValueError(msg) from error


def refusal(*, what: str, how: str) -> UsageError:
    """The error that says why a pickle is not read."""
    msg = f"{what} can run any code when it is read, so it is not"
    return UsageError(msg, hint=f"if you trust whoever wrote it: {how}")


def array_loader(*, allow_pickle: bool) -> Callable[[bytes], Any]:
    """What loads an array of an ``.npy`` file; one of objects is a pickle.

    Memory is reserved for no more than the bytes that are there, whatever shape they claim.
    """

    def load(data: bytes) -> Any:
        stream = io.BytesIO(data)
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, kind = header(stream)
        if kind.hasobject:
            if not allow_pickle:
                raise refusal(what="an array of objects", how="decode(..., allow_pickle=True)")
            return _read_whole(data, allow_pickle=True)
        num_bytes, left = math.prod(shape) * kind.itemsize, len(data) - stream.tell()
        if min(shape, default=0) < 0 or num_bytes > left or (not num_bytes and math.prod(shape) > len(data)):
            msg = f"an array of shape {shape} and type {kind} has {num_bytes} bytes, and {left} are there"
            raise ValueError(msg)
        if version > (2, 0) or not num_bytes:  # names of fields may be beyond Latin-1
            return _read_whole(data, allow_pickle=False)
        array = np.frombuffer(data, kind, count=math.prod(shape), offset=stream.tell()).copy()
        return array.reshape(shape[::-1]).T if is_fortran else array.reshape(shape)

    return load


def _read_whole(data: bytes, *, allow_pickle: bool) -> Any:
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=allow_pickle)


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

"""Pickles: the only module where bytes of a dataset may run code, and only if the user allowed that.

It reads all pickles of shards: fields of a tar, columns of MDS, arrays of objects.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.decoding.array_decoder import ArrayDecoder

_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")


def unpickler(what: str, *, allow_pickle: bool, how: str) -> Callable[[bytes], Any]:
    """Return a function that loads pickles, with ValueError for damaged ones; ``how`` is the call that allows them.

    >>> unpickler("a column of pickles", allow_pickle=False, how="...")
    Traceback (most recent call last):
    shoal.errors.UsageError: a column of pickles can run any code when it is read...

    Raises `UsageError` if pickles are not allowed.
    """
    if not allow_pickle:
        raise refusal(what=what, how=how)
    return partial(_unpickled, what)


def _unpickled(what: str, data: bytes) -> Any:
    try:
        return pickle.loads(data)  # noqa: S301  # the user allowed it
    except MemoryError:
        raise
    except ImportError as error:
        msg = f"{what} needs a module that cannot be imported: {error}"
        raise UsageError(msg, hint="install it, or add its directory to PYTHONPATH") from error
    except Exception as error:  # a damaged pickle can make its classes raise anything
        raise ValueError(f"{type(error).__name__}: {error}") from error


class _NoClasses(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise ValueError(f"it wants {module}.{name}, but only numbers, texts, lists and tuples are read")


def plain_pickle(data: bytes) -> Any:
    """Load a pickle of numbers, texts, lists and tuples, which runs no code; `ValueError` for any other pickle.

    >>> plain_pickle(pickle.dumps((2, 3)))
    (2, 3)
    """
    try:
        _check_memo(data)
        return _NoClasses(io.BytesIO(data)).load()
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  # a damaged pickle can raise anything
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _check_memo(data: bytes) -> None:
    """Raise `ValueError` if a place in the memo is beyond the pickle: Python allocates all places up to the largest."""
    import pickletools  # noqa: PLC0415  # takes longer to import than the rest of this module, and is rarely needed

    for operation, place, _ in pickletools.genops(data):
        if operation.name in _PUTS and not 0 <= int(place or 0) <= len(data):
            raise ValueError(f"its memo would have {place} places, but the pickle has {len(data)} bytes")


def refusal(*, what: str, how: str) -> UsageError:
    """Return the error of a pickle that is not read."""
    msg = f"{what} can run any code when it is read, so shoal does not read it"
    return UsageError(msg, hint=f"if you trust its source: {how}")


def array_loader(*, allow_pickle: bool) -> ArrayDecoder:
    """Return a decoder of ``.npy`` files to arrays; an array of objects is a pickle.

    Memory is allocated only for the bytes of the file, even if its shape claims more.
    """
    load = partial(_array, allow_pickle)
    return ArrayDecoder(lambda data, memory: [load(one, partial(memory, number)) for number, one in enumerate(data)])


def _array(allow_pickle: bool, data: bytes, allocate: Callable[..., NDArray[Any]]) -> Any:  # noqa: FBT001
    start = 12 if data[6:7] > b"\x01" else 10
    start += int.from_bytes(data[8:start], "little")
    version, shape, is_fortran, kind = _array_header(data[:start])
    if kind.hasobject:
        if not allow_pickle:
            raise refusal(what="an array of objects", how="decode(..., allow_pickle=True)")
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=True)
    num_values = math.prod(shape)
    num_bytes, num_left = num_values * kind.itemsize, len(data) - start
    if min(shape, default=0) < 0 or num_bytes > num_left or (not num_bytes and num_values > len(data)):
        msg = f"an array of shape {shape} and type {kind} needs {num_bytes} bytes, but only {num_left} follow"
        raise ValueError(msg)
    if version > (2, 0) or not num_bytes:  # names of fields may be beyond Latin-1
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    stored = np.frombuffer(data, kind, count=num_values, offset=start)
    if is_fortran:
        return stored.copy().reshape(shape[::-1]).T
    array = allocate(shape, kind)
    array[...] = stored.reshape(shape)
    return array


@lru_cache(maxsize=256)
def _array_header(head: bytes) -> tuple[tuple[int, int], tuple[int, ...], bool, np.dtype[Any]]:
    """Return version, shape, order and type of an ``.npy`` file; cached, since numpy takes 20 us to parse a header."""
    stream = io.BytesIO(head)
    version = np.lib.format.read_magic(stream)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return version, *header(stream)


def torch_loader() -> Callable[[bytes], Any]:
    """Return a function that loads a file of ``torch.save``, including pickles; needs torch."""

    def load(data: bytes) -> Any:
        try:
            import torch  # noqa: PLC0415  # optional, and slow to import
        except ImportError:
            msg = "files of torch need torch, which is not installed"
            raise UsageError(msg, hint="install it as pytorch.org says, or decode({'pth': bytes})") from None
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)

    return load

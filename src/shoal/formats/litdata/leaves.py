"""The leaves of LitData items: decoding of bytes to values, as LitData's writer encoded them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.decoding.pickles import unpickler
from shoal.formats.litdata.json_leaves import json_value
from shoal.formats.mds.encodings import decoder_of

_ARRAY_TYPES = dict(
    enumerate(
        (
            *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
            *("float16", "float32", "float64", "complex64", "complex128", "bool"),
        )
    )
)
_TENSOR_TYPES = {
    **dict.fromkeys((0, 1), "float32"), **dict.fromkeys((2, 3), "float64"), **dict.fromkeys((4, 5), "complex64"),
    **dict.fromkeys((6, 7), "complex128"), **dict.fromkeys((8, 9), "float16"), 11: "uint8", 12: "int8",
    **dict.fromkeys((13, 14), "int16"), **dict.fromkeys((15, 16), "int32"), **dict.fromkeys((17, 18), "int64"),
    19: "bool", 20: "uint16",
}  # fmt: skip  # 10 is bfloat16, which numpy does not have
# Files in their own formats, each of which LitData decodes with another package.
_FILES = ("file", "tiff", "tifffile", "video", "audio", "nifti", "mesh", "pdf")
_IMAGES = {"pil": "pil", "jpeg": "jpeg", "image": "jpeg", "jpeg_array": "jpeg_array"}


def leaf_decoder(leaf: str, *, allow_pickle: bool) -> Callable[[bytes], Any]:
    """Return the decoder of a leaf of this kind; it raises ValueError if the bytes are invalid.

    Raises
    ------
    UsageError
        The kind is not read, or is ``pickle`` and pickles are not allowed.
    """
    kind = leaf.partition(":")[0]
    if kind == "pickle":
        return unpickler("a leaf of pickles", allow_pickle=allow_pickle, how="LitData(index, allow_pickle=True)")
    if (found := array_type(leaf)) is not None:
        return lambda data: np.frombuffer(data, found).copy()
    if kind in _IMAGES:
        return decoder_of(_IMAGES[kind], allow_pickle=False)
    if kind in _DECODERS:
        return _DECODERS[kind]
    msg = f"these chunks have leaves of the kind {leaf!r}, which is not read"
    known = [*_DECODERS, "no_header_numpy", "no_header_tensor", *_IMAGES, "pickle"]
    raise UsageError(msg, hint=f"those read are {', '.join(known)}")


def array_type(leaf: str) -> np.dtype[Any] | None:
    """Return the type of the numbers in a leaf of nothing but numbers in a row; None for other or unknown leaves.

    >>> array_type("no_header_tensor:16"), array_type("int")
    (dtype('int32'), None)
    """
    kind, _, number = leaf.partition(":")
    types = {"no_header_numpy": _ARRAY_TYPES, "no_header_tensor": _TENSOR_TYPES}.get(kind, {})
    name = types.get(int(number)) if number.isdecimal() else None
    return None if name is None else np.dtype(name)


def _array(data: bytes) -> NDArray[Any]:
    return _shaped(data, "<u4", _ARRAY_TYPES)


def _tensor(data: bytes) -> NDArray[Any]:
    return _shaped(data, ">u4", _TENSOR_TYPES)


def _shaped(data: bytes, word: str, types: dict[int, str]) -> NDArray[Any]:
    kind, rank = np.frombuffer(data, word, count=2).tolist()
    if kind not in types:
        msg = f"there is no type {kind} of arrays"
        raise ValueError(msg)
    shape = np.frombuffer(data, word, count=rank, offset=8).tolist() if rank else []
    values = data[8 + 4 * rank :]
    return np.frombuffer(values, types[kind]).reshape(shape).copy()


def _boolean(data: bytes) -> bool:
    if len(data) != 1:
        msg = f"{len(data)} bytes"
        raise ValueError(msg)
    return data[0] != 0


def _number(data: bytes, kind: str) -> Any:
    if len(data) != 8:
        msg = f"{len(data)} bytes"
        raise ValueError(msg)
    return np.frombuffer(data, kind)[0].item()


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "str": lambda data: data.decode("utf-8"),
    "text": lambda data: data.decode("utf-8"),
    "bytes": bytes,
    **dict.fromkeys(_FILES, bytes),
    "json": json_value,
    "bool": _boolean,
    "int": lambda data: _number(data, "<i8"),
    "float": lambda data: _number(data, "<f8"),
    "numpy": _array,
    "tensor": _tensor,
}

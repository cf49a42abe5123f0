"""Extension types of Arrow, read from the metadata in a schema: tensors get their shape, other types their storage.

If a process has imported a library that registers a class for an extension type (Ray, `datasets`), pyarrow gives other
values, and loading that class can run code. So the key that names the type is replaced in the bytes of a schema before
pyarrow parses it.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.formats.decoding.pickles import plain_pickle
from shoal.formats.tables.arrow_columns import index_array, list_widths, nested_lists
from shoal.formats.tables.arrow_types import arrow_library, is_list, is_number, leaf_type

_NAME, _HIDDEN_NAME = b"ARROW:extension:name", b"SHOAL:extension:name"  # equally long, so offsets in a schema stay
_METADATA = b"ARROW:extension:metadata"
_SCHEMA_OF_PARQUET = re.compile(rb"ARROW:schema\x18([\x80-\xff]{0,4}[\x00-\x7f])")  # a string of Thrift, by its length


class _Shape(NamedTuple):
    """The stored shape of each value of a tensor column, and the order of axes in samples (None: as stored)."""

    stored: tuple[int, ...]
    axes: tuple[int, ...] | None = None

    @property
    def in_samples(self) -> tuple[int, ...]:
        return self.stored if self.axes is None else tuple(self.stored[axis] for axis in self.axes)


def without_extensions(schema: bytes) -> bytes:
    """Return the bytes of a schema without extension types; their metadata stays.

    >>> without_extensions(b"..ARROW:extension:name..")
    b'..SHOAL:extension:name..'
    """
    return schema.replace(_NAME, _HIDDEN_NAME)


def footer_without_extensions(footer: bytes) -> bytes:
    """Remove the extension types from the Arrow schema in a Parquet footer, whose length stays the same."""
    plain = footer
    for match in _SCHEMA_OF_PARQUET.finditer(footer):
        length = sum((byte & 0x7F) << 7 * number for number, byte in enumerate(match[1]))
        text = footer[match.end() : match.end() + length]
        try:
            schema = base64.b64decode(text, validate=True)
        except ValueError:
            continue  # pyarrow reports the error
        hidden = base64.b64encode(without_extensions(schema))
        if len(hidden) == len(text):
            plain = plain[: match.end()] + hidden + plain[match.end() + length :]
    return plain


def shaped_schema(schema: Any) -> Any:
    """Return the schema of the columns of `shaped_column`; `ValueError` if the shape of a tensor cannot be read."""
    pa = arrow_library("Arrow")
    fields = [pa.field(field.name, _shaped_type(field), field.nullable) for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def shaped_column(field: Any, array: Any) -> Any:
    """Return a column of tensors as nested fixed-size lists, (2, 3) as lists of two lists of three; others unchanged.

    Nothing is copied if the storage has fixed sizes, no nulls, and the order of axes of samples. Raises `ValueError` if
    the shape cannot be read, or the number of values of a row does not match its shape.
    """
    pa = arrow_library("Arrow")
    shape = _shape_of(field)
    if shape is None:
        return array
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([_shaped(chunk, shape) for chunk in array.chunks], _shaped_type(field))
    return _shaped(array, shape)


def _shaped_type(field: Any) -> Any:
    shape = _shape_of(field)
    return field.type if shape is None else _nested_type(leaf_type(field.type), shape.in_samples)


def _nested_type(leaf: Any, shape: Sequence[int]) -> Any:
    kind = leaf
    for width in reversed(shape):
        kind = arrow_library("Arrow").list_(kind, width)
    return kind


def _depth(kind: Any) -> int:
    return 1 + _depth(kind.value_type) if is_list(kind) else 0


def _shape_of(field: Any) -> _Shape | None:
    """Return the shape of a column's tensors; None if it holds none, or stores them in some other form."""
    metadata = field.metadata or {}
    name = metadata.get(_HIDDEN_NAME, b"").decode("utf-8", "replace")
    read, kind = _SHAPES.get(name), field.type
    if read is None or not (is_number(leaf_type(kind)) or arrow_library("Arrow").types.is_boolean(leaf_type(kind))):
        return None
    data = metadata.get(_METADATA, b"")
    try:
        shape = read(data)
        size = math.prod(shape.stored)
        whole = all(type(width) is int for width in shape.stored)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        shape, size, whole = None, 0, False
    if shape is None or not whole or (shape.axes is not None and sorted(shape.axes) != [*range(len(shape.stored))]):
        raise ValueError(f"it is an extension type {name}, and its shape cannot be read from {data!r:.80}")
    return shape if size > 0 and _depth(kind) in (1, len(shape.stored)) else None


def _shape_by_arrow(data: bytes) -> _Shape:
    described = json.loads(data)
    axes = described.get("permutation")
    return _Shape(tuple(described["shape"]), None if axes is None else tuple(axes))


def _shape_by_ray(data: bytes) -> _Shape:
    return _Shape(tuple(json.loads(data) if data[:1] == b"[" else plain_pickle(data)))


def _shape_by_huggingface(data: bytes) -> _Shape:
    shape, _ = json.loads(data)
    # The first axis may differ from row to row: its width counts as 0, and a shape without a size stays storage.
    return _Shape(tuple(width or 0 for width in shape))


_SHAPES: Mapping[str, Callable[[bytes], _Shape]] = {
    "arrow.fixed_shape_tensor": _shape_by_arrow,
    **dict.fromkeys(("ray.data.arrow_tensor", "ray.data.arrow_tensor_v2"), _shape_by_ray),
    **{f"datasets.features.features.Array{axes}DExtensionType": _shape_by_huggingface for axes in (2, 3, 4, 5)},
}


def _shaped(array: Any, shape: _Shape) -> Any:
    valid = _valid_rows(array)
    values = array if valid is None else array.take(index_array(np.flatnonzero(valid)))
    num_valid = len(values)
    for width in (math.prod(shape.stored),) if _depth(array.type) == 1 else shape.stored:
        widths = list_widths(values)
        if values.null_count or (widths != width).any():
            others = [*map(str, widths[widths != width][:1]), "no"][0]
            raise ValueError(f"a tensor of shape {shape.stored} has lists of {width} values, but one list has {others}")
        values = values.flatten()
    if shape.axes is not None or valid is not None:
        values = _rearranged(values, shape, num_valid, valid)
    return nested_lists(values, _nested_type(values.type, shape.in_samples), len(array), validity=valid)


def _rearranged(values: Any, shape: _Shape, num_valid: int, valid: NDArray[np.bool_] | None) -> Any:
    """Return the values with axes in the order of samples, and with fillers for rows without a value."""
    size = math.prod(shape.stored)
    positions = np.arange(num_valid * size).reshape(-1, *shape.stored)
    if shape.axes is not None:
        positions = positions.transpose(0, *(axis + 1 for axis in shape.axes))
    if valid is None:
        return values.take(index_array(positions))
    if not num_valid:
        return arrow_library("Arrow").nulls(len(valid) * size, values.type)
    rows = np.zeros((len(valid), size), dtype=np.int64)
    rows[valid] = positions.reshape(-1, size)
    return values.take(index_array(rows))


def _valid_rows(array: Any) -> NDArray[np.bool_] | None:
    """Mark the rows that have a value; None if all rows do."""
    if not array.null_count:
        return None
    bits = np.unpackbits(np.frombuffer(array.buffers()[0], np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)].astype(bool)

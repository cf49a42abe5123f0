"""Collation of samples into a batch: numbers, equal-shaped arrays and tensors are stacked, the rest stays a list.

Nested values follow the rules of torch's ``default_collate``, with three exceptions. Lists stay lists, unless they hold
tensors: a list of numbers may be longer in the next sample, and the samples in a batch must not decide whether it is
transposed. Tuples stay tuples, and values that torch refuses become a list.
"""

from __future__ import annotations

import numbers
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from shoal.formats.compiled_cutting import transposed
from shoal.pipeline.batch_rows import Allocate, BatchRows
from shoal.pipeline.tensors import tensors


def collate(
    samples: Sequence[Any],
    allocate: Allocate = np.empty,
    *,
    on_missing: Callable[[Sequence[Any]], None] | None = None,
    nests: bool = False,
) -> Any:
    """Collate samples that are dicts (by field), tuples (by place), or anything else (one column).

    A field missing from some samples is a list with None there, and ``on_missing`` is called with the samples.
    ``allocate`` makes the memory for stacked values, given a shape and a numpy dtype. With ``nests``, the batch is
    `nested`.

    >>> collate([{"x": 1, "s": b"a"}, {"x": 2, "s": b"b"}])
    {'x': array([1, 2]), 's': [b'a', b'b']}
    """
    first, column = samples[0], partial(column_of, allocate=allocate, nests=nests)
    if isinstance(first, Mapping):
        if type(first) is dict and transposed is not None and (columns := transposed(samples)) is not None:
            return {name: column(values) for name, values in columns.items()}
        names: Iterable[Any] = first.keys()
        if any(sample.keys() != names for sample in samples):
            if on_missing is not None:
                on_missing(samples)
            names = {name: None for sample in samples for name in sample}.keys()
            return {name: column([sample.get(name) for sample in samples]) for name in names}
        return {name: column([sample[name] for sample in samples]) for name in names}
    if isinstance(first, tuple) and _are_alike(samples):
        return _tuple_of(first, [column(list(values)) for values in zip(*samples, strict=True)])
    return column(list(samples))


def collate_columns(columns: Any, allocate: Allocate = np.empty, *, nests: bool = False) -> Any:
    """Collate columns by field, or a tuple of columns, as `collate` does their samples; arrays stay as they are.

    >>> collate_columns({"x": [1, 2], "s": [b"a", b"b"]})
    {'x': array([1, 2]), 's': [b'a', b'b']}
    """

    def column(values: Any) -> Any:
        return column_of(values, allocate, nests=nests) if isinstance(values, list) else values

    if isinstance(columns, tuple):
        return tuple(map(column, columns))
    return {name: column(values) for name, values in columns.items()}


def nested(batch: Any, allocate: Allocate = np.empty) -> Any:
    """Turn lists of dicts or tuples in a batch of `collate` into dicts or tuples of columns, however deep.

    >>> nested(collate([{"x": {"y": 1, "z": ("a",)}}, {"x": {"y": 2, "z": ("b",)}}]))
    {'x': {'y': array([1, 2]), 'z': (['a', 'b'],)}}
    """
    if isinstance(batch, dict):
        columns = {name: _by_part(column, allocate) for name, column in batch.items() if _has_parts(column)}
        return batch | columns if columns else batch
    if isinstance(batch, tuple):
        return _tuple_of(batch, [_by_part(column, allocate) for column in batch])
    return _by_part(batch, allocate)


_PLAIN_NUMBERS = ({int}, {float}, {bool}, {int, float})


def column_of(values: list[Any], allocate: Allocate = np.empty, *, nests: bool = False) -> Any:
    """Collate one field: an array if the values are numbers, or equal-shaped arrays or tensors; else the list.

    With ``nests``, a list of dicts or tuples becomes a dict or tuple of columns.

    >>> column_of([1, 2.5]), column_of([1, None])
    (array([1. , 2.5]), [1, None])
    """
    first = values[0]
    if isinstance(first, (bytes, str)):
        return values
    if isinstance(allocate, BatchRows) and (filled := allocate.stacked(values)) is not None:
        return tensors(filled) if _is_tensor(first) else filled
    if isinstance(first, np.ndarray | np.void):  # np.void: a record, such as the reference to a frame
        kind = np.ndarray if isinstance(first, np.ndarray) else np.void
        same = all(isinstance(v, kind) and v.shape == first.shape and v.dtype == first.dtype for v in values)
        return _stacked_arrays(values, allocate) if same else values
    if isinstance(first, (numbers.Number, np.bool_)):
        if (kinds := set(map(type, values))) not in _PLAIN_NUMBERS:  # seldom: these checks are far slower
            if not all(issubclass(kind, (numbers.Number, np.bool_)) for kind in kinds):
                return values
            if len({issubclass(kind, (bool, np.bool_)) for kind in kinds}) > 1:
                return values  # booleans are not numbers
        array = np.asarray(values)
        if array.dtype.kind == "f" and all(isinstance(value, numbers.Integral) for value in values):
            return values  # some fit only int64, others only uint64: numpy would round them
        return array if array.dtype.kind in "biufc" else values  # integers beyond 64 bits stay a list
    if _is_tensor(first):
        return _stacked_tensors(values, allocate)
    return _by_part(values, allocate) if nests and isinstance(first, Mapping | tuple | list) else values


def _has_parts(column: Any) -> bool:
    return isinstance(column, list) and bool(column) and isinstance(column[0], Mapping | tuple | list)


def _by_part(column: Any, allocate: Allocate) -> Any:
    """Turn a column of dicts or tuples into dicts or tuples of columns; return any other column unchanged."""
    if not _has_parts(column):
        return column
    first = column[0]
    if isinstance(first, Mapping):
        names = first.keys()
        if type(first) is dict and transposed is not None and names and (lists := transposed(column)) is not None:
            return {name: column_of(values, allocate, nests=True) for name, values in lists.items()}
        kinds = set(map(type, column))  # usually dict alone: isinstance(value, Mapping) takes 0.3 us per value
        if not names or not all(issubclass(kind, Mapping) for kind in kinds) or any(v.keys() != names for v in column):
            return column
        parts = {name: [value[name] for value in column] for name in names}
        return {name: column_of(values, allocate, nests=True) for name, values in parts.items()}
    is_transposed = isinstance(first, tuple) or (isinstance(first, list) and any(map(_is_tensor, first)))
    if not is_transposed or not first or not _are_alike(column):
        return column
    columns = [column_of(list(values), allocate, nests=True) for values in zip(*column, strict=True)]
    return columns if isinstance(first, list) else _tuple_of(first, columns)


def _are_alike(values: Sequence[Any]) -> bool:
    """True if these tuples (or lists) have the same type and length."""
    kind, length = type(values[0]), len(values[0])
    return all(type(value) is kind and len(value) == length for value in values)


def _tuple_of(first: Any, columns: list[Any]) -> Any:
    """Return columns as a tuple, or as a named tuple if the first sample is a named tuple."""
    return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)


def _stacked_arrays(values: list[Any], allocate: Allocate) -> Any:
    first = values[0]
    if first.dtype.kind not in "biufc" or not first.dtype.isnative:
        return np.stack(values)
    return np.stack(values, out=allocate((len(values), *first.shape), first.dtype))


def _is_tensor(value: Any) -> bool:
    """True for a torch tensor, which can exist only if torch has been imported."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(value, kind)


def _stacked_tensors(values: list[Any], allocate: Allocate) -> Any:
    """Stack tensors of equal shape, type, device and layout; return the list if they differ."""
    torch, first = sys.modules["torch"], values[0]
    for value in values:
        alike = _is_tensor(value) and value.shape == first.shape and value.dtype == first.dtype
        if not alike or value.device != first.device or value.layout is not torch.strided or value.is_nested:
            return values
    return torch.stack(values) if (parts := _arrays(torch, values)) is None else _joined(torch, parts, first, allocate)


def _arrays(torch: Any, values: list[Any]) -> list[Any] | None:
    """Return arrays that share the memory of tensors; None if numpy cannot copy them, or torch tracks their use."""
    if values[0].device.type != "cpu" or any(type(v) is not torch.Tensor or v.requires_grad for v in values):
        return None
    try:
        return [value.numpy() for value in values]
    except (TypeError, RuntimeError):  # numpy lacks the type (bfloat16), or the tensor is lazily conjugated
        return None


def _joined(torch: Any, parts: list[Any], first: Any, allocate: Allocate) -> Any:
    """Stack arrays to a tensor, with numpy in this one thread.

    torch.stack splits the copy among its own threads, which then wait in a busy loop: beside threads that decode, on
    two busy cores, a batch of images took four times the processor time.
    """
    shape = (len(parts), *first.shape)
    batch = torch.empty(shape, dtype=first.dtype) if allocate is np.empty else tensors(allocate(shape, parts[0].dtype))
    np.stack(parts, out=batch.numpy())
    return batch

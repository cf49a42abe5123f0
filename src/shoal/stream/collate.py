"""From a list of samples to one batch: numbers and equal-shaped arrays are stacked, the rest stays a list."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["collate", "column_of"]


def collate(samples: Sequence[Any]) -> Any:
    """A batch of samples that are dicts (by field), tuples (by place), or anything else (one column).

    A field that some samples lack is a list with None there.

    >>> collate([{"x": 1, "s": b"a"}, {"x": 2, "s": b"b"}])
    {'x': array([1, 2]), 's': [b'a', b'b']}
    """
    first = samples[0]
    if isinstance(first, dict):
        names = first.keys()
        if any(sample.keys() != names for sample in samples):
            names = {name: None for sample in samples for name in sample}.keys()
            return {name: column_of([sample.get(name) for sample in samples]) for name in names}
        return {name: column_of([sample[name] for sample in samples]) for name in names}
    if isinstance(first, tuple) and all(isinstance(s, tuple) and len(s) == len(first) for s in samples):
        return tuple(column_of(list(column)) for column in zip(*samples, strict=True))
    return column_of(list(samples))


def column_of(values: list[Any]) -> Any:
    """One field of a batch: an array where the values are numbers, or arrays that are alike; else the list.

    >>> column_of([1, 2.5]), column_of([1, None])
    (array([1. , 2.5]), [1, None])
    """
    first = values[0]
    if isinstance(first, (bytes, str)):
        return values
    if isinstance(first, np.ndarray):
        same = all(isinstance(v, np.ndarray) and v.shape == first.shape and v.dtype == first.dtype for v in values)
        return np.stack(values) if same else values
    if isinstance(first, (numbers.Number, np.bool_)):
        if not all(isinstance(value, (numbers.Number, np.bool_)) for value in values):
            return values
        if any(isinstance(v, (bool, np.bool_)) != isinstance(first, (bool, np.bool_)) for v in values):
            return values  # truth values are not numbers
        array = np.asarray(values)
        if array.dtype.kind == "f" and all(isinstance(value, numbers.Integral) for value in values):
            return values  # some fit only int64, others only uint64: numpy would round them
        return array if array.dtype.kind in "biufc" else values  # integers beyond 64 bits stay what they are
    return values

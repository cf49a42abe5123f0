"""Batches as torch wants them: tensors where there are numbers, in the same memory; and pinned."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["can_pin", "pinned", "pinned_array", "tensors"]


def tensors(value: Any) -> Any:
    """The same with arrays of numbers and truth values as tensors; what torch has no type for stays as it is.

    Tensors share the memory of their array where they can: not where it is read-only, of foreign byte order or of
    negative strides.

    >>> tensors({"x": np.arange(3), "name": ["a", "b", "c"]})
    {'x': tensor([0, 1, 2]), 'name': ['a', 'b', 'c']}
    """
    if isinstance(value, np.ndarray):
        return _tensor(value)
    if isinstance(value, dict):
        return {name: tensors(item) for name, item in value.items()}
    if isinstance(value, tuple):
        items = [tensors(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list) and any(isinstance(item, np.ndarray | dict | tuple | list) for item in value):
        return [tensors(item) for item in value]
    return value


def _tensor(array: np.ndarray[Any, Any]) -> Any:
    if array.dtype.kind not in "biufc" or array.dtype.itemsize > (16 if array.dtype.kind == "c" else 8):
        return array
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def can_pin() -> bool:
    """Whether there is an accelerator that pinned memory is for; a warning if not, as torch's own loader gives."""
    if torch.accelerator.is_available():
        return True
    warnings.warn("pin_memory=True, and no accelerator is found: batches are not pinned", stacklevel=3)
    return False


def pinned_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array in pinned memory, of which torch makes a pinned tensor; an ordinary one where torch has no such type."""
    try:
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
    except TypeError:
        return np.empty(shape, dtype)
    array: np.ndarray[Any, Any] = torch.empty(shape, dtype=kind, pin_memory=True).numpy()
    return array


def pinned(value: Any) -> Any:
    """The same with tensors in pinned memory, and whatever else knows how to pin itself."""
    if hasattr(value, "pin_memory"):
        return value.pin_memory()
    if isinstance(value, Mapping):
        return {name: pinned(item) for name, item in value.items()}
    if isinstance(value, tuple):
        items = [pinned(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [pinned(item) for item in value]
    return value

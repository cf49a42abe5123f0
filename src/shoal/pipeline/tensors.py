"""Conversion of arrays to torch tensors that share their memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.errors import UsageError


def torch_library() -> Any:
    """Import torch, or raise `UsageError` with the feature that needs it."""
    try:
        import torch  # noqa: PLC0415  # optional, and slow to import
    except ImportError:
        msg = 'format("torch") needs torch, which is not installed'
        raise UsageError(msg, hint="install it as pytorch.org says for your machine") from None
    return torch


def torch_generator(seed: int) -> Any:
    """Return a generator of torch with this seed, of 64 bits."""
    return torch_library().Generator().manual_seed(seed)


def tensors(value: Any) -> Any:
    """Convert arrays of numbers and booleans to tensors; values of types unknown to torch stay unchanged.

    A tensor shares the memory of its array, unless the array is read-only, of foreign byte order or of negative
    strides. If the memory belongs to a tensor, the result is a view of that tensor: torch tracks copies from pinned
    memory by storage, and reused memory during a copy when the tensor had a storage of its own.

    >>> tensors({"x": np.arange(3), "name": ["a", "b", "c"]})
    {'x': tensor([0, 1, 2]), 'name': ['a', 'b', 'c']}
    """
    if isinstance(value, np.ndarray):
        return _tensor(value)
    if isinstance(value, np.generic):
        tensor = _tensor(np.asarray(value))
        return value if isinstance(tensor, np.ndarray) else tensor
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
    # C may have two types of one width, and torch knows only one: numpy picks the other for large Python integers.
    plain = np.dtype(array.dtype.newbyteorder("=").str)
    if array.dtype.char != plain.char or not array.dtype.isnative:
        array = array.astype(plain)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    torch = torch_library()
    owner = array.base
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return _part_of(torch, owner, array) if isinstance(owner, torch.Tensor) else torch.from_numpy(array)


def _part_of(torch: Any, owner: Any, array: np.ndarray[Any, Any]) -> Any:
    """Return a view of a tensor's storage that covers the memory of an array."""
    storage, kind = owner.untyped_storage(), torch.from_numpy(np.empty(0, array.dtype)).dtype
    first = (array.ctypes.data - storage.data_ptr()) // array.itemsize
    strides = [stride // array.itemsize for stride in array.strides]
    return torch.empty(0, dtype=kind).set_(storage, first, array.shape, strides)

"""Batches for torch: tensors in place of numeric arrays, in the same memory, and pinned memory."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def can_pin() -> bool:
    """Return True if there is an accelerator to pin memory for; else warn, as torch's own loader does."""
    if torch.accelerator.is_available():
        return True
    warnings.warn("pin_memory=True, and no accelerator is found: batches are not pinned", stacklevel=3)
    return False


def pinned_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return an array in pinned memory, for a pinned tensor; an ordinary array if torch lacks the type."""
    try:
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
    except TypeError:
        return np.empty(shape, dtype)
    array: np.ndarray[Any, Any] = torch.empty(shape, dtype=kind, pin_memory=True).numpy()
    return array


def pinned_for(device: int, batch: Any) -> Any:
    """Return the batch pinned for a device."""
    # A new thread starts with device 0, where every rank would create a context.
    torch.accelerator.set_device_index(device)
    return pinned(batch)


def pinned(value: Any) -> Any:
    """Return the value with tensors, and whatever else can pin itself, in pinned memory."""
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

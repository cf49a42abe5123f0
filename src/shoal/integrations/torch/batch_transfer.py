"""Batches on their way: from a worker process through shared memory or a pipe, and into pinned memory.

torch packs a batch in a thread of the worker, behind its queue. What fails there is printed by the worker and told to
nobody: the loader would wait for that batch for ever. So a batch is packed here, before it is given to the queue.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from shoal.errors import UsageError
from shoal.processes.feeders import packed_as_by_queues

SHARED_MEMORY_HINT = (
    "shared memory is full (df -h /dev/shm): give a container more (docker run --shm-size=8g), or take fewer workers, "
    "a smaller prefetch_factor or smaller batches"
)

_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))


class _Parcel:
    """A pickled value, which is unpickled when it arrives."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._packed,)


def sendable(batch: Any) -> tuple[Any, bool]:
    """Return the batch as a queue of torch can surely send it, and whether shared memory had no room for it.

    If so it is copied through the pipe.

    Raises
    ------
    UsageError
        It holds something that cannot be sent to another process.
    """
    try:
        if _is_shared(batch):
            return batch, False
        return _Parcel(packed_as_by_queues(batch)), False
    except Exception as error:
        if _is_about_room(error):
            return _Parcel(pickle.dumps(batch, protocol=pickle.HIGHEST_PROTOCOL)), True
        msg = f"the batch cannot be sent from the worker that made it: {type(error).__name__}: {error}"
        hint = "map() and collate_fn= must return what pickle takes: no generators, files or lambdas; or num_workers=0"
        raise UsageError(msg, hint=hint) from error


def _is_shared(value: Any) -> bool:
    """Return True if a queue can take this as it is: tensors go into shared memory now, and the rest is plain."""
    if isinstance(value, dict):
        return all(type(name) in _PLAIN for name in value) and all(map(_is_shared, value.values()))
    if type(value) in {list, tuple}:
        return set(map(type, value)) <= _PLAIN or all(map(_is_shared, value))
    if type(value) is torch.Tensor:
        if value.device.type != "cpu" or value.layout is not torch.strided or value.requires_grad:
            return False
        if value.untyped_storage().nbytes():
            value.share_memory_()  # type: ignore[no-untyped-call]
        return True
    return type(value) in _PLAIN or (type(value) is np.ndarray and not value.dtype.hasobject)


def _is_about_room(error: Exception) -> bool:
    """Return True if torch, or the system, had no room in shared memory: torch says so in words alone."""
    return isinstance(error, OSError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in ("shared memory", "/torch_", "No space"))
    )


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
    """Return the value with tensors, and whatever else can pin itself, in pinned memory; not what is on a device."""
    if isinstance(value, torch.Tensor) and value.device.type != "cpu":
        return value
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

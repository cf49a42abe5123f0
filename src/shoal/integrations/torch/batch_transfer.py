"""Memory of tensors: pinned for the way to an accelerator, or shared by processes."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from shoal.errors import WorkerError

_SHARED_MEMORY_HINT = (
    "shared memory (/dev/shm) is full, read-only or closed to this user (df -h /dev/shm): give a container more "
    "(docker run --shm-size=8g), or num_workers=0"
)
_LEFT_FILE = re.compile(r"<(/torch_(\d+)_\d+_\d+)>")


@contextlib.contextmanager
def sharing() -> Iterator[None]:
    """Remove the file that torch leaves behind when it raises an error for a lack of shared memory."""
    try:
        yield
    except RuntimeError as error:
        for name, pid in _LEFT_FILE.findall(str(error)):
            if int(pid) == os.getpid():
                import _posixshmem  # type: ignore[import-not-found]  # noqa: PLC0415  # exists if torch has such files

                with contextlib.suppress(FileNotFoundError):
                    _posixshmem.shm_unlink(name)
        raise


def shared_bytes(num_bytes: int) -> torch.Tensor:
    """Return zeros in memory that processes share; `WorkerError` if the system refuses."""
    try:
        with sharing():
            return torch.zeros(num_bytes, dtype=torch.uint8).share_memory_()  # type: ignore[no-any-return, no-untyped-call]
    except (RuntimeError, OSError) as error:
        msg = f"no shared memory of {num_bytes} bytes for worker processes: {error}"
        raise WorkerError(msg, hint=_SHARED_MEMORY_HINT) from error


def can_pin() -> bool:
    """Return True if there is an accelerator; else warn that nothing is pinned, like torch's own loader."""
    if torch.accelerator.is_available():
        return True
    warnings.warn("pin_memory=True has no effect, because no accelerator is found", stacklevel=3)
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
    """Return the batch, pinned for a device."""
    # A new thread starts with device 0, and every rank would create a context on that device.
    torch.accelerator.set_device_index(device)
    return pinned(batch)


def pinned(value: Any) -> Any:
    """Return the value with tensors, and other objects with ``pin_memory``, in pinned memory; device tensors stay."""
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

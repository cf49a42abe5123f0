"""Batches on their way: from a worker process through shared memory or a pipe, and into pinned memory.

torch packs a batch in a thread of the worker, behind its queue. If that fails, the worker only prints the error, and
the loader waits for the batch for ever. So this module packs a batch before it enters the queue.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from shoal.errors import ShoalError, UsageError, WorkerError
from shoal.processes.start_methods import packed_as_by_queues

SHARED_MEMORY_HINT = (
    "shared memory is full (df -h /dev/shm): give a container more (docker run --shm-size=8g), or take fewer workers, "
    "a smaller prefetch_factor or smaller batches"
)

_READ_ONLY_HINT = (
    "shared memory (/dev/shm) is read-only or closed to this user, and worker processes need it: mount it writable "
    "(docker run --shm-size=8g, without a read-only mount there), or num_workers=0"
)
_REFUSAL_HINTS = {
    errno.ENOSPC: SHARED_MEMORY_HINT,
    errno.EROFS: _READ_ONLY_HINT,
    errno.EACCES: _READ_ONLY_HINT,
    errno.EPERM: _READ_ONLY_HINT,
    errno.EMFILE: "this process may not open more files: a higher ulimit -n, or fewer workers",
    errno.ENFILE: "this machine may not open more files: fewer workers (cat /proc/sys/fs/file-nr)",
    errno.EAGAIN: "this user may not start more processes: a higher ulimit -u (or pids limit of the container)",
    errno.ENOMEM: "this machine has no memory for more processes: fewer workers",
}
_LEFT_FILE = re.compile(r"<(/torch_(\d+)_\d+_\d+)>")

_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))


class _Parcel:
    """A pickled value that the receiver unpickles."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._packed,)


def sendable(batch: Any) -> tuple[Any, bool]:
    """Return the batch in a form that a queue of torch can send, and whether it must be copied through the pipe.

    It must if shared memory has no room. Raises `UsageError` for a batch that cannot be sent to another process.
    """
    try:
        with sharing():
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
    """Move tensors into shared memory; return True if a queue can then send the value unchanged."""
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
        raise WorkerError(msg, hint=_READ_ONLY_HINT if "Read-only" in str(error) else SHARED_MEMORY_HINT) from error


@contextlib.contextmanager
def named_refusals() -> Iterator[None]:
    """Raise `WorkerError` with a hint if the system refuses a resource of worker processes."""
    try:
        yield
    except ShoalError:
        raise
    except OSError as error:
        msg = f"workers could not be started: {error}"
        raise WorkerError(msg, hint=_REFUSAL_HINTS.get(error.errno or 0, "")) from error


def _is_about_room(error: Exception) -> bool:
    """Return True if shared memory was full; torch says so only in the text of its error."""
    return isinstance(error, OSError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in ("shared memory", "/torch_", "No space"))
    )


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

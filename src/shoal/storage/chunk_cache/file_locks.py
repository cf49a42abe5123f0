"""Locks on open files that end with their holder, even if it is killed.

`flock` belongs to the open file and not to the process: two threads of one process exclude each other as two processes
do, and closing another descriptor of the same file releases nothing (as it would with `fcntl` record locks). But a
forked child inherits open files, and would keep the locks of a killed parent. So a child closes inherited files, and
every lock is released explicitly, not by closing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

_FIRST_PAUSE_SECONDS = 0.0002
_LONGEST_PAUSE_SECONDS = 0.01

# Descriptors of this process that may hold a lock. Each step on this set is one operation, atomic between threads.
_descriptors: set[int] = set()


def open_for_lock(path: str, flags: int, *, directory: int) -> int:
    """Open ``path``, relative to the open ``directory``, on a new descriptor; `release` closes the descriptor."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=directory)
    _descriptors.add(descriptor)
    return descriptor


def lock_now(descriptor: int, *, shared: bool = False) -> bool:
    """Lock without waiting; return True if the lock was taken."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_within(descriptor: int, seconds: float) -> bool:
    """Take the exclusive lock within ``seconds``; return True if it was taken.

    It polls: a wait inside the system would never end if the holder were stopped and not killed.
    """
    until = time.monotonic() + seconds
    pause = _FIRST_PAUSE_SECONDS
    while not lock_now(descriptor):
        if time.monotonic() > until:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    return True


def release(descriptor: int) -> None:
    """Unlock and close: closing alone does not unlock a file that a child has open, too."""
    if descriptor not in _descriptors:
        return
    _descriptors.discard(descriptor)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def is_locked_by_others(path: str, *, directory: int) -> bool:
    """Return True if some process holds a lock on ``path``; False if there is no such file."""
    try:
        descriptor = open_for_lock(path, os.O_RDWR, directory=directory)
    except FileNotFoundError:
        return False
    try:
        return not lock_now(descriptor)
    finally:
        release(descriptor)


def _close_inherited() -> None:
    for descriptor in list(_descriptors):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()


os.register_at_fork(after_in_child=_close_inherited)

"""Idle connections by origin. They belong to one process: connections shared over a fork returned wrong bytes."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

_MAX_IDLE_PER_ORIGIN = 256  # more than any stream uses at a time; further connections are closed after one use
_MAX_ORIGINS = 256


class _Connection(Protocol):
    def close(self) -> object: ...


_Any = TypeVar("_Any", bound=_Connection)


class ConnectionPool(Generic[_Any]):
    """Idle connections; without a lock, since each step is one operation of a dict or a deque."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._idle: dict[Hashable, deque[_Any]] = {}
        weakref.finalize(self, _close_all, self._idle, self._pid)

    def of(self, origin: Hashable) -> deque[_Any]:
        """Return the idle connections to one origin, in the order of their use."""
        if self._pid != os.getpid():
            _leave_alone(self._idle)
            self.__init__()  # type: ignore[misc]  # anew, for this process
        if len(self._idle) >= _MAX_ORIGINS and origin not in self._idle:
            self.close()
        return self._idle.get(origin) or self._idle.setdefault(origin, deque())

    def keep(self, origin: Hashable, idle: deque[_Any], connection: _Any) -> None:
        """Keep an idle connection, unless the pool was closed since `of` returned ``idle``."""
        idle.append(connection)
        if self._idle.get(origin) is not idle or len(idle) > _MAX_IDLE_PER_ORIGIN:
            _close_each(idle)

    def close(self) -> None:
        """Close the idle connections of this process; connections in use close when they become idle."""
        _close_all(self._idle, self._pid)


def _close_all(idle: dict[Hashable, deque[_Any]], pid: int) -> None:
    if pid != os.getpid():
        _leave_alone(idle)
        return
    with contextlib.suppress(KeyError):
        while True:
            _close_each(idle.popitem()[1])


def _close_each(idle: deque[_Any]) -> None:
    with contextlib.suppress(IndexError):
        while True:
            idle.pop().close()


def _leave_alone(idle: object) -> None:
    """Never free the connections: closing would send a goodbye through sockets of the parent, even at exit."""
    import ctypes  # noqa: PLC0415  # seldom needed

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(idle))

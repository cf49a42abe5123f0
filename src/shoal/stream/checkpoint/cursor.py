"""The only mutable part of a dataset: the start of its next iterator, and the position of its newest one."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from shoal.stream.certificate.certificate import Delivered
from shoal.stream.checkpoint.position import Position


class Cursor:
    """The start of new iterators, and the position of the newest one.

    An iterator begins at the position loaded for the epoch, else at its start. A loaded position serves every iterator
    of its epoch until one of them has reached the end: so a look at the first batch loses nothing. Positions count what
    is left of an epoch that has gaps.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.start = 0
        self._newest: Position | None = None
        self.delivered = Delivered()
        self._watchers: list[weakref.WeakMethod[Callable[[], None]]] = []

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without watchers, which a copy does not inherit."""
        return {**self.__dict__, "_watchers": []}

    def watch(self, moved: Callable[[], None]) -> None:
        """Call this method whenever the start of the next iterator changes, as long as the method's object lives."""
        self._watchers = [watcher for watcher in self._watchers if watcher() is not None]
        self._watchers.append(weakref.WeakMethod(moved))

    def begin(self, epoch: int, start: int) -> None:
        """Start the next iterator here; forget the position of earlier ones."""
        self._newest = None
        self._move(epoch, start)

    def follow(self, place: Position) -> None:
        """Report the position of this iterator from now on."""
        self._newest = place
        self.delivered.follow(place)

    def ended(self, place: Position) -> None:
        """Handle the end of an iterator: if it began where the next one would, that one starts the next epoch."""
        if (place.epoch, place.start) == (self.epoch, self.start):
            self._move(self.epoch + 1, 0)

    def _move(self, epoch: int, start: int) -> None:
        self.epoch, self.start = epoch, start
        for watcher in self._watchers:
            if (moved := watcher()) is not None:
                moved()

    @property
    def begins(self) -> tuple[int, int]:
        """Epoch and position at which the next iterator begins."""
        return self.epoch, self.start

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and position to save: of the newest iterator, even after it is gone, else the start of the next."""
        return self._newest.position if self._newest is not None else self.begins

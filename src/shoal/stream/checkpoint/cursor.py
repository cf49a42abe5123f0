"""The one thing of a dataset that moves: where its next iterator begins, and where its newest one is."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from shoal.stream.certificate.certificate import Delivered
from shoal.stream.checkpoint.position import Position

__all__ = ["Cursor"]


class Cursor:
    """Where iterators begin and what they have come to.

    An iterator begins at the position loaded for the epoch, else at its start. A loaded position serves every iterator
    of its epoch until one of them has come to the end: so a look at the first batch loses nothing. Positions count what
    is left of an epoch that has gaps.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.start = 0
        self._newest: Position | None = None
        self.delivered = Delivered()
        self._watchers: list[weakref.WeakMethod[Callable[[], None]]] = []

    def __getstate__(self) -> dict[str, Any]:
        """A copy is watched by nobody."""
        return {**self.__dict__, "_watchers": []}

    def watch(self, moved: Callable[[], None]) -> None:
        """Call this method whenever the next iterator is to begin elsewhere, as long as its object lives."""
        self._watchers = [watcher for watcher in self._watchers if watcher() is not None]
        self._watchers.append(weakref.WeakMethod(moved))

    def begin(self, epoch: int, start: int) -> None:
        """Begin here next; what iterators came to before is forgotten."""
        self._newest = None
        self._move(epoch, start)

    def follow(self, place: Position) -> None:
        """Speak of this iterator's place from now on."""
        self._newest = place
        self.delivered.follow(place)

    def ended(self, place: Position) -> None:
        """An iterator came to its end: if it began where the next one would, that one begins the next epoch."""
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
        """Epoch and position to save: of the newest iterator, also after it is gone, else where one would begin."""
        return self._newest.position if self._newest is not None else self.begins

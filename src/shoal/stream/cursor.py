"""The one thing of a dataset that moves: where its next iterator begins, and where its newest one is."""

from __future__ import annotations

from shoal.stream.certificates import Delivered
from shoal.stream.place import Place

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
        self._newest: Place | None = None
        self.delivered = Delivered()

    def begin(self, epoch: int, start: int) -> None:
        """Begin here next; what iterators came to before is forgotten."""
        self.epoch, self.start = epoch, start
        self._newest = None

    def follow(self, place: Place) -> None:
        """Speak of this iterator's place from now on."""
        self._newest = place
        self.delivered.follow(place)

    def ended(self, place: Place) -> None:
        """An iterator came to its end: if it began where the next one would, that one begins the next epoch."""
        if (place.epoch, place.start) == (self.epoch, self.start):
            self.epoch, self.start = self.epoch + 1, 0

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and position to save: of the newest iterator, also after it is gone, else where one would begin."""
        return self._newest.position if self._newest is not None else (self.epoch, self.start)

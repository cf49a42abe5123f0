"""Room for what is too large to be read ahead, and will need all there is when it is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from shoal.reading.schedule.memory_budget import MemoryBudget
from shoal.reading.schedule.units import UnitRead

__all__ = ["Due"]


class Due:
    """Pieces from a remote store that are wanted soon: all that may be read ahead is kept free for their parts.

    Otherwise what comes after a piece would fill the room, and its parts would come one after the other (35 MB/s where
    130 are there to be had). From when a piece is known until it is there nothing more is asked for ahead; all that is
    wanted before it has been, and makes room as it is used.

    ``comes_in_turn`` says of a sample whether its piece will come part by part.
    """

    def __init__(self, ledger: MemoryBudget, comes_in_turn: Callable[[int], bool]) -> None:
        self._ledger, self._comes_in_turn = ledger, comes_in_turn
        self._met: set[tuple[int, int]] = set()  # by shard and first byte
        self._due: set[tuple[int, int]] = set()

    def ask(self, reads: Iterable[UnitRead]) -> None:
        """Samples of pieces are wanted soon."""
        for read in reads:
            place = read.shard, read.first_byte
            if place not in self._met:
                self._met.add(place)
                if self._comes_in_turn(read.first_sample):
                    self._due.add(place)
        self._ledger.is_kept_free = bool(self._due)

    @contextmanager
    def get(self, read: UnitRead) -> Iterator[None]:
        """While this lasts, the piece of a sample may come."""
        self._ledger.is_kept_free = False
        try:
            yield
        finally:
            self._due.discard((read.shard, read.first_byte))
            self._ledger.is_kept_free = bool(self._due)

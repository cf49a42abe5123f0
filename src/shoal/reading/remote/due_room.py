"""Reservation of the read-ahead for large pieces, which need all of it when they are fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from shoal.reading.schedule.memory_budget import MemoryBudget
from shoal.reading.schedule.units import UnitRead


class Due:
    """Pieces from a remote store that are needed soon: all of the read-ahead is kept free for their parts.

    Otherwise reads that follow a piece would fill the read-ahead, and its parts would come one after the other (35 MB/s
    where 130 are possible). From when a piece is announced until it has been read nothing more is read ahead; all reads
    needed before it have been requested already, and make room as they are used.

    ``comes_in_turn`` returns True for a sample whose piece will be fetched part by part.
    """

    def __init__(self, ledger: MemoryBudget, comes_in_turn: Callable[[int], bool]) -> None:
        self._ledger, self._comes_in_turn = ledger, comes_in_turn
        self._met: set[tuple[int, int]] = set()  # by shard and first byte
        self._due: set[tuple[int, int]] = set()

    def ask(self, reads: Iterable[UnitRead]) -> None:
        """Announce samples of pieces that are needed soon."""
        for read in reads:
            place = read.shard, read.first_byte
            if place not in self._met:
                self._met.add(place)
                if self._comes_in_turn(read.first_sample):
                    self._due.add(place)
        self._ledger.is_kept_free = bool(self._due)

    @contextmanager
    def get(self, read: UnitRead) -> Iterator[None]:
        """Open the read-ahead for the piece of a sample, for the duration of the context."""
        self._ledger.is_kept_free = False
        try:
            yield
        finally:
            self._due.discard((read.shard, read.first_byte))
            self._ledger.is_kept_free = bool(self._due)

"""Readers of companions: the partners of the samples of another dataset, read when these samples are read.

The memory for partners follows from the window of the left side, and never exceeds it: if the partners of its chunks
take more bytes than the chunks, or lie apart, each partner is read alone when it is due, and nothing is held.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.index.cutting import cut_chunks
from shoal.indexing.alignment.alignment import Alignment
from shoal.indexing.opened_dataset import Companion
from shoal.reading.beside.aligned_units import AlignedUnits
from shoal.reading.beside.partners import put_together
from shoal.reading.beside.span_runs import OwnSamples, SampleReader, runs_of
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.schedule.lifetimes import Keeping
from shoal.reading.schedule.memory_division import Budget
from shoal.reading.schedule.memory_ledger import ahead_limit_bytes, divide
from shoal.reading.schedule.units import ChunkUnits, RecordUnits, Units
from shoal.stats.counters import Counters

_LEAST_WINDOW_BYTES = 16 << 20
_MOST_OF_A_CHUNK = 4  # units of partners; with more, samples are read alone
_LEAST_UNITS = 3  # one in use, and two read ahead


class CompanionUnits(NamedTuple):
    """The units of partners, and the bytes of a large unit.

    ``kept_bytes`` is the limit on the bytes that are kept; None if the units need no limit. ``by_left`` is true if
    samples of the left side name their units, else partners do. ``are_singles`` is true if nothing is kept.
    """

    units: Units
    largest_bytes: int
    kept_bytes: int | None = None
    by_left: bool = False
    are_singles: bool = False


def companion_units(
    order: ResolvedOrder, companion: Companion, limit_bytes: int | None, *, verifies: bool = False
) -> CompanionUnits:
    """Choose the units of partners for an order of the left side; ``limit_bytes`` limits the bytes in memory.

    With ``verifies``, partners are read with their whole extents, since only extents have checksums.
    """
    index, runs = companion.opened.index, companion.kept.alignment.runs
    window_bytes = max(_LEAST_WINDOW_BYTES, order.chunks_held_bytes)
    if index.sample_bytes is None or (verifies and index.extent_checksum is not None):
        # A sample is read with its extent, so extents are kept as long as there is room.
        extents = cut_chunks(index, extents_per_chunk=1)
        return CompanionUnits(ChunkUnits(extents), max(1, extents.largest_bytes), kept_bytes=window_bytes)
    if runs is not None and order.moves(order.units):
        aligned = AlignedUnits(index, runs, order.order_borders)
        units_of_chunk = max(1.0, aligned.num_units / max(1, len(order.chunks)))
        num_chunks = min(order.order.parameters.get("chunks", 1), len(order.chunks))
        held_bytes = num_chunks * units_of_chunk * aligned.mean_bytes
        fits = limit_bytes is None or _LEAST_UNITS * aligned.large_bytes <= limit_bytes
        if fits and units_of_chunk <= _MOST_OF_A_CHUNK and held_bytes <= window_bytes:
            return CompanionUnits(aligned, aligned.large_bytes, by_left=True)
    largest_bytes = int(index.sample_bytes.max(initial=1))
    return CompanionUnits(RecordUnits(index), largest_bytes, are_singles=True)


def companion_budget(
    chosen: CompanionUnits, order: ResolvedOrder, limit_bytes: int | None, *, is_remote: bool, num_sources: int
) -> Budget:
    """Return the budget of partners; ``limit_bytes`` is the companion's share of ``memory_limit=``.

    Raises `UsageError`: the limit is too small for two units read ahead and one in use.
    """
    units, largest_bytes, kept_bytes = chosen.units, chosen.largest_bytes, chosen.kept_bytes
    window_bytes = order.chunks_held_bytes
    ahead_bytes = ahead_limit_bytes(window_bytes, largest_bytes, is_remote=is_remote, num_sources=num_sources)
    if limit_bytes is None and kept_bytes is not None:
        limit_bytes = max(kept_bytes, _LEAST_UNITS * largest_bytes)
    if limit_bytes is None or chosen.are_singles:
        return Budget(units, ahead_bytes if limit_bytes is None else min(ahead_bytes, limit_bytes), None)
    ahead_bytes, keep_bytes = divide(limit_bytes, ahead_bytes, largest_bytes)

    def bytes_of(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array([units.held_bytes(read) for read in units.reads(numbers)], dtype=np.int64)

    return Budget(units, ahead_bytes, Keeping(keep_bytes, bytes_of))


class CompanionReader:
    """The reader of the partners of samples, span by span; ``companions`` read beside the partners themselves."""

    def __init__(
        self,
        alignment: Alignment,
        reader: SampleReader,
        budget: Budget,
        counters: Counters,
        *,
        by_left: bool,
        companions: tuple[CompanionReader, ...] = (),
    ) -> None:
        self.reader, self.companions = reader, companions
        self._alignment, self._budget, self._counters, self._by_left = alignment, budget, counters, by_left

    def beside(
        self, runs: Iterator[list[Any]], ids: NDArray[np.int64], ids_after: NDArray[np.int64]
    ) -> Iterator[list[Any]]:
        """Return the samples of a span together with their partners, after planning the reads of the partners.

        ``runs`` are the samples with these ``ids``; ``ids_after`` are the samples of the next span.
        """
        partners, of_span = self._own(ids)
        after = self._own(ids_after)[1]
        own = runs_of(self.reader, self._budget, of_span, after)
        for companion in self.companions:
            own = companion.beside(own, of_span.ids, after.ids)
        return _runs_together(runs, itertools.chain.from_iterable(own), iter(partners.tolist()), self._counters)

    def close(self) -> None:
        """Stop reading."""
        for companion in self.companions:
            companion.close()
        self.reader.close()

    def _own(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], OwnSamples]:
        """Return the partner of each sample, and the partners that exist with their units."""
        partners = self._alignment.partners(ids)
        has = partners >= 0
        units = self._budget.units.of(ids[has] if self._by_left else partners[has])
        return partners, OwnSamples(partners[has], units)


def _runs_together(
    runs: Iterator[list[Any]], own: Iterator[Any], partners: Iterator[int], counters: Counters
) -> Iterator[list[Any]]:
    for run in runs:
        together: list[Any] = []
        try:
            for sample, partner_id in zip(run, partners, strict=False):  # the last run may end before all partners
                counters.num_unmatched += partner_id < 0
                together.append(put_together(sample, partner_id, next(own) if partner_id >= 0 else None))
        except Exception:
            if together:
                yield together
            raise
        yield together

"""Readers of companions: the partners of the samples of another dataset, read when these samples are read.

The memory for partners follows from the window of the left side, and never exceeds it: if the partners of its chunks
take more bytes than the chunks, or lie apart, each partner is read alone when it is due, and nothing is held.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.index.cutting import cut_chunks
from shoal.indexing.alignment.alignment import Alignment
from shoal.indexing.opened_dataset import Companion
from shoal.reading.beside.aligned_units import AlignedUnits
from shoal.reading.beside.partners import put_together
from shoal.reading.fetcher import Fetcher
from shoal.reading.local.local_samples import LocalSamples
from shoal.reading.remote.remote_samples import RemoteSamples
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.schedule.lifetimes import Keeping
from shoal.reading.schedule.memory_division import Budget
from shoal.reading.schedule.memory_ledger import ahead_limit_bytes, divide
from shoal.reading.schedule.units import ChunkUnits, RecordUnits, Units
from shoal.stats.counters import Counters

_NOTHING = np.zeros(0, dtype=np.int64)

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


class OwnSamples(NamedTuple):
    """Samples of one dataset in a span: their ``rows`` among all samples, their ids, and the units that hold them.

    For a companion, ``rows`` has the partner of each sample of its owner instead, and the ids are its partners.
    """

    rows: Any = _NOTHING
    ids: NDArray[np.int64] = _NOTHING
    units: NDArray[np.int64] = _NOTHING


@dataclass(frozen=True, slots=True, eq=False)
class CompanionReader:
    """The reader of the partners of samples; ``owner`` is the number of the reader of these samples.

    With ``by_left``, samples of the owner name the units of their partners.
    """

    alignment: Alignment
    reader: SampleReader
    budget: Budget
    owner: int
    by_left: bool
    counters: Counters

    def own(self, ids: NDArray[np.int64]) -> OwnSamples:
        """Return the partners of samples of the owner."""
        partners = self.alignment.partners(ids)
        has = partners >= 0
        units = self.budget.units.of(ids[has] if self.by_left else partners[has])
        return OwnSamples(partners, partners[has], units)

    def together(
        self, runs: Iterator[list[Any]], own_runs: Iterator[list[Any]], partners: NDArray[np.int64]
    ) -> Iterator[list[Any]]:
        """Yield the samples of the owner, in the same lists, together with their partners."""
        partner_ids, own = iter(partners.tolist()), itertools.chain.from_iterable(own_runs)
        for run in runs:
            done: list[Any] = []
            try:
                for sample, partner_id in zip(run, partner_ids, strict=False):  # a run ends before its owner's ids
                    self.counters.num_unmatched += partner_id < 0
                    done.append(put_together(sample, partner_id, next(own) if partner_id >= 0 else None))
            except Exception:
                if done:
                    yield done
                raise
            yield done


SampleReader = Fetcher | LocalSamples | RemoteSamples
"""A reader of whole units, or of samples one by one."""

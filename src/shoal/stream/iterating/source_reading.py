"""The reading of a rank's samples, span by span: from one part, or from several parts side by side."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.index.joined_index import JoinedIndex
from shoal.index.table import Index
from shoal.order.partition import Share
from shoal.pipeline.quarantine import QUARANTINED, Quarantine
from shoal.reading.beside.companion_readers import CompanionReader, OwnSamples
from shoal.reading.fetcher import Fetcher
from shoal.reading.part_readers import PartReader, PartReaders
from shoal.reading.schedule.lifetimes import handed_on
from shoal.stream.iterating.shares import ReadSpan, Shares

_ALL = slice(None)
_NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Reading:
    """The reading of a dataset; its ``index`` finds the part of a sample if there are several."""

    readers: PartReaders
    index: Index | JoinedIndex

    def with_units(self, shares: Shares) -> Iterator[tuple[Share, range, NDArray[np.int64]]]:
        """Return an iterator over these shares, their steps, and the units that hold their samples."""
        return ((share, steps, self._units_of(share)) for share, steps in shares)

    def _units_of(self, share: Share) -> NDArray[np.int64]:
        if len(self.readers.parts) == 1 and self.readers.parts[0].moves_units:
            return share.chunks
        units, join = np.empty_like(share.chunks), self.index if isinstance(self.index, JoinedIndex) else None
        for number, rows, ids in [(0, _ALL, share.ids)] if join is None else join.by_part(share.ids):
            part = self.readers.parts[number]
            chunks = share.chunks[rows] - part.first_chunk
            units[rows] = part.first_unit + (chunks if part.moves_units else part.budget.units.of(ids, chunks))
        return units

    def spans(self, shares: Shares, quarantine: Quarantine | None) -> Iterator[ReadSpan]:
        """Yield the samples of these shares, span by span; plan a span's reads before the previous span is yielded.

        With limited memory only the current span is read ahead, since the next span decides which units stay.
        """
        parts, join = self.readers.parts, self.index if isinstance(self.index, JoinedIndex) else None
        readers: list[PartReader | CompanionReader] = [*parts, *self.readers.companions]
        current: tuple[Share, range, slice | NDArray[np.bool_]] | None = None
        owned = [OwnSamples()] * len(readers)
        for following in itertools.chain(shares, [None]):
            coming, after = None, [OwnSamples()] * len(readers)
            if following is not None:
                share, steps = following
                coming = share, steps, (to_read := _to_read_of(share, quarantine))
                ids, chunks = share.ids[to_read], share.chunks[to_read]
                after = [OwnSamples()] * len(parts)
                for number, rows, own_ids in [(0, _ALL, ids)] if join is None else join.by_part(ids):
                    part, units = parts[number], chunks[rows] - parts[number].first_chunk
                    units = units if part.moves_units else part.budget.units.of(own_ids, units)
                    after[number] = OwnSamples(rows, own_ids, units)
                self.readers.add_partners(after)
            runs: list[Iterator[list[Any]]] = []
            for reader, (_, own_ids, units), (_, _, units_after) in zip(readers, owned, after, strict=True):
                fetch, keeping, drops = reader.reader, reader.budget.keeping, list[int]()
                if not isinstance(fetch, Fetcher):
                    runs.append([sample] for sample in fetch.samples(own_ids.tolist(), units))
                    continue
                if keeping is None:
                    reads, last = handed_on(units, units_after)
                else:
                    reads, last, drops = keeping.plan(units, units_after)
                fetch.read_ahead(reads)
                runs.append(fetch.runs(own_ids.tolist(), units.tolist(), last.tolist(), drops))
            if current is not None:
                self.readers.put_together(runs, owned)
                yield _span_of(*current, runs, [own.rows for own in owned[: len(parts)]])
            current, owned = coming, after


def _to_read_of(share: Share, quarantine: Quarantine | None) -> slice | NDArray[np.bool_]:
    """Select the samples of a share that are read: none in quarantine."""
    return _ALL if quarantine is None or not len(quarantine.known) else ~quarantine.among(share.ids)


def _span_of(
    share: Share,
    steps: range,
    to_read: slice | NDArray[np.bool_],
    runs: list[Iterator[list[Any]]],
    rows_of: list[NDArray[np.int64]],
) -> ReadSpan:
    """Return the span with the samples of all parts; a mark replaces each sample that is not read.

    With several parts, each run has one sample, so that no sample is taken before it is due. A lost sample is a
    `RuntimeError`.
    """
    merged = runs[0]
    if len(runs) > 1:
        owners = np.zeros(sum(map(len, rows_of)), dtype=np.int64)
        for number, rows in enumerate(rows_of):
            owners[rows] = number
        by_part = [itertools.chain.from_iterable(run) for run in runs]
        merged = ([next(by_part[owner])] for owner in owners.tolist())
    if not isinstance(to_read, slice):
        samples = itertools.chain.from_iterable(merged)
        merged = ([next(samples) if is_read else QUARANTINED] for is_read in to_read.tolist())
    return ReadSpan(merged, share, steps)

"""The reading of a rank's samples: from one dataset, or from those of a mixture side by side."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.indexing.opened_dataset import Opened
from shoal.order.partition import Share
from shoal.pipeline.quarantine import QUARANTINED, Quarantine
from shoal.reading.checks.checked_reads import read_request
from shoal.reading.fetcher import Fetcher
from shoal.reading.local.local_samples import LocalSamples
from shoal.reading.memory_division import Budget, budget_of
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.remote.remote_samples import RemoteSamples
from shoal.reading.remote.request_pool import FIRST_AT_A_TIME, RequestPool
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.schedule.memory_ledger import MemoryBudget
from shoal.reading.shared_reading import SharedReading
from shoal.stats.counters import Counters
from shoal.storage.retry import unwrap_retries
from shoal.stream.iterating.read_schedule import ReadSpan, planned, singly, unplanned, wanted_of

_NO_STEPS = range(0)


class SourceReading:
    """The reading of one dataset, in whole units ahead of their use or sample by sample.

    ``shared`` is what the sources of a mixture have in common.
    """

    def __init__(
        self,
        opened: Opened,
        resolved: ResolvedOrder,
        counters: Counters,
        options: ReadingOptions,
        shared: SharedReading | None = None,
    ) -> None:
        is_remote, verifies = not opened.store.reads_ahead, options.verify == "always"
        limit_bytes = options.memory_limit_bytes
        num_sources = 1 if shared is None else shared.num_sources
        self.budget: Budget = budget_of(
            resolved, limit_bytes, is_remote=is_remote, verifies=verifies, num_sources=num_sources
        )
        units, ahead_bytes = self.budget.units, self.budget.ahead_bytes
        self.reader: Fetcher | LocalSamples | RemoteSamples
        if resolved.by_singles and not is_remote:
            self.reader = LocalSamples(opened, units, counters, ahead_limit_bytes=ahead_bytes, options=options)
        else:
            kind = RemoteSamples if resolved.by_singles else Fetcher
            self.reader = kind(opened, units, counters, ahead_limit_bytes=ahead_bytes, options=options, shared=shared)
        self.moves_units = resolved.moves(units)
        self._resolved, self._opened = resolved, opened

    def units_of(self, ids: NDArray[np.int64], chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the unit that holds each sample, given its chunk of the order."""
        return self._resolved.units_of(ids, chunks, self.budget.units)

    def spans(self, shares: Iterator[tuple[Share, range]], quarantine: Quarantine | None) -> Iterator[ReadSpan]:
        """Yield the samples of these shares, which have units as chunks, span by span."""
        if isinstance(self.reader, Fetcher):
            return planned(shares, self.budget, self.reader, quarantine)
        return unplanned(shares, self.reader, quarantine)

    def close(self) -> None:
        """Stop; the threads have ended when this returns."""
        self.reader.close()
        if self._opened.cache is not None:
            self._opened.cache.report_counts()


@dataclass(frozen=True, slots=True)
class _Divided:
    """A share of a mixture: the dataset of each wanted sample, and the share of each dataset."""

    share: Share
    steps: range
    wanted: slice | NDArray[np.bool_]
    owners: list[int]
    of_parts: dict[int, Share]


class MixedReading:
    """The reading of a mixture: each dataset is read for itself, and samples are taken from them in turn.

    A memory limit is divided among the datasets as their windows are.
    """

    def __init__(
        self, opened: tuple[Opened, ...], resolved: ResolvedMixture, counters: Counters, options: ReadingOptions
    ) -> None:
        limits = resolved.limits(options.memory_limit_bytes)
        self._resolved = resolved
        memory = MemoryBudget(ahead_limit_bytes=0)
        self._requests = _shared_requests(opened, counters, memory, options)
        shared = SharedReading(self._requests, memory, len(opened))
        self.parts: list[SourceReading] = []
        for part, order, limit in zip(opened, resolved.parts, limits, strict=True):
            try:
                self.parts.append(SourceReading(part, order, counters, options.limited_to(limit), shared))
            except UsageError as error:
                self.close()
                name = resolved.opened.names[len(self.parts)]
                msg = f"the source {name!r}, which gets {limit} bytes of memory_limit={options.memory_limit_bytes}: "
                hint = "a larger memory_limit=, which sources share as their windows do, or a smaller chunk="
                raise UsageError(msg + error.message, hint=hint) from None

        counts = [part.budget.units.num_units for part in self.parts]
        self.first_ids: list[int] = resolved.index.first_id.tolist()
        self.first_units = list(itertools.accumulate(counts, initial=0))
        self.moves_units = all(part.moves_units for part in self.parts) and self.first_units == resolved.first_chunks

    def units_of(self, ids: NDArray[np.int64], chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the unit that holds each sample, those of one dataset numbered after those of another."""
        units = np.empty(len(ids), dtype=np.int64)
        for part, rows, own_ids in self._resolved.index.by_part(ids):
            own_chunks = chunks[rows] - self._resolved.first_chunks[part]
            units[rows] = self.parts[part].units_of(own_ids, own_chunks) + self.first_units[part]
        return units

    def spans(self, shares: Iterator[tuple[Share, range]], quarantine: Quarantine | None) -> Iterator[ReadSpan]:
        """Yield the samples of these shares, which have chunks of the mixture, span by span."""
        divided = (self._divided(share, steps, quarantine) for share, steps in shares)
        *copies, spans = itertools.tee(divided, len(self.parts) + 1)
        parts = [part.spans(_shares_of(number, copy), None)
                 for number, (part, copy) in enumerate(zip(self.parts, copies, strict=True))]  # fmt: skip
        for span in spans:
            samples = [next(part).samples for part in parts]
            share = span.share
            taken = _in_turn(samples, span.owners)
            if not isinstance(span.wanted, slice):
                taken = _with_gaps(taken, span.wanted.tolist())
            yield ReadSpan(
                singly(taken), share.ids.tolist(), share.repeated.tolist(), share.batch_first.tolist(), span.steps
            )

    def close(self) -> None:
        """Stop; the threads have ended when this returns."""
        if self._requests is not None:
            self._requests.close()
        for part in self.parts:
            part.close()

    def _divided(self, share: Share, steps: range, quarantine: Quarantine | None) -> _Divided:
        wanted = wanted_of(share, quarantine)
        ids, chunks = share.ids[wanted], share.chunks[wanted]
        owners = np.zeros(len(ids), dtype=np.int64)
        of_parts = {}
        for part, rows, own_ids in self._resolved.index.by_part(ids):
            owners[rows] = part
            units = self.parts[part].units_of(own_ids, chunks[rows] - self._resolved.first_chunks[part])
            of_parts[part] = _share(own_ids, units)
        return _Divided(share, steps, wanted, owners.tolist(), of_parts)


def _shared_requests(
    opened: tuple[Opened, ...], counters: Counters, memory: MemoryBudget, options: ReadingOptions
) -> RequestPool | None:
    """Return the threads for the requests of all remote sources; None if all are local."""
    remote = [part for part in opened if not part.store.reads_ahead]
    if not remote:
        return None
    deadline_seconds = max(unwrap_retries(part.store)[1].deadline_seconds for part in remote)
    return RequestPool(
        partial(read_request, remote[0], stats := RequestStats(counters)),
        stats,
        memory,
        deadline_seconds=options.deadline_seconds or deadline_seconds,
        first_at_a_time=max(FIRST_AT_A_TIME, counters.concurrency),
    )


_NONE = np.zeros(0, dtype=np.int64)


def _share(ids: NDArray[np.int64], units: NDArray[np.int64]) -> Share:
    return Share(ids, _NONE, units, np.zeros(len(ids), dtype=bool), np.array([0, len(ids)]))


def _shares_of(part: int, spans: Iterator[_Divided]) -> Iterator[tuple[Share, range]]:
    for span in spans:
        yield span.of_parts.get(part) or _share(_NONE, _NONE), _NO_STEPS


def _in_turn(samples: list[Iterator[object]], owners: list[int]) -> Iterator[object]:
    for owner in owners:
        yield next(samples[owner])


def _with_gaps(samples: Iterator[object], wanted: list[bool]) -> Iterator[object]:
    for is_wanted in wanted:
        yield next(samples) if is_wanted else QUARANTINED

"""The reading of a rank's samples: from one dataset, or from several parts side by side."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.index.joined_index import JoinedIndex
from shoal.indexing.opened_dataset import Opened, OpenedDataset
from shoal.order.partition import Share
from shoal.pipeline.quarantine import Quarantine
from shoal.reading.checks.checked_reads import read_request
from shoal.reading.fetcher import Fetcher
from shoal.reading.local.local_samples import LocalSamples
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.remote.remote_readers import SharedReading
from shoal.reading.remote.remote_samples import RemoteSamples
from shoal.reading.remote.request_pool import FIRST_AT_A_TIME, RequestPool
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.schedule.memory_division import Budget, budget_of
from shoal.reading.schedule.memory_ledger import MemoryBudget
from shoal.stats.counters import Counters
from shoal.storage.retry import unwrap_retries
from shoal.stream.iterating.read_schedule import ReadSpan, Shares, planned, span_of, to_read_of, unplanned

_LEAST_EXTENTS = 3  # one extent in use and two extents read ahead
_NO_STEPS = range(0)
_NO_IDS = np.zeros(0, dtype=np.int64)
_NO_SHARE = Share(_NO_IDS, _NO_IDS, _NO_IDS, np.zeros(0, dtype=bool), np.array([0, 0]))


class Reading(Protocol):
    """The reading of all parts of a dataset."""

    @property
    def places(self) -> Iterable[tuple[PartReading, int, int]]:
        """The reading of each part, with the numbers of its first unit and its first sample among all."""
        ...

    def in_units(self, shares: Shares) -> Shares:
        """Return these shares with the units that hold their samples in place of the chunks of the order."""
        ...

    def spans(self, shares: Shares, quarantine: Quarantine | None) -> Iterator[ReadSpan]:
        """Yield the samples of these shares, span by span."""
        ...

    def close(self) -> None:
        """Stop; the threads have ended when this returns."""
        ...


class PartReading:
    """The reading of one dataset: in whole units ahead of their use, or sample by sample.

    Several parts share requests and memory by ``shared``.
    """

    def __init__(
        self,
        opened: Opened,
        resolved: ResolvedOrder,
        counters: Counters,
        options: ReadingOptions,
        shared: SharedReading | None = None,
    ) -> None:
        is_remote = not opened.store.reads_ahead
        self.budget: Budget = budget_of(
            resolved,
            options.memory_limit_bytes,
            is_remote=is_remote,
            verifies=options.verify == "always",
            num_sources=1 if shared is None else shared.num_sources,
        )
        units, ahead_bytes = self.budget.units, self.budget.ahead_bytes
        self.reader: Fetcher | LocalSamples | RemoteSamples
        if resolved.by_singles and not is_remote:
            self.reader = LocalSamples(opened, units, counters, ahead_limit_bytes=ahead_bytes, options=options)
        else:
            kind = RemoteSamples if resolved.by_singles else Fetcher
            self.reader = kind(opened, units, counters, ahead_limit_bytes=ahead_bytes, options=options, shared=shared)
        self.units_of = partial(resolved.units_of, units=units)
        """Function from sample ids and their chunks in the order to their units."""
        self._moves_units, self._cache = resolved.moves(units), opened.cache

    @property
    def places(self) -> Iterable[tuple[PartReading, int, int]]:
        """The only part."""
        return ((self, 0, 0),)

    def in_units(self, shares: Shares) -> Shares:
        """Return these shares with the units that hold their samples; most orders move the units themselves."""
        return shares if self._moves_units else _in_units(shares, self.units_of)

    def spans(self, shares: Shares, quarantine: Quarantine | None) -> Iterator[ReadSpan]:
        """Yield the samples of these shares, span by span."""
        shares = self.in_units(shares)
        if isinstance(self.reader, Fetcher):
            return planned(shares, self.budget, self.reader, quarantine)
        return unplanned(shares, self.reader, quarantine)

    def close(self) -> None:
        """Stop; the threads have ended when this returns."""
        self.reader.close()
        if self._cache is not None:
            self._cache.report_counts()


class _Divided(NamedTuple):
    """A share, a mask of the samples to read, the part of each sample to read, and the share of each part."""

    share: Share
    steps: range
    to_read: slice | NDArray[np.bool_]
    owners: list[int]
    of_parts: list[tuple[Share, range]]


class JoinedReading:
    """The reading of several parts: each part has its own reading, and samples are merged in the order of the share.

    Parts divide a memory limit in proportion to their windows.
    """

    def __init__(
        self, opened: OpenedDataset, orders: Sequence[ResolvedOrder], counters: Counters, options: ReadingOptions
    ) -> None:
        limits = divided_limits(orders, options.memory_limit_bytes)
        memory = MemoryBudget(ahead_limit_bytes=0)
        self._join = JoinedIndex(tuple(opened.indexes), tuple(opened.indexes.values()))
        self._requests = _shared_requests(opened.parts, counters, memory, options)
        shared = SharedReading(self._requests, memory, len(orders))
        self._parts: list[PartReading] = []
        for part, order, limit in zip(opened.parts, orders, limits, strict=True):
            try:
                self._parts.append(PartReading(part, order, counters, options.limited_to(limit), shared))
            except UsageError as error:
                self.close()
                name = list(opened.indexes)[len(self._parts)]
                msg = f"the source {name!r}, with {limit} bytes of memory_limit={options.memory_limit_bytes}: "
                hint = "a larger memory_limit= (divided in proportion to the windows of sources), or a smaller chunk="
                raise UsageError(msg + error.message, hint=hint) from None

        self._first_chunks = list(itertools.accumulate((order.num_order_chunks for order in orders), initial=0))
        counts = (part.budget.units.num_units for part in self._parts)
        self._first_units = list(itertools.accumulate(counts, initial=0))

    @property
    def places(self) -> Iterable[tuple[PartReading, int, int]]:
        """The reading of each part, with the numbers of its first unit and its first sample among all."""
        return zip(self._parts, self._first_units, self._join.first_id.tolist(), strict=False)

    def in_units(self, shares: Shares) -> Shares:
        """Return these shares with the units that hold their samples; units are numbered part after part."""
        return _in_units(shares, self._units_of)

    def _units_of(self, ids: NDArray[np.int64], chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        units = np.empty(len(ids), dtype=np.int64)
        for part, rows, own_ids in self._join.by_part(ids):
            own_chunks = chunks[rows] - self._first_chunks[part]
            units[rows] = self._parts[part].units_of(own_ids, own_chunks) + self._first_units[part]
        return units

    def spans(self, shares: Shares, quarantine: Quarantine | None) -> Iterator[ReadSpan]:
        """Yield the samples of these shares, span by span."""
        divided = (self._divided(share, steps, quarantine) for share, steps in shares)
        *copies, spans = itertools.tee(divided, len(self._parts) + 1)
        parts = [part.spans(map(itemgetter(number), (span.of_parts for span in copy)), None)
                 for number, (part, copy) in enumerate(zip(self._parts, copies, strict=True))]  # fmt: skip
        for share, steps, to_read, owners, _ in spans:
            samples = [next(part).samples for part in parts]
            yield span_of(share, steps, (next(samples[owner]) for owner in owners), to_read)

    def close(self) -> None:
        """Stop; the threads have ended when this returns."""
        if self._requests is not None:
            self._requests.close()
        for part in self._parts:
            part.close()

    def _divided(self, share: Share, steps: range, quarantine: Quarantine | None) -> _Divided:
        to_read = to_read_of(share, quarantine)
        ids, chunks = share.ids[to_read], share.chunks[to_read]
        owners, of_parts = np.zeros(len(ids), dtype=np.int64), [(_NO_SHARE, _NO_STEPS)] * len(self._parts)
        for part, rows, own_ids in self._join.by_part(ids):
            owners[rows] = part
            repeated, batch_first = np.zeros(len(own_ids), dtype=bool), np.array([0, len(own_ids)])
            own_chunks = chunks[rows] - self._first_chunks[part]
            of_parts[part] = Share(own_ids, _NO_IDS, own_chunks, repeated, batch_first), _NO_STEPS
        return _Divided(share, steps, to_read, owners.tolist(), of_parts)


def divided_limits(orders: Sequence[ResolvedOrder], limit_bytes: int | None) -> list[int | None]:
    """Divide a memory limit among parts: a few extents each, and the rest in proportion to window bytes."""
    if limit_bytes is None:
        return [None] * len(orders)
    held = [max(1, order.chunks_held_bytes) for order in orders]
    least = [_LEAST_EXTENTS * int(order.index.extent_decoded_bytes.max(initial=1)) for order in orders]
    if (rest := limit_bytes - sum(least)) < 0:
        least, rest = [0] * len(least), limit_bytes
    return [max(1, few + rest * held_bytes // sum(held)) for few, held_bytes in zip(least, held, strict=True)]


def _in_units(shares: Shares, units_of: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]) -> Shares:
    return ((replace(share, chunks=units_of(share.ids, share.chunks)), steps) for share, steps in shares)


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

"""The readers of the parts of a dataset, which share threads and a memory limit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from shoal.errors import UsageError
from shoal.indexing.opened_dataset import Opened, OpenedDataset
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

_LEAST_EXTENTS = 3  # one in use and two read ahead


class PartReader(NamedTuple):
    """The reader of one part: of whole units ahead of their use, or of samples one by one.

    ``moves_units`` is true if the units are the chunks that the order moves. Chunks, units and samples are numbered
    part after part.
    """

    reader: Fetcher | LocalSamples | RemoteSamples
    budget: Budget
    moves_units: bool
    first_chunk: int
    first_unit: int
    first_sample: int


class PartReaders:
    """The readers of all parts; several parts divide a memory limit in proportion to their windows."""

    def __init__(
        self, opened: OpenedDataset, orders: Sequence[ResolvedOrder], counters: Counters, options: ReadingOptions
    ) -> None:
        self._caches, self._requests = opened.caches, None
        shared = None
        if len(orders) > 1:
            memory = MemoryBudget(ahead_limit_bytes=0)
            self._requests = _shared_requests(opened.parts, counters, memory, options)
            shared = SharedReading(self._requests, memory, len(orders))
        self.parts: list[PartReader] = []
        limits = divided_limits(orders, options.memory_limit_bytes)
        first_chunk = first_unit = first_sample = 0
        for name, part, order, limit in zip(opened.indexes, opened.parts, orders, limits, strict=True):
            try:
                reader, budget = _part_reader(part, order, counters, options.limited_to(limit), shared)
            except BaseException as error:
                self.close()
                if shared is None or not isinstance(error, UsageError):
                    raise
                msg = f"the source {name!r}, with {limit} bytes of memory_limit={options.memory_limit_bytes}: "
                hint = "a larger memory_limit=, which sources share as their windows do: this source alone takes "
                raise UsageError(msg + error.message, hint=hint + error.hint) from None
            moves_units = order.moves(budget.units)
            self.parts.append(PartReader(reader, budget, moves_units, first_chunk, first_unit, first_sample))
            first_chunk += order.num_order_chunks
            first_unit += budget.units.num_units
            first_sample += part.index.num_samples

    def close(self) -> None:
        """Stop; the threads have ended when this returns."""
        if self._requests is not None:
            self._requests.close()
        for part, cache in zip(self.parts, self._caches, strict=False):
            part.reader.close()
            if cache is not None:
                cache.report_counts()


def _part_reader(
    opened: Opened, order: ResolvedOrder, counters: Counters, options: ReadingOptions, shared: SharedReading | None
) -> tuple[Fetcher | LocalSamples | RemoteSamples, Budget]:
    is_remote = not opened.store.reads_ahead
    budget = budget_of(
        order,
        options.memory_limit_bytes,
        is_remote=is_remote,
        verifies=options.verify == "always",
        num_sources=1 if shared is None else shared.num_sources,
    )
    units, ahead_bytes = budget.units, budget.ahead_bytes
    if order.by_singles and not is_remote:
        return LocalSamples(opened, units, counters, ahead_limit_bytes=ahead_bytes, options=options), budget
    kind = RemoteSamples if order.by_singles else Fetcher
    return kind(opened, units, counters, ahead_limit_bytes=ahead_bytes, options=options, shared=shared), budget


def divided_limits(orders: Sequence[ResolvedOrder], limit_bytes: int | None) -> list[int | None]:
    """Divide a memory limit among parts: some extents for each, and the rest in proportion to the bytes of windows."""
    if limit_bytes is None:
        return [None] * len(orders)
    held = [max(1, order.chunks_held_bytes) for order in orders]
    least = [_LEAST_EXTENTS * int(order.index.extent_decoded_bytes.max(initial=1)) for order in orders]
    if (rest := limit_bytes - sum(least)) < 0:
        least, rest = [0] * len(least), limit_bytes
    return [max(1, few + rest * held_bytes // sum(held)) for few, held_bytes in zip(least, held, strict=True)]


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

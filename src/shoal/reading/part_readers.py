"""The readers of the parts of a dataset, which share threads and a memory limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from shoal.errors import UsageError
from shoal.indexing.opened_dataset import Companion, Opened, OpenedDataset, each_opened
from shoal.reading.beside.companion_readers import (
    CompanionReader,
    OwnSamples,
    SampleReader,
    companion_budget,
    companion_units,
)
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

    reader: SampleReader
    budget: Budget
    moves_units: bool
    first_chunk: int
    first_unit: int
    first_sample: int


class PartReaders:
    """The readers of all parts; several parts divide a memory limit in proportion to their windows.

    ``companions`` are the readers of partners of the samples of parts. Readers are numbered, first those of the parts;
    a companion comes before its owner if the owner is a companion, too.
    """

    def __init__(
        self, opened: OpenedDataset, orders: Sequence[ResolvedOrder], counters: Counters, options: ReadingOptions
    ) -> None:
        self._caches, self._requests = opened.caches, None
        everything, shared = list(each_opened(opened.parts)), None
        if len(everything) > 1:
            memory = MemoryBudget(ahead_limit_bytes=0)
            self._requests = _shared_requests(everything, counters, memory, options)
            shared = SharedReading(self._requests, memory, len(everything))
        making = _Making(counters, options, shared)
        self.parts: list[PartReader] = []
        self.companions: list[CompanionReader] = []
        limits = divided_limits(orders, options.memory_limit_bytes)
        first_chunk = first_unit = first_sample = 0
        for name, part, order, limit in zip(opened.indexes, opened.parts, orders, limits, strict=True):
            try:
                own_limit, companion_limits = _limits_with_companions(part, limit)
                reader, budget = making.part_reader(part, order, own_limit)
                first = (order.moves(budget.units), first_chunk, first_unit, first_sample)
                self.parts.append(PartReader(reader, budget, *first))
                owner = len(self.parts) - 1
                for companion, companion_limit in zip(part.companions, companion_limits, strict=True):
                    making.add_companion(companion, order, companion_limit, owner, self.companions, len(orders))
            except BaseException as error:
                self.close()
                if len(orders) == 1 or not isinstance(error, UsageError):
                    raise
                msg = f"the source {name!r}, with {limit} bytes of memory_limit={options.memory_limit_bytes}: "
                hint = "a larger memory_limit=, which sources share as their windows do: this source alone takes "
                raise UsageError(msg + error.message, hint=hint + error.hint) from None
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
        for companion in self.companions:
            companion.reader.close()

    def add_partners(self, owned: list[OwnSamples]) -> None:
        """Append the samples of companions, given the samples of all parts in a span."""
        owned += [OwnSamples()] * len(self.companions)
        for number in reversed(range(len(self.parts), len(owned))):
            companion = self.companions[number - len(self.parts)]
            owned[number] = companion.own(owned[companion.owner].ids)

    def put_together(self, runs: list[Iterator[list[Any]]], owned: Sequence[OwnSamples]) -> None:
        """Replace the samples of all readers in a span by the samples of parts, together with their partners."""
        for number, companion in enumerate(self.companions, len(self.parts)):
            partners = owned[number].rows
            runs[companion.owner] = companion.together(runs[companion.owner], runs[number], partners)
        del runs[len(self.parts) :]


class _Making(NamedTuple):
    """Maker of the readers of all parts and of their companions."""

    counters: Counters
    options: ReadingOptions
    shared: SharedReading | None

    def part_reader(self, opened: Opened, order: ResolvedOrder, limit_bytes: int | None) -> tuple[SampleReader, Budget]:
        """Return the reader of a part, and its budget."""
        options = self.options.limited_to(limit_bytes)
        budget = budget_of(
            order,
            options.memory_limit_bytes,
            is_remote=not opened.store.reads_ahead,
            verifies=options.verify == "always",
            num_sources=self._num_sources,
        )
        return self._reader(opened, budget, options, by_singles=order.by_singles), budget

    def add_companion(
        self,
        companion: Companion,
        order: ResolvedOrder,
        limit_bytes: int | None,
        owner: int,
        readers: list[CompanionReader],
        num_parts: int,
    ) -> None:
        """Append the readers of a companion, and before it of its own companions, which share its limit in bytes."""
        opened, verifies = companion.opened, self.options.verify == "always"
        chosen = companion_units(order, companion, limit_bytes, verifies=verifies)
        is_remote = not opened.store.reads_ahead
        number = num_parts + len(readers) + sum(1 for _ in each_opened([opened])) - 1
        for inner in opened.companions:
            self.add_companion(inner, order, limit_bytes, number, readers, num_parts)
        budget = companion_budget(chosen, order, limit_bytes, is_remote=is_remote, num_sources=self._num_sources)
        reader = self._reader(opened, budget, self.options.limited_to(limit_bytes), by_singles=chosen.are_singles)
        readers.append(CompanionReader(companion.kept.alignment, reader, budget, owner, chosen.by_left, self.counters))

    def _reader(self, opened: Opened, budget: Budget, options: ReadingOptions, *, by_singles: bool) -> SampleReader:
        terms: Any = {"ahead_limit_bytes": budget.ahead_bytes, "options": options}
        if by_singles and not opened.waits:
            return LocalSamples(opened, budget.units, self.counters, **terms)
        kind = RemoteSamples if by_singles else Fetcher
        return kind(opened, budget.units, self.counters, **terms, shared=self.shared)

    @property
    def _num_sources(self) -> int:
        return 1 if self.shared is None else self.shared.num_sources


def _limits_with_companions(part: Opened, limit_bytes: int | None) -> tuple[int | None, list[int | None]]:
    """Divide the memory limit of a part among itself and its companions, in proportion to the bytes of samples.

    Each gets room for some extents, and companions together get at most half.
    """
    if limit_bytes is None or not part.companions:
        return limit_bytes, [None] * len(part.companions)
    means = [_mean_bytes(opened) for opened in (part, *(companion.opened for companion in part.companions))]
    limits: list[int] = []
    for companion, mean_bytes in zip(part.companions, means[1:], strict=True):
        largest_bytes = int(companion.opened.index.extent_decoded_bytes.max(initial=1))
        share = max(round(limit_bytes * mean_bytes / sum(means)), _LEAST_EXTENTS * largest_bytes)
        limits.append(max(1, min(share, limit_bytes // (2 * len(part.companions)))))
    return limit_bytes - sum(limits), [*limits]


def _mean_bytes(opened: Opened) -> float:
    """Return the decoded bytes of an average sample."""
    return max(1.0, float(opened.index.extent_decoded_bytes.sum()) / max(1, opened.index.num_samples))


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
    opened: Sequence[Opened], counters: Counters, memory: MemoryBudget, options: ReadingOptions
) -> RequestPool | None:
    """Return the threads for the requests of all remote sources; None if none waits for threads."""
    remote = [part for part in opened if part.waits]
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

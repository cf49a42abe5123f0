"""Parts of a source that units of a repacking need, to be sent to any machine: no more, and no file of this one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shoal.index.assembly import subset
from shoal.index.table import Index
from shoal.indexing.opened_dataset import Opened
from shoal.order.arrays.index_ranges import Runs
from shoal.order.orders_without_window import Sequential
from shoal.order.sampling.weights_and_classes import Repeats
from shoal.reading.checks.record_checksums import RECORD_CRCS
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.iterating.iterator_specs import WorkerSpec


@dataclass(frozen=True, slots=True, eq=False)
class FixedCounts:
    """Sampling that takes each sample ``times`` times, shape (num_stored,), in every epoch."""

    times: NDArray[np.int64]

    @property
    def num_samples(self) -> int:
        """Number of samples in an epoch, repeats included."""
        return int(self.times.sum())

    def counts(self, *, seed: int, epoch: int) -> NDArray[np.int64]:  # noqa: ARG002  # always the same
        """Return ``times``."""
        return self.times

    @property
    def repeats(self) -> Repeats:
        """Repeats and gaps of an epoch."""
        return Repeats.of(self.num_samples, [(self.times.astype(float), np.ones(len(self.times)))])

    def digest(self) -> str:
        """Return a short hash."""
        return hashlib.blake2b(self.times.astype("<i8").tobytes(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class SpecPart:
    """The part of a source that a span needs, and its first position and sample id in the whole.

    ``is_whole`` says that all spans need the same part.
    """

    spec: WorkerSpec
    first_position: int = 0
    first_id: int = 0
    is_whole: bool = True


def part_of(spec: WorkerSpec, first: int, stop: int) -> SpecPart:
    """Return the shards that hold the positions ``[first, stop)`` of a source in stored order.

    A mixed source stays whole: a window may hold chunks of any shard.
    """
    opened, resolved = spec.opened, spec.resolved
    if not (isinstance(opened, Opened) and isinstance(resolved, ResolvedOrder)) or stop <= first:
        return SpecPart(spec, is_whole=False)
    if not isinstance(resolved.order, Sequential):
        return SpecPart(_with_index(spec, opened, resolved, opened.index, opened.paths))
    index = opened.index
    first_sample = index.extent_first_sample[index.shard_first_extent]
    ids = resolved.epoch(0).ids(first, first + 1), resolved.epoch(0).ids(stop - 1, stop)
    begin, last = np.searchsorted(first_sample, np.concatenate(ids), side="right").tolist()
    shards = range(begin - 1, last)
    first_id, end_id = int(first_sample[begin - 1]), int(first_sample[last])
    before, until = first_id, end_id  # numbers among the samples that take part
    if (stored := resolved.stored) is not None:
        before, inside = stored.count_between(np.array([0, first_id, end_id])).tolist()
        until = before + inside
        members = stored.members(np.arange(before, until)) - first_id
        resolved = replace(resolved, stored=Runs.of(members, end_id - first_id))
    first_position = before
    if resolved.sampling is not None:
        times = resolved.sampling.counts(seed=resolved.seed, epoch=0)
        resolved = replace(resolved, sampling=FixedCounts(times[before:until]))
        first_position = int(times[:before].sum())
    paths = tuple(opened.paths[shard] for shard in shards)
    part = _with_index(spec, opened, resolved, subset(index, shards), paths)
    return SpecPart(part, first_position, first_id, is_whole=False)


def _with_index(
    spec: WorkerSpec, opened: Opened, resolved: ResolvedOrder, index: Index, paths: tuple[str, ...]
) -> WorkerSpec:
    """Return the spec with an index that has only what reading needs, and belongs to no file."""
    columns = {name: column for name, column in index.columns.items() if name == RECORD_CRCS}
    index = replace(index, columns=columns, metadata={})
    check = opened.check.of_part(index, paths)
    opened = replace(opened, index=index, paths=paths, index_path=None, check=check)
    return replace(spec, opened=opened, resolved=replace(resolved, index=index))

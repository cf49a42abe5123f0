"""Samples of a dataset, read through the stream in spans of an order, for processes that repack them."""

from __future__ import annotations

import hashlib
import itertools
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError, ShoalError
from shoal.formats.shard_format import Sample
from shoal.index.assembly import subset
from shoal.index.table import Index
from shoal.indexing.opened_dataset import Opened
from shoal.order.arrays.index_ranges import Runs
from shoal.order.orders_without_window import Sequential
from shoal.order.sampling.weights_and_classes import Repeats
from shoal.pack.from_shards.repack_sources import with_ids_from
from shoal.pack.inputs.duplicates import KEY_FIELDS
from shoal.pack.inputs.repeats import copy_of
from shoal.pack.shards.shard_writer import Named, Unreadable
from shoal.pipeline.stages.running import run_stages
from shoal.pipeline.stages.stage import Stage, in_epoch
from shoal.reading.checks.damaged_samples import Damaged, salvaged_sample
from shoal.reading.checks.record_checksums import RECORD_CRCS
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.iterating.iterator_specs import IteratorSpec, WorkerSpec

SAMPLE = "sample "
"""Prefix of the name of a skipped sample, followed by its number in the source."""


class SpanReader:
    """Reader of consecutive spans of an order; a span that continues the last span costs nothing extra.

    The stages of ``spec`` end with `Numbered`. With ``needs_keys``, samples without a key get their number as key;
    ``renamed`` maps fields to new names. A pickled reader goes to other processes of any machine, and reads each span
    independently. If the reader has only a part of the source, ``first_id`` is the number of its first sample.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        needs_keys: bool,
        renamed: Mapping[str, str] | None = None,
        continues: bool = True,
        first_id: int = 0,
    ) -> None:
        self._spec, self._needs_keys, self._continues, self._first_id = spec, needs_keys, continues, first_id
        self._renamed = dict(renamed or {})
        self._iteration: Iteration | None = None
        self._pending: tuple[int, Sample] | None = None  # read, for a later span
        self._at = -1
        self._whole: SpanReader | None = None
        self._packed: bytes | None = None

    def __reduce__(self) -> tuple[object, ...]:
        if self._packed is None:
            self._packed = pickle.dumps(self._spec)
        return _unpickled, (self._packed, self._needs_keys, self._renamed, self._first_id)

    @property
    def tokenizers(self) -> tuple[str, ...]:
        """Identities of the tokenizers of all tokens."""
        return tuple(dict.fromkeys(itertools.chain.from_iterable(self._spec.tokenizers.values())))

    def alone(self, first: int, stop: int) -> tuple[SpanReader, int]:
        """Return a reader with the needed part of the source for the span ``[first, stop)``, and the span's start."""
        if self._whole is not None:
            return self._whole, first
        part = part_of(self._spec, first, stop)
        pipeline = part.spec.pipeline
        pipeline = replace(pipeline, stages=with_ids_from(pipeline.stages, part.first_id))
        reader = SpanReader(
            replace(part.spec, pipeline=pipeline),
            needs_keys=self._needs_keys,
            renamed=self._renamed,
            continues=False,
            first_id=self._first_id + part.first_id,
        )
        if part.is_whole:
            self._whole = reader  # pickled once for all units
        return reader, first - part.first_position

    def samples(self, first: int, stop: int) -> Iterator[Sample | Named | Unreadable]:
        """Yield the samples at the positions ``[first, stop)``."""
        if self._iteration is None or self._at != first or not self._continues:
            self.close()
            self._iteration = self._begun(first, stop)
        self._at = first
        for sample_id in self._spec.resolved.epoch(0).ids(first, stop).tolist():
            numbered = self._pending or next(self._iteration, None)
            self._at += 1
            if numbered is not None and numbered[0] == sample_id:
                self._pending = None
                yield self._finished(sample_id, numbered[1])
            else:
                self._pending = numbered
                yield self._damaged(sample_id)

    def one_by_one(self, num_samples: int) -> Iterator[Sample | Named | Unreadable]:
        """Yield all samples, for callers that need only the first few."""
        for position in range(num_samples):
            yield from self.samples(position, position + 1)

    def close(self) -> None:
        """Stop reading."""
        iteration, self._iteration, self._pending = self._iteration, None, None
        if iteration is not None:
            iteration.close()

    def _begun(self, first: int, stop: int) -> Iteration:
        """Begin to read at a position, without keeping a state of the iteration."""
        spec = self._spec
        if not self._continues:
            # No read-ahead beyond the span.
            delivered = replace(cast("ResolvedOrder", spec.resolved), delivered=Runs.span(first, stop))
            spec, first = replace(spec, resolved=delivered), 0
        return Iteration(IteratorSpec(spec, 0, first))

    def _finished(self, sample_id: int, sample: Sample) -> Sample | Named:
        sample_id += self._first_id
        if self._renamed:
            sample = {self._renamed.get(name, name): value for name, value in sample.items()}
        if self._needs_keys and "__key__" not in sample:
            sample = {"__key__": f"{sample_id:09d}", **sample}  # nine digits sort like numbers
        # The number of a skipped sample tells which values of the source's columns to drop.
        return Named(f"{SAMPLE}{sample_id}", sample) if self._spec.options.skips else sample

    def _damaged(self, sample_id: int) -> Unreadable:
        """Return the placeholder of a damaged sample, with the error of reading it alone."""
        opened = self._spec.opened
        sample = salvaged_sample(*opened.part_of(sample_id))
        if not isinstance(sample, Damaged):
            stages = in_epoch(self._spec.pipeline.stages, 0)
            sample = run_stages(stages, sample, sample_id, index=opened.index, forgiving=True)
        shard, byte, _ = opened.index.place(sample_id)
        if not isinstance(sample, Damaged):
            error: ShoalError = ShardError(
                "this sample was damaged, but is sound when read again", shard=shard, byte=byte
            )
        elif isinstance(sample.error, ShoalError):
            error = sample.error
        else:
            error = ShardError(f"{type(sample.error).__name__}: {sample.error}", shard=shard, byte=byte)
        return Unreadable(f"{SAMPLE}{sample_id + self._first_id}", error, error.message)


def _unpickled(packed: bytes, needs_keys: bool, renamed: dict[str, str], first_id: int) -> SpanReader:  # noqa: FBT001
    spec = pickle.loads(packed)  # noqa: S301  # of a process of this run
    return SpanReader(spec, needs_keys=needs_keys, renamed=renamed, continues=False, first_id=first_id)


class Numbered(Stage):
    """A stage that pairs a sample with its id."""

    def __call__(self, sample: Any, sample_id: int, /) -> Any:
        """Return the id and the sample."""
        return sample_id, sample


@dataclass(frozen=True, slots=True, eq=False)
class SpanSamples:
    """Samples of one new shard; ``copies`` has the copy number of each, from 0; None if no sample is repeated."""

    reader: SpanReader
    first: int
    stop: int
    copies: NDArray[np.int32] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        reader, first = self.reader.alone(self.first, self.stop)
        return SpanSamples, (reader, first, first + self.stop - self.first, self.copies)

    def __iter__(self) -> Iterator[Sample | Named | Unreadable]:
        samples = self.reader.samples(self.first, self.stop)
        return samples if self.copies is None else map(_as_copy, samples, self.copies.tolist())


def _as_copy(entry: Sample | Named | Unreadable, copy: int) -> Sample | Named | Unreadable:
    """Return a sample with the key of this copy, if its key is a text."""
    if not copy or isinstance(entry, Unreadable):
        return entry
    sample = entry.sample if isinstance(entry, Named) else entry
    name = next((name for name in KEY_FIELDS if name in sample), None)
    if name is None or not isinstance(key := sample[name], str):
        return entry
    sample = {**sample, name: copy_of(key, copy)}
    return Named(entry.name, sample) if isinstance(entry, Named) else sample


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
    """Part of a source for a span, with its first position and sample id in the source; ``is_whole``: for all spans."""

    spec: WorkerSpec
    first_position: int = 0
    first_id: int = 0
    is_whole: bool = True


def part_of(spec: WorkerSpec, first: int, stop: int) -> SpecPart:
    """Return the shards of the positions ``[first, stop)``; a mixed source stays whole, as windows mix all shards."""
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
    before, until = first_id, end_id  # numbers among the selected samples
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
    """Return the spec with an index in memory that has only the columns needed for reading."""
    columns = {name: column for name, column in index.columns.items() if name == RECORD_CRCS}
    index = replace(index, columns=columns, metadata={})
    check = opened.check.of_part(index, paths)
    opened = replace(opened, index=index, paths=paths, index_path=None, check=check)
    return replace(spec, opened=opened, resolved=replace(resolved, index=index))

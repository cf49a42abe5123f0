"""The samples of a dataset by id, for code that requires a list; and the ids of a rank's batches."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex

from shoal.errors import NoSampleError, UsageError
from shoal.indexing.opened_dataset import OpenedDataset
from shoal.pipeline.columns.column_sources import with_chosen
from shoal.pipeline.stages.running import run_stages
from shoal.pipeline.stages.stage import DROPPED, in_epoch, stages_of
from shoal.processes.process_ends import end_with_trainer
from shoal.reading.beside.partners import read_together
from shoal.reading.resolved_order import Resolved
from shoal.stream.dataset_spec import DatasetSpec
from shoal.stream.iterating.iterator_specs import IteratorSpec
from shoal.stream.iterating.shares import shares_of
from shoal.stream.states.iterator_position import Cursor


class _Due(int):
    """A sample id with its epoch, because the current epoch may change before the read."""

    epoch: int

    @classmethod
    def in_epoch(cls, number: int, epoch: int) -> _Due:
        due = cls(number)
        due.epoch = epoch
        return due


class MapView:
    """The stored samples of a dataset by id, after its stages: ``view[i]`` is ``ds[i]``.

    The view ignores order, selections, filters, batches and ranks: request the ids of `Dataset.ids`, or let
    `shoal.torch.BatchSampler` request ids. Each sample takes one read. Random stages use the epoch of the sampler;
    without a sampler, the current epoch of the dataset.

    ``opened`` are the samples that are indexed so far; by default all, which may have to be indexed. With ``filters``,
    a sample that a filter drops raises `NoSampleError`.
    """

    def __init__(
        self,
        spec: DatasetSpec,
        resolved: Resolved,
        cursor: Cursor,
        *,
        opened: OpenedDataset | None = None,
        filters: bool = False,
    ) -> None:
        opened = resolved.all_samples(spec.source) if opened is None else opened
        parts = (with_chosen(part, stages_of(spec.stages, number)) for number, part in enumerate(opened.parts))
        self._opened = opened.with_parts(tuple(parts))
        self._resolved, self._cursor = resolved, cursor
        stages = spec.seeded_stages
        self._stages = stages if filters else tuple(left for stage in stages for left in stage.unfiltered())
        self._formatting = spec.formatting.of(self._opened, self._stages)
        self._verifies = spec.reading.verify == "always"

    def __len__(self) -> int:
        """Return the number of stored samples; ids begin at 0."""
        return self._opened.index.num_samples

    def __getitem__(self, sample_id: SupportsIndex) -> Any:
        """Return the sample with this id."""
        try:
            number = operator.index(sample_id)
        except TypeError:
            msg = f"ds[...] takes one sample id; got {sample_id!r}"
            raise UsageError(msg, hint="take(), skip() and select() choose several") from None
        total = len(self)
        if not -total <= number < total:
            raise NoSampleError(f"there is no sample {number}: the dataset has ids 0 to {total - 1}")
        number %= total
        end_with_trainer()
        sample = read_together(*self._opened.part_of(number), verifies=self._verifies)
        epoch = sample_id.epoch if isinstance(sample_id, _Due) else self._cursor.epoch
        result = run_stages(in_epoch(self._stages, epoch), sample, number, index=self._opened.index)
        if result is DROPPED:
            raise NoSampleError(f"a filter drops sample {number}")
        return self._formatting.sample(result)

    def __getitems__(self, sample_ids: Sequence[SupportsIndex]) -> list[Any]:
        """Return the samples with these ids; torch calls this method to fetch a batch."""
        return [self[sample_id] for sample_id in sample_ids]


def batches_of_ids(spec: IteratorSpec) -> Iterator[list[int]]:
    """Yield the sample ids of each batch of a rank, repeats included, without reading data.

    Without batches, each list has one id.
    """
    work, position = spec.work, spec.position()
    resolved = work.resolved.whole(work.opened, spec.epoch).resolved
    for share, _ in shares_of(resolved.epoch(spec.epoch), work.pipeline, position):
        ids: list[int] = [_Due.in_epoch(number, spec.epoch) for number in share.ids.tolist()]
        if position.partition.batched:
            for first, stop in itertools.pairwise(share.batch_first.tolist()):
                yield ids[first:stop]
        else:
            yield from ([sample_id] for sample_id in ids)

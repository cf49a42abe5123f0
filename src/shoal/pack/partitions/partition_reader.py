"""Reader of a dataset for engines that read in partitions: any process reads spans of samples in stored order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import numpy as np

from shoal.formats.shard_format import Format, Sample
from shoal.indexing.open_source import open_source
from shoal.order.arrays.index_ranges import Runs
from shoal.order.orders_without_window import Sequential
from shoal.order.partition import Partition
from shoal.pipeline.stages.decode import Decode
from shoal.reading.order_request import OrderRequest
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.resolved_order import ResolvedOrder
from shoal.storage.sources.source import SourceLike
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.iterating.iterator_specs import IteratorSpec, WorkerSpec
from shoal.stream.iterating.pipeline_spec import PipelineSpec


class PartitionReader:
    """Samples of a dataset in stored order, by spans. Can be pickled with the index, so send it once a machine.

    ``decode`` decodes fields by their suffix (`Dataset.decode`); other arguments are as for `shoal.open`.

    >>> import tempfile, shoal
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     packed = shoal.pack.pack(({"text": f"document {i}"} for i in range(5)), directory, format="jsonl")
    ...     reader = PartitionReader(directory)
    ...     reader.num_samples, list(reader.samples(3, 5))
    (5, [{'text': 'document 3'}, {'text': 'document 4'}])
    """

    def __init__(
        self,
        source: SourceLike,
        *,
        decode: bool = False,
        split: str | Sequence[str] | None = None,
        index: str | os.PathLike[str] | None = None,
        format: str | Format | None = None,  # noqa: A002  # the word of the public interface
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        opened = open_source(source, split=split, index=index, format=format, storage_options=storage_options)
        self._index = opened.index
        stages = (Decode(()),) if decode else ()
        pipeline = PipelineSpec(Partition(1, 1, batched=False), 0, stages, ())
        order = ResolvedOrder(opened.index, OrderRequest(order=Sequential()))
        self._spec = WorkerSpec(opened, order, pipeline, ReadingOptions())

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return self._index.num_samples

    @property
    def num_bytes(self) -> int:
        """Approximate bytes of all samples, decompressed."""
        return int(self._index.extent_decoded_bytes.sum())

    def spans(self, count: int) -> list[tuple[int, int]]:
        """Cut all samples into at most ``count`` spans of about equal bytes; no span divides an extent."""
        index = self._index
        ends = np.cumsum(index.extent_decoded_bytes)
        shares = np.arange(1, count) / count * self.num_bytes
        firsts = index.extent_first_sample[np.searchsorted(ends, shares, side="right")]
        cuts = np.unique([0, *firsts.tolist(), index.num_samples]).tolist()
        return list(pairwise(cuts))

    def samples(self, first: int, stop: int) -> Iterator[Sample]:
        """Yield the samples ``[first, stop)``, in any process; `ShardError` if one is damaged, or `StorageError`."""
        resolved = replace(cast("ResolvedOrder", self._spec.resolved), delivered=Runs.span(first, stop))
        iteration = Iteration(IteratorSpec(replace(self._spec, resolved=resolved), 0, 0))
        try:
            yield from iteration
        finally:
            iteration.close()

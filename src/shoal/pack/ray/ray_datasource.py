"""Reading shards as a dataset of Ray Data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from shoal.formats.shard_format import Format
from shoal.pack.partitions.partition_reader import PartitionReader
from shoal.pack.ray.ray_library import ray_data, ray_library
from shoal.storage.sources.source import SourceLike

_data = ray_data()

_ROWS_AT_ONCE = 1024


class ShoalDatasource(_data.Datasource):  # type: ignore[misc,name-defined]
    """Source for ``ray.data.read_datasource``: the samples of a dataset as rows, in stored order.

    Each read task reads a span of whole extents. Each machine gets the index once. This source is for processing with
    Ray Data; for training, `shoal.open` streams shuffled samples and can resume.

    Parameters
    ----------
    source, split, index, format, storage_options
        As for `shoal.open`.
    decode
        Decode fields by their suffix (`Dataset.decode`); otherwise rows have the stored fields.

    Raises
    ------
    SourceError
        There is no such dataset.
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
        super().__init__()
        self._reader = PartitionReader(
            source, decode=decode, split=split, index=index, format=format, storage_options=storage_options
        )

    def estimate_inmemory_data_size(self) -> int:
        """Return the approximate bytes of all samples."""
        return self._reader.num_bytes

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: Any = None,  # noqa: ARG002  # the interface of Ray
    ) -> list[Any]:
        """Return about ``parallelism`` tasks with consecutive spans."""
        ray = ray_library()
        reader = ray.put(self._reader)
        limit = {} if per_task_row_limit is None else {"per_task_row_limit": per_task_row_limit}  # unknown to Ray 2.49
        share = self._reader.num_bytes / max(1, self._reader.num_samples)
        return [
            _data.ReadTask(
                _Span(reader, first, stop),
                _data.block.BlockMetadata(
                    num_rows=stop - first,
                    size_bytes=int(share * (stop - first)),
                    exec_stats=None,
                    input_files=None,
                ),
                **limit,
            )
            for first, stop in self._reader.spans(parallelism)
        ]


class _Span:
    """Function that reads a span as blocks."""

    def __init__(self, reader: Any, first: int, stop: int) -> None:
        self._reader, self._first, self._stop = reader, first, stop

    def __call__(self) -> Iterator[Any]:
        reader: PartitionReader = ray_library().get(self._reader)
        rows = reader.samples(self._first, self._stop)
        while batch := list(islice(rows, _ROWS_AT_ONCE)):
            names = dict.fromkeys(name for row in batch for name in row)
            yield _data.block.BlockAccessor.batch_to_block(
                {name: [row.get(name) for row in batch] for name in names}, block_type=_data.block.BlockType.ARROW
            )

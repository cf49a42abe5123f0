"""Datasets of Ray Data written as shards, in write tasks and with one commit; and shards read as such a dataset."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from shoal.errors import UsageError
from shoal.formats.column_paths import Column
from shoal.formats.shard_format import Format
from shoal.formats.tables.arrow_types import arrow_library
from shoal.index.cutting import EXTENT_BYTES
from shoal.pack.output.commit import PackSummary
from shoal.pack.partitions.partition_reader import PartitionReader
from shoal.pack.partitions.partition_writer import PartitionWriter, WrittenPartition
from shoal.pack.ray.ray_tasks import ray_data, ray_library
from shoal.storage.sources.source import SourceLike

_data = ray_data()

_ROWS_AT_ONCE = 1024


class ShoalDatasink(_data.Datasink):  # type: ignore[misc,name-defined]
    """Sink for ``ray.data.Dataset.write_datasink``: a dataset of shards and their index, committed as one.

    Samples keep the order of the dataset, so blocks must keep their order, too:
    ``ds.context.execution_options.preserve_order = True``. Then the same rows and settings give the same bytes, even if
    tasks and the driver die; if a repeated task gets other rows, an error names the shard. Ray joins blocks until they
    have ``shard_bytes``, so few shards are small. A failure removes all written shards. Writing a finished dataset
    again only compares the rows.

    Parameters
    ----------
    url, format, shard_bytes, columns, prefix, extent_bytes, options, storage_options
        As for `shoal.pack.Writer`; shards are named ``PREFIX-TASK-NUMBER``, with six digits each. Table formats take
        the schema of the dataset.

    Attributes
    ----------
    summary : PackSummary or None
        Summary of the committed dataset.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        format: str,  # noqa: A002  # the word of the public interface
        shard_bytes: int | str | None = None,
        columns: Sequence[str | Column] = (),
        prefix: str = "shard",
        extent_bytes: int | str = EXTENT_BYTES,
        options: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._writer = PartitionWriter(
            url, format=format, shard_bytes=shard_bytes, columns=columns, prefix=prefix, extent_bytes=extent_bytes,
            options=options, storage_options=storage_options,
        )  # fmt: skip
        self.summary: PackSummary | None = None
        self._has_begun = False

    @property
    def min_bytes_per_write(self) -> int:
        """Least bytes of blocks for a task."""
        return self._writer.shard_bytes

    def on_write_start(self, schema: Any = None) -> None:
        """Check, on the driver, that this sink may write here; `UsageError` if not."""
        self._writer.begin(_plain(schema))
        self._has_begun = True

    def write(self, blocks: Iterable[Any], ctx: Any) -> WrittenPartition:
        """Write the rows of a task as shards; `UsageError` if blocks may change places."""
        if not _data.DataContext.get_current().execution_options.preserve_order:  # only tasks know this option
            msg = "Ray Data may hand blocks on in any order, so that the same rows would give other shards each time"
            raise UsageError(msg, hint="ds.context.execution_options.preserve_order = True, before ds.write_datasink()")
        return self._writer.write(int(ctx.task_idx), _rows(blocks))

    def on_write_complete(self, write_result: Any) -> None:
        """Write the index, on the driver."""
        if not self._has_begun:
            self._writer.begin()  # Ray does not begin without a block
        self.summary = self._writer.commit(write_result.write_returns)

    def on_write_failed(self, error: Exception) -> None:  # noqa: ARG002  # the interface of Ray
        """Remove the written shards, on the driver."""
        if self._has_begun:
            self._writer.abort()


def _rows(blocks: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for block in blocks:
        accessor = _data.block.BlockAccessor.for_block(block)
        yield from accessor.iter_rows(public_row_format=True)


def _plain(schema: Any) -> Any:
    """Return a pyarrow schema without Ray's own types, which shards do not have; else None."""
    pa = arrow_library("Ray Data")
    is_plain = isinstance(schema, pa.Schema) and not any(
        isinstance(kind, pa.BaseExtensionType) for kind in schema.types
    )
    return schema.remove_metadata() if is_plain else None


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
                    num_rows=stop - first, size_bytes=int(share * (stop - first)), exec_stats=None, input_files=None
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

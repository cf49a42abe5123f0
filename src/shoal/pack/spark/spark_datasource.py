"""Spark's tables as shards: ``df.write.format("shoal")`` and ``spark.read.format("shoal")``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.errors import UsageError
from shoal.figures import parse_bytes
from shoal.formats.shard_format import Sample
from shoal.hints import did_you_mean
from shoal.index.cutting import EXTENT_BYTES
from shoal.indexing.open_source import open_source
from shoal.indexing.opened_dataset import Opened
from shoal.pack.partitions.partition_reader import PartitionReader
from shoal.pack.partitions.partition_writer import PartitionWriter, WrittenPartition
from shoal.pack.spark.spark_rows import arrow_schema_of, batches_of, samples_of, schema_of_dataset, types_of
from shoal.pack.spark.spark_tasks import spark_library

spark_library()
from pyspark import TaskContext  # noqa: E402  # after the check
from pyspark.sql.datasource import (  # noqa: E402
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

_READER_OPTIONS = ("path", "decode", "split", "format", "partition_bytes", "storage_options")
_WRITER_OPTIONS = (
    "path", "format", "shard_bytes", "columns", "prefix", "extent_bytes", "options", "storage_options", "sort",
)  # fmt: skip

_PARTITION_BYTES = 128 << 20


def register(spark: Any) -> None:
    """Make the format ``"shoal"`` known to a session, to read and write tables with."""
    spark.dataSource.register(ShoalDataSource)


class ShoalDataSource(DataSource):  # type: ignore[misc]
    """The format ``"shoal"`` of Spark's tables.

    Reading gives the samples of a dataset in stored order, by spans of about ``partition_bytes`` (128 MiB). Tables and
    MDS shards list their columns; otherwise, the first 1000 samples determine the columns, and a later sample with
    another field is an error.
    ``.schema(...)`` names columns instead, and leaves out other fields. Fields of a tar are bytes, unless the option
    ``decode`` is ``true``.

    Writing makes shards of each partition of a table, in their order; the driver commits all with one index. The number
    of a partition, its rows and the options decide names and bytes of its shards. A repeated attempt makes the same
    shards; if its rows differ, an error names the shard. Spark refuses the mode ``errorifexists``; ``append`` writes
    into a directory without a dataset. Nothing is ever replaced.
    """

    _infers_schema = False

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "shoal"

    def schema(self) -> Any:
        """Return the schema of a dataset, if the user gave none."""
        self._infers_schema = True
        return schema_of_dataset(*self._opened())

    def reader(self, schema: Any) -> ShoalReader:
        """Return the reader of a dataset."""
        _, reader = self._opened()
        span_bytes = parse_bytes(self.options.get("partition_bytes", _PARTITION_BYTES), "partition_bytes")
        num_spans = max(1, -(-reader.num_bytes // span_bytes))
        return ShoalReader(reader, schema, num_spans, has_all_fields=self._infers_schema)

    def _opened(self) -> tuple[Opened, PartitionReader]:
        options = dict(self.options)
        _check_names(options, _READER_OPTIONS)
        split, stored = options.get("split"), _json_of(options, "storage_options")
        path, shard_format = _path_of(options), options.get("format")
        opened = open_source(path, split=split, format=shard_format, storage_options=stored or None)
        decode = options.get("decode", "false").lower() == "true"
        return opened, PartitionReader(
            path, decode=decode, split=split, format=shard_format, storage_options=stored or None
        )

    def writer(self, schema: Any, overwrite: bool) -> ShoalWriter:  # noqa: FBT001  # the interface of pyspark
        """Return the writer of a table."""
        if overwrite:
            msg = "a dataset of shards is never replaced, so there is no mode('overwrite')"
            raise UsageError(msg, hint="use mode('append') with a new directory")
        options = dict(self.options)
        _check_names(options, _WRITER_OPTIONS)
        format_name = options.get("format", "parquet")
        format_options = _json_of(options, "options")
        types = {name: value for name, value in types_of(schema, format_name).items() if name not in format_options}
        table_schema = types.pop("schema", None)
        writer = PartitionWriter(
            _path_of(options),
            format=format_name,
            shard_bytes=options.get("shard_bytes"),
            columns=_names_of(options, "columns"),
            prefix=options.get("prefix", "shard"),
            extent_bytes=options.get("extent_bytes", EXTENT_BYTES),
            options={**types, **format_options},
            storage_options=_json_of(options, "storage_options"),
        )
        writer.begin(table_schema)
        return ShoalWriter(writer, _names_of(options, "sort"))


class ShoalReader(DataSourceReader):  # type: ignore[misc]
    """Reader of a dataset, by spans; sent to tasks with the index."""

    def __init__(self, reader: PartitionReader, schema: Any, num_spans: int, *, has_all_fields: bool) -> None:
        self._reader, self._schema = reader, arrow_schema_of(schema)
        self._num_spans, self._has_all_fields = num_spans, has_all_fields

    def partitions(self) -> Sequence[InputPartition]:
        """Return the spans, one a task."""
        return [InputPartition(span) for span in self._reader.spans(self._num_spans)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the samples of a span as record batches."""
        samples = self._reader.samples(*partition.value)
        yield from batches_of(samples, self._schema, has_all_fields=self._has_all_fields)


@dataclass(frozen=True)
class Written(WriterCommitMessage):  # type: ignore[misc]
    """Message of a task to the driver: its shards, and the sort keys of its first and last row."""

    partition: WrittenPartition
    keys: tuple[tuple[Any, ...], ...] = ()


class ShoalWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writer of a table; the driver makes it and sends it to tasks. With ``sort``, the order of rows is checked."""

    def __init__(self, writer: PartitionWriter, sort: Sequence[str]) -> None:
        self._writer, self._sort = writer, tuple(sort)

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write the rows of this task's partition."""
        number = TaskContext.get().partitionId()
        ends: list[tuple[Any, ...]] = []
        rows = samples_of(iterator)
        if self._sort:
            rows = _sorted(rows, self._sort, ends)
        return Written(self._writer.write(number, rows), tuple(ends))

    def commit(self, messages: Sequence[Written | None]) -> None:
        """Write the index; the dataset exists from then on."""
        present = (message for message in messages if message is not None)
        written = sorted(present, key=lambda message: message.partition.partition)
        last: tuple[Any, ...] | None = None
        for message in written:
            if message.keys and last is not None and message.keys[0] < last:
                raise _unsorted(self._sort, f"partition {message.partition.partition} begins before the one before it")
            last = message.keys[-1] if message.keys else last
        self._writer.commit(message.partition for message in written)

    def abort(self, messages: Sequence[Written | None]) -> None:  # noqa: ARG002  # the interface of pyspark
        """Remove the written shards."""
        self._writer.abort()


def _sorted(rows: Iterable[Sample], names: Sequence[str], ends: list[tuple[Any, ...]]) -> Iterator[Sample]:
    """Yield rows that must be sorted, and put the keys of the first and the last row into ``ends``."""
    last: tuple[Any, ...] | None = None
    for number, row in enumerate(rows):
        try:
            key = tuple(map(_rank, map(row.__getitem__, names)))
        except KeyError as error:
            msg = f"the table has no column {error.args[0]!r} to be sorted by"
            raise UsageError(msg, hint=f"its columns are {', '.join(row)}") from None
        if last is None:
            ends += [key, key]
        elif key < last:
            raise _unsorted(names, f"in a partition, row {number} sorts before row {number - 1}")
        ends[1] = last = key
        yield row


def _rank(value: Any) -> tuple[Any, ...]:
    """Return a key that compares as Spark sorts: None first, NaN last."""
    if value is None:
        return (0,)
    return (1, value) if value == value else (2,)  # noqa: PLR0124


def _unsorted(names: Sequence[str], why: str) -> UsageError:
    by = ", ".join(map(repr, names))
    msg = f"the rows are not sorted by {by}: {why}"
    hint = f"df.repartitionByRange({by}).sortWithinPartitions({by}); or shoal.pack.spark.write(df, url, key=[{by}])"
    return UsageError(msg, hint=hint)


def _check_names(options: Mapping[str, str], known: Sequence[str]) -> None:
    for name in options:
        if name.lower() not in known:
            msg = f"the format shoal has no option {name!r}"
            raise UsageError(msg, hint=f"{did_you_mean(name, known)}it has {', '.join(known)}")


def _path_of(options: Mapping[str, str]) -> str:
    if "path" not in options:
        raise UsageError("there is no path", hint="save(url) when writing, load(url) when reading")
    return options["path"]


def _names_of(options: Mapping[str, str], name: str) -> list[str]:
    return [word.strip() for word in options.get(name, "").split(",") if word.strip()]


def _json_of(options: Mapping[str, str], name: str) -> dict[str, Any]:
    text = options.get(name, "{}")
    try:
        options_in = json.loads(text)
    except ValueError:
        options_in = None
    if not isinstance(options_in, dict):
        msg = f"{name} must be a JSON object, but is {text!r:.80}"
        raise UsageError(msg, hint=f"""option("{name}", '{{"compression": "zstd"}}'), for instance""")
    return options_in

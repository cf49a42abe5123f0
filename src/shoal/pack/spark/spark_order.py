"""The order of a table's rows without ties, and the first row of each shard.

Partitions of Spark cannot be planned: they follow from random samples of a table, and change with the cluster. The plan
uses a stable order of rows: by key, then by a hash of the row, then by all columns. A pass over row sizes finds
the first row of each shard, as for files (`shoal.pack.shards.shard_plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.tables.arrow_types import arrow_library
from shoal.hints import did_you_mean

_BYTES, _HASH = "__shoal_bytes", "__shoal_hash"
_TAR_BLOCK = 512
_SPAN = ("shard", "partition", "first", "stop", "bytes")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rows and bytes of each partition of the sorted table, and a hash of all rows in any order."""

    num_rows: list[int]
    num_bytes: list[int]
    rows_hash: str

    @property
    def total_rows(self) -> int:
        """Number of rows."""
        return sum(self.num_rows)

    @property
    def total_bytes(self) -> int:
        """Bytes of all rows."""
        return sum(self.num_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Rows ``[first, stop)`` of a partition that belong to a shard."""

    shard: int
    partition: int
    first: int
    stop: int
    num_bytes: int


def check_table(df: Any, keys: Sequence[str]) -> None:
    """Raise `UsageError` if a table cannot be sorted by some columns, and then by all others."""
    names = df.columns
    if len(set(names)) < len(names):
        msg = f"several columns of the table have one name: {', '.join(names)}"
        raise UsageError(msg, hint="df.withColumnRenamed(), or select() columns to write")
    for key in keys:
        if key not in names:
            msg = f"the table has no column {key!r} to be sorted by"
            raise UsageError(msg, hint=f"{did_you_mean(key, names)}its columns are {', '.join(names)}")
    if not keys:
        msg = "there is no key to sort the rows by"
        raise UsageError(msg, hint="key='...'; df.write.format('shoal') takes partitions as they are")
    for field in df.schema:
        if kind := _unordered(field.dataType):
            msg = f"the column {field.name!r} has the type {kind}, which Spark cannot order"
            raise UsageError(msg, hint=f"write it as text: pyspark.sql.functions.to_json({field.name!r})")


def _unordered(kind: Any) -> str:
    """Return the first type inside this type that Spark cannot sort; "" if there is none."""
    name: str = kind.typeName()
    if name in ("map", "variant", "udt", "interval"):
        return name
    inside = [field.dataType for field in kind.fields] if name == "struct" else []
    inside += [kind.elementType] if name == "array" else []
    return next(filter(None, map(_unordered, inside)), "")


def ordered_table(df: Any, keys: Sequence[str], format_name: str, num_partitions: int | None) -> Any:
    """Return the table in an order without ties, with the size and the hash of each row."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # as everywhere

    is_tar = format_name.partition(".")[0] == "tar"
    sizes = [_size(F, field, is_tar=is_tar) for field in df.schema]
    sized = df.withColumns({_BYTES: sum(sizes[1:], sizes[0]), _HASH: F.xxhash64(*map(_column(F), df.columns))})
    by = [_column(F)(key) for key in keys]
    ranges = sized.repartitionByRange(*([num_partitions] if num_partitions else []), *by, F.col(_HASH))
    # Collations may call different values equal.
    rest = [_column(F)(field.name).cast("binary") if field.dataType.typeName() == "string" else _column(F)(field.name)
            for field in df.schema]  # fmt: skip
    return ranges.sortWithinPartitions(*by, F.col(_HASH), *rest)


def _column(functions: Any) -> Callable[[str], Any]:
    return lambda name: functions.col(f"`{name.replace('`', '``')}`")


def _size(functions: Any, field: Any, *, is_tar: bool) -> Any:
    """Return the approximate bytes of a column in a shard, as an expression."""
    column, kind = _column(functions)(field.name), field.dataType.typeName()
    if kind in ("string", "binary"):
        size = functions.octet_length(column)
    elif kind in ("struct", "array"):
        size = functions.octet_length(functions.to_json(functions.struct(column)))
    else:
        size = functions.lit(8)
    size = functions.coalesce(size.cast("long"), functions.lit(0))
    if is_tar and field.name == "__key__":
        return functions.lit(0)
    return functions.ceil(size / _TAR_BLOCK) * _TAR_BLOCK + _TAR_BLOCK if is_tar else size + 4


def sizes_of(ordered: Any) -> Sizes:
    """Return the sizes of a table in order."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    sums = ordered.groupBy(F.spark_partition_id().alias("partition")).agg(
        F.count("*").alias("rows"),
        F.sum(_BYTES).alias("bytes"),
        F.sum(F.col(_HASH).cast("decimal(38,0)")).alias("hash"),
    )
    by_number = {row["partition"]: row for row in sums.collect()}
    rows = [by_number.get(number) for number in range(max(by_number, default=-1) + 1)]
    return Sizes(
        [int(row["rows"]) if row else 0 for row in rows],
        [int(row["bytes"]) if row else 0 for row in rows],
        str(sum(int(row["hash"]) for row in rows if row)),
    )


def spans_of(ordered: Any, sizes: Sizes, shard_bytes: int) -> list[Span]:
    """Return the rows of each partition for each shard; a row belongs to the share of bytes in which it begins."""
    num_shards = max(1, min(sizes.total_rows, -(-sizes.total_bytes // shard_bytes)))
    befores = list(accumulate(sizes.num_bytes, initial=0))
    find = _FindSpans(befores, sizes.total_bytes, num_shards)
    spans = ordered.select(_BYTES).mapInArrow(find, ", ".join(f"{name} long" for name in _SPAN))
    return sorted((Span(*map(int, row)) for row in spans.collect()), key=lambda span: (span.partition, span.first))


class _FindSpans:
    """Function of a task; ``befores`` has the bytes of all rows before each partition."""

    def __init__(self, befores: Sequence[int], total: int, num_shards: int) -> None:
        self._befores, self._total, self._num_shards = befores, total, num_shards

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext  # noqa: PLC0415

        partition = TaskContext.get().partitionId()
        sizes = [batch.column(0).to_numpy(zero_copy_only=False) for batch in batches]
        num_bytes = np.concatenate(sizes) if sizes else np.zeros(0, dtype=np.int64)
        if len(num_bytes):
            yield _batch(
                spans_of_partition(num_bytes, self._befores[partition], self._total, self._num_shards, partition)
            )


def spans_of_partition(
    num_bytes: NDArray[np.int64], before: int, total: int, num_shards: int, partition: int
) -> NDArray[np.int64]:
    """Return the spans of a partition; shape (num_spans, 5).

    >>> spans_of_partition(np.array([5, 5, 5, 5]), 10, 30, 2, 7).tolist()
    [[0, 7, 0, 1, 5], [1, 7, 1, 4, 15]]
    """
    ends = before + np.cumsum(num_bytes)
    begins = ends - num_bytes
    # A row belongs to the last share that does not begin after it. Shares begin at whole bytes, as in `plan_shards`.
    first = int(begins[0]) * num_shards // max(1, total)
    last = int(begins[-1]) * num_shards // max(1, total)
    shards = np.arange(max(0, first), min(num_shards - 1, last + 1) + 1)
    borders = np.array([total * int(shard) // num_shards for shard in shards], dtype=np.int64)
    of_rows = shards[np.maximum(0, np.searchsorted(borders, begins, side="right") - 1)]
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(of_rows)) + 1, [len(of_rows)]])
    sums = np.add.reduceat(num_bytes, cuts[:-1])
    rows = [of_rows[cuts[:-1]], np.full(len(sums), partition), cuts[:-1], cuts[1:], sums]
    return np.stack(rows, axis=1)


def _batch(spans: NDArray[np.int64]) -> Any:
    pa = arrow_library("a table of Spark")
    return pa.RecordBatch.from_arrays([pa.array(column) for column in spans.T.copy()], names=list(_SPAN))


def plain_rows(ordered: Any) -> Any:
    """Return an ordered table without the added columns."""
    return ordered.drop(_BYTES, _HASH)

"""`shoal.pack.spark.write`: a table of Spark, sorted by a key, as shards of equal size.

One shuffle sorts the table (`shoal.pack.spark.spark_order`), another brings the rows of a shard into one task.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from shoal.figures import parse_bytes
from shoal.formats.column_paths import Column, as_columns
from shoal.formats.writing.written_formats import encoder_named
from shoal.index.cutting import EXTENT_BYTES
from shoal.pack.jobs.pack_job import PackJob, Units
from shoal.pack.jobs.unit_job import UnitProgress
from shoal.pack.output.commit import PackSummary
from shoal.pack.output.destination import Output
from shoal.pack.output.output_names import check_prefix, names_of_shards, plan_of, shard_settings
from shoal.pack.shards.shard_plan import PackPlan
from shoal.pack.shards.shard_sizes import shard_sizing
from shoal.pack.shards.shard_writer import Shard
from shoal.pack.spark.spark_order import Sizes, Span, check_table, ordered_table, plain_rows, sizes_of, spans_of
from shoal.pack.spark.spark_rows import samples_of, types_of
from shoal.pack.spark.spark_tasks import context_of, counting, noting_errors, own_errors

_ROW, _SHARD = "__shoal_row", "__shoal_shard"
_SPAN = ("__shoal_partition", "__shoal_first", "__shoal_stop")
_BATCH_ROWS, _AT_ONCE_BYTES = "spark.sql.execution.arrow.maxRecordsPerBatch", 4 << 20
_ROW_BITS = 33  # of monotonically_increasing_id, below the number of the partition


def write(
    df: Any,
    url: str | os.PathLike[str],
    *,
    key: str | Sequence[str],
    format: str = "parquet",  # noqa: A002  # the word of the public interface
    shard_bytes: int | str | None = None,
    num_readers: int = 1,
    columns: Sequence[str | Column] = (),
    prefix: str = "shard",
    extent_bytes: int | str = EXTENT_BYTES,
    num_partitions: int | None = None,
    options: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: UnitProgress | None = None,
) -> PackSummary:
    """Write a table of Spark as shards of equal size, sorted by a key, and commit them with one index.

    The rows and the arguments alone decide names and bytes of the shards; partitions, executors and attempts have no
    influence. A hash orders rows of equal keys. If the driver dies, the same call makes only missing shards.

    The table is computed once and kept on the disks of the executors during the call; rows are shuffled twice.

    Parameters
    ----------
    df
        A `pyspark.sql.DataFrame` without maps, variants and user-defined types, which Spark cannot order.
    url, format, columns, prefix, extent_bytes, options, storage_options
        As for `shoal.pack.Writer`. Columns of tables and MDS have the types of ``df``.
    key
        The sort column, or columns; ascending, and nulls first.
    shard_bytes
        Approximate upper limit for the rows of a shard, before compression; shards are cut evenly, so none is small.
        None for the rule of `shard_sizing` for ``num_readers`` readers.
    num_partitions
        Partitions of the sorted table; None leaves it to Spark. It has no influence on the result.
    progress
        Called with the number of finished shards and the total.

    Returns
    -------
    PackSummary
        Shards with their digests.

    Raises
    ------
    UsageError
        The destination already holds something else, the table has no such column, or the format cannot hold a row.
    StorageError
        A shard cannot be written, in all attempts of Spark.
    WorkerError
        Spark gave up for another reason.
    """
    context_of(df.sparkSession)
    keys = [key] if isinstance(key, str) else list(key)
    check_table(df, keys)
    check_prefix(prefix)
    shard = Shard(
        "", format, {**types_of(df.schema, format), **(options or {})}, as_columns(columns),
        parse_bytes(extent_bytes, "extent_bytes"),
    )  # fmt: skip
    suffix = encoder_named(format, **shard.options).suffix
    from pyspark import StorageLevel  # noqa: PLC0415  # optional

    with own_errors():
        ordered = ordered_table(df, keys, format, num_partitions).persist(StorageLevel.DISK_ONLY)
    try:
        with own_errors():
            sizes = sizes_of(ordered)
        if shard_bytes is None:
            shard_bytes = shard_sizing(sizes.total_bytes, num_readers=num_readers).shard_bytes
        num_bytes = parse_bytes(shard_bytes, "shard_bytes")
        settings = _settings(df, keys, sizes, shard, num_bytes, prefix, options or {})
        out = Output(url, plan=plan_of(settings), storage_options=storage_options)
        finished = out.begin(suffix=suffix, settings=settings, shared=True)
        out.release()
        if finished is not None:
            return PackJob(out, finished).finish()
        with own_errors():
            spans = spans_of(ordered, sizes, num_bytes)
        units = _units(spans, shard, prefix, suffix)
        job = PackJob(out, units)
        if missing := job.missing():
            with _rows_at_once(df.sparkSession, max(1, _AT_ONCE_BYTES * sizes.total_rows // max(1, sizes.total_bytes))):
                _pack(out, units, ordered, missing, progress)
        return job.finish()
    finally:
        ordered.unpersist()


@dataclass(frozen=True, slots=True, eq=False)
class SortedUnits(Units):
    """Units whose rows come through a shuffle of Spark."""

    spans: Sequence[Span]

    def samples(self, number: int) -> tuple[()]:  # noqa: ARG002  # of any unit
        """Return no rows: Spark hands them to a task."""
        return ()


def _settings(
    df: Any, keys: list[str], sizes: Sizes, shard: Shard, shard_bytes: int, prefix: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all settings that decide the shards, to recognise an unfinished packing."""
    return {
        "spark": 1,
        "rows": sizes.rows_hash,
        "num_rows": sizes.total_rows,
        "schema": df.schema.simpleString(),
        "key": keys,
        **shard_settings(
            shard.format, shard_bytes=shard_bytes, columns=shard.columns, prefix=prefix,
            extent_bytes=shard.extent_bytes, options=options,
        ),
    }  # fmt: skip


def _units(spans: Sequence[Span], common: Shard, prefix: str, suffix: str) -> SortedUnits:
    # A row larger than a shard leaves shares of the bytes without a row.
    numbers = {share: number for number, share in enumerate(sorted({span.shard for span in spans}))}
    spans = [replace(span, shard=numbers[span.shard]) for span in spans]
    num_rows, num_bytes = np.zeros((2, len(numbers)), dtype=np.int64)
    for span in spans:
        num_rows[span.shard] += span.stop - span.first
        num_bytes[span.shard] += span.num_bytes
    plan = PackPlan(np.concatenate([[0], np.cumsum(num_rows)]), num_bytes)
    return SortedUnits(plan, names_of_shards(prefix, suffix, range(len(numbers))), common, spans)


@contextmanager
def _rows_at_once(session: Any, num_rows: int) -> Iterator[None]:
    """Let Spark hand rows to Python a few MiB at a time: by default 10,000 rows of any size."""
    known = session.conf.get(_BATCH_ROWS)
    session.conf.set(_BATCH_ROWS, str(min(num_rows, int(known)) if int(known) > 0 else num_rows))
    try:
        yield
    finally:
        session.conf.set(_BATCH_ROWS, known)


def _pack(out: Output, units: SortedUnits, ordered: Any, missing: Sequence[int], progress: UnitProgress | None) -> None:
    """Send the rows of each missing shard to one task, and write the shards."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    shards, session = set(missing), ordered.sparkSession
    spans = [(span.shard, span.partition, span.first, span.stop) for span in units.spans if span.shard in shards]
    with counting(session.sparkContext, len(units), missing, progress) as finished, own_errors():
        where = session.createDataFrame(spans, ", ".join(f"{name} long" for name in (_SHARD, *_SPAN)))
        rows = plain_rows(ordered).withColumn(_ROW, F.monotonically_increasing_id())
        number = F.col(_ROW).bitwiseAND((1 << _ROW_BITS) - 1)
        is_in_span = F.shiftright(_ROW, _ROW_BITS) == F.col(_SPAN[0])
        is_in_span &= (number >= F.col(_SPAN[1])) & (number < F.col(_SPAN[2]))
        placed = rows.join(F.broadcast(where), is_in_span).drop(*_SPAN)
        # By a hash: a task may get several shards, or none. For ranges Spark would compute a sample first.
        by_shard = placed.repartition(len(missing), _SHARD).sortWithinPartitions(_SHARD, _ROW)
        by_shard.mapInArrow(_PackShards(out, replace(units, spans=()), finished), "shard long").collect()


class _PackShards:
    """Function of a task: makes the shards of its rows, one after another."""

    def __init__(self, out: Output, units: SortedUnits, finished: Any) -> None:
        self._out, self._units, self._finished = out, units, finished

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        with noting_errors():
            for number, rows in groupby(samples_of(batches), key=itemgetter(_SHARD)):
                own = ({name: row[name] for name in row if name not in (_SHARD, _ROW)} for row in rows)
                replace(self._units.unit(number), inputs=own).run(self._out, lambda _, __: None)
                self._finished += 1
        yield from ()

"""Schemas of tables made from other shards, determined before the first row is written.

Parquet row groups and Arrow batches have the columns of their shard, and all shards have the same columns. For some
formats the columns are known; for others all samples are inspected first, by as many processes as make the shards, and
only names and types are kept. So no run fails after hours on a field that appears late.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from shoal.formats.tables.column_kinds import ColumnKind, ColumnKinds, joined_kinds, schema_of_kinds
from shoal.formats.tables.pyarrow_library import arrow_library
from shoal.formats.tar.reader import Tar
from shoal.indexing.open_source import Opened
from shoal.indexing.scan.costs import ReadCosts
from shoal.indexing.scan.ranges import reading_one
from shoal.pack.destination import Output
from shoal.pack.engines.jobs import CameTo, Looked, SchemaLook, peak_bytes
from shoal.pack.engines.running import done_jobs
from shoal.pack.from_shards.stream_source import SpanReader, SpanSamples

_NOTE = "schema"


@dataclass(frozen=True, slots=True)
class Schema:
    """A pyarrow schema, the number of samples inspected for it, and the peak memory of all processes together."""

    schema: Any
    num_looked_at: int
    peak_bytes: int


def schema_of_all(
    reader: SpanReader,
    out: Output,
    *,
    cuts: list[int],
    format_name: str,
    skips: bool,
    workers: int,
    came_to: CameTo,
) -> Schema:
    """Return the schema that holds all samples of ``reader``.

    No sample is inspected if an earlier run of the same packing did so. ``cuts``, from 0 to the number of samples,
    are the borders of jobs; with ``skips``, samples that are damaged or do not fit the columns of earlier ones are
    ignored. Memory: 1 MiB of samples for each of the ``workers``, and the names.

    Raises
    ------
    UsageError
        No columns hold all samples; the error tells from which sample on they do not fit the earlier ones.
    ShardError
        A sample is damaged.
    """
    pa = arrow_library(format_name)
    known = out.noted(_NOTE)
    if known is not None:
        return Schema(pa.ipc.read_schema(pa.py_buffer(known)), 0, 0)
    found: dict[int, Looked] = {}
    peaks: dict[int, int] = {}
    looks = _looks(reader, cuts, format_name, skips=skips)
    for looked in done_jobs(looks, out, num_workers=workers, came_to=came_to):
        found[looked.number] = looked
        peaks[looked.process] = looked.peak_bytes
        came_to(looked.number, 1.0)
    kinds: ColumnKinds = {}
    for number in range(len(cuts) - 1):
        kinds = joined_kinds(kinds, found[number].kinds, skips=skips)
    schema = schema_of_kinds(kinds)
    out.note(_NOTE, schema.serialize().to_pybytes())
    peaks[os.getpid()] = peak_bytes()
    return Schema(schema, cuts[-1], sum(peaks.values()))


def schema_of_tars(opened: Opened) -> Schema | None:
    """Return the schema of all samples of tars as stored, from the names of their members: no payload is read.

    None if the shards are not tars.

    Raises
    ------
    UsageError
        There are more fields than a table may have columns.
    ShardError
        A shard is damaged.
    """
    index, tar = opened.index, opened.format
    if not isinstance(tar, Tar):
        return None
    pa, costs = arrow_library("a table"), ReadCosts()
    kinds: dict[str, ColumnKind] = {"__key__": ColumnKind(pa.string())}
    for name, path, num_bytes in zip(index.shard_names, opened.paths, index.shard_bytes.tolist(), strict=True):
        with reading_one(opened.store, path, num_bytes, costs=costs) as read:
            kinds |= dict.fromkeys(tar.fields(read, num_bytes, shard=name), ColumnKind(pa.binary()))
    return Schema(schema_of_kinds(joined_kinds({}, kinds, skips=False)), index.num_samples, peak_bytes())


def _looks(reader: SpanReader, cuts: list[int], format_name: str, *, skips: bool) -> Iterator[SchemaLook]:
    for number, (first, stop) in enumerate(pairwise(cuts)):
        yield SchemaLook(number, SpanSamples(reader, first, stop), stop - first, first, format_name, skips)

"""Writer for engines that hand out rows in partitions: a task writes the shards of a partition, the driver commits all.

The number of the partition, its rows and the settings decide names and contents of shards, so a repeated attempt makes
the same shards. The engine decides the partition of each row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.figures import parse_bytes
from shoal.formats.column_paths import Column, as_columns
from shoal.formats.shard_format import Sample
from shoal.formats.writing.encoder import EncodedRecord
from shoal.formats.writing.written_formats import TABLE_FORMATS, encoder_named, options_of_shard
from shoal.index.cutting import EXTENT_BYTES
from shoal.index.table import Index
from shoal.pack.output.cleaning import clean, remove_shards
from shoal.pack.output.commit import Committed, PackSummary, commit_groups, summaries_of
from shoal.pack.output.destination import Output
from shoal.pack.output.output_names import check_prefix, plan_of, shard_settings
from shoal.pack.output.part_groups import PartGroup, merged_groups
from shoal.pack.shards.column_values import values_in
from shoal.pack.shards.shard_sizes import shard_sizing
from shoal.pack.shards.shard_writer import Shard, ShardSummary, ShardWriter, summary_of
from shoal.storage.files.atomic_writes import UnfinishedObject
from shoal.storage.store_protocol import Buffer, ObjectInfo
from shoal.storage.urls import join, without_secrets

_RUN = "run"
_SMALL_SHARE = 4  # less than a quarter of a shard joins the previous shard

_Encoded = tuple[EncodedRecord, Sequence[Any], Sample, int]


@dataclass(frozen=True, slots=True)
class WrittenPartition:
    """Result of a task, for the driver to commit: number and shards of a partition, in order."""

    partition: int
    shards: tuple[ShardSummary, ...]


class PartitionWriter:
    """Writer of the partitions of one dataset; the driver calls `begin`, tasks `write`, the driver `commit` or `abort`.

    Can be pickled. Samples are ordered by partition number, then by row. A shard ends before it would exceed
    ``shard_bytes``; less than a quarter of a shard at the end of a partition joins the last shard. Arguments are as for
    `shoal.pack.Writer`; shards are named ``PREFIX-PARTITION-NUMBER``, with six digits each.

    The last driver that began with the same settings may write, and tasks of earlier drivers end with an error. Nothing
    is replaced: a shard of another run or attempt must have the same bytes. A finished dataset is only compared.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     writer = PartitionWriter(directory, format="jsonl")
    ...     writer.begin()
    ...     done = [writer.write(number, [{"text": f"row {number}"}]) for number in (1, 0)]
    ...     [shard.name for shard in writer.commit(done).shards]
    ['shard-000000-000000.jsonl', 'shard-000001-000000.jsonl']
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
        self.shard_bytes = (
            shard_sizing().shard_bytes if shard_bytes is None else parse_bytes(shard_bytes, "shard_bytes")
        )
        self._format, self._options = format, dict(options or {})
        self._suffix = encoder_named(format, **self._options).suffix
        self._columns = as_columns(columns)
        self._prefix, self._extent_bytes = check_prefix(prefix), parse_bytes(extent_bytes, "extent_bytes")
        self._settings = {"partitions": 1} | shard_settings(
            format, shard_bytes=self.shard_bytes, columns=self._columns, prefix=prefix,
            extent_bytes=self._extent_bytes, options=self._options,
        )  # fmt: skip
        self._storage_options = dict(storage_options or {})
        self._out = Output(url, plan=plan_of(self._settings), storage_options=storage_options)
        self._run = b""
        self._schema: Any = None

    def begin(self, schema: Any = None) -> None:
        """Check that this run may write here, and take over: tasks of earlier runs then end with an error.

        To be called before the writer is pickled for tasks. ``schema`` is the pyarrow schema of the rows, if known.
        Without it, and without the option of this name, the first rows of each shard of a table format decide. Raises
        as `Output.begin` does.
        """
        self._run = os.urandom(16).hex().encode()
        self._schema = schema if self._format in TABLE_FORMATS and "schema" not in self._options else None
        try:
            if self._out.begin(suffix=self._suffix, settings=self._settings, shared=True) is None:
                self._out.journal.note(_RUN, self._run)
        finally:
            self._out.release()

    def write(self, partition: int, rows: Iterable[Sample]) -> WrittenPartition:
        """Write the rows of a partition, numbered from 0, as shards; none if there are no rows.

        In tar shards, the numbers of partition and row become the key of a row without ``__key__``. Memory: a quarter
        of ``shard_bytes``, and the memory of `shoal.pack.pack_shard`. Raises as `pack_shard` does, and `UsageError` if
        another run has begun here.
        """
        done = self._finished()
        options = self._options if self._schema is None else {**self._options, "schema": self._schema}
        shard = Shard("", self._format, options, self._columns, self._extent_bytes)
        cut = CutRows(shard, f"{self._prefix}-{partition:06d}", self._out, shard_bytes=self.shard_bytes, done=done)
        if self._format.partition(".")[0] == "tar":
            rows = (
                row if "__key__" in row else {"__key__": f"{partition:06d}-{number:09d}", **row}
                for number, row in enumerate(rows)
            )
        parts = cut.written(rows)
        if done is None and (done := self._finished()) is not None:
            # Another attempt was faster, and the dataset is committed.
            for part in parts:
                if part.shard_names[0] not in done.shard_names:
                    self._out.withdraw(part)
                self._out.journal.forget(part.shard_names[0])
        return WrittenPartition(partition, tuple(map(summary_of, parts)))

    def commit(self, written: Iterable[WrittenPartition]) -> PackSummary:
        """Write the index over the shards of all partitions: the dataset exists from then on.

        Shards of earlier attempts that are in no result are removed. O(samples) time, O(shards) memory. Raises
        `UsageError` if a shard is missing, attempts of a partition differ, shards have different columns, there is no
        row, or another run has begun here; `StorageError` if the index cannot be written.
        """
        shards = _in_order(written)
        done = self._finished()
        if done is not None:
            present = list(zip(done.shard_names, done.metadata["digests"], strict=True))
            if present != [(shard.name, shard.digest) for shard in shards]:
                msg = f"{without_secrets(self._out.url)}: these rows differ from the dataset that is there already"
                raise UsageError(msg, hint="write into another directory, or remove the dataset")
            return Committed.of_index(self._out.url, done).summary
        if not shards:
            commit_groups(self._out, [], about={})  # raises the error
        recorded = self._out.journal.finished()
        self._check_there(shard.name for shard in shards if shard.name not in recorded)
        cuts = np.cumsum([0, *(shard.num_samples for shard in shards)])
        names = [shard.name for shard in shards]
        groups = merged_groups(self._out.journal, names, cuts=cuts, completed=lambda _, parts: parts)
        stored = [shard for group in groups for shard in summaries_of(group)]
        pairs = zip(shards, stored, strict=True)
        self._check_there(shard.name for shard, known in pairs if shard.digest != known.digest)
        _check_columns(groups)
        remove_shards(self._out, self._out.journal.records(), but=set(names))
        return commit_groups(self._out, groups, about={}).summary

    def abort(self) -> None:
        """Remove the shards of this run and earlier runs, unless they are committed or another run has begun here."""
        with suppress(UsageError):
            if self._finished() is None:
                clean(self._out.url, grace_seconds=0, storage_options=self._storage_options)

    def _check_there(self, lost: Iterator[str]) -> None:
        name = next(lost, None)
        if name is not None:
            msg = f"{without_secrets(join(self._out.url, name))}: this shard was written, but is missing or different"
            raise UsageError(msg, hint="nothing was committed; does something else write here?")

    def _finished(self) -> Index | None:
        done = self._out.committed()
        if done is None and self._out.journal.noted(_RUN) != self._run:
            msg = f"{without_secrets(self._out.url)}: another run with the same settings has begun here since"
            raise UsageError(msg, hint="of two runs the later one may write; this one changes nothing any more")
        return done


def _in_order(written: Iterable[WrittenPartition]) -> list[ShardSummary]:
    """Return the shards of all partitions in order; an engine may report a partition twice."""
    by_number: dict[int, WrittenPartition] = {}
    for result in written:
        other = by_number.setdefault(result.partition, result)
        if [shard.digest for shard in other.shards] != [shard.digest for shard in result.shards]:
            msg = f"two attempts of partition {result.partition} have given different shards"
            raise UsageError(msg, hint="attempts had different rows; nothing was committed")
    return [shard for number in sorted(by_number) for shard in by_number[number].shards]


def _check_columns(groups: Sequence[PartGroup]) -> None:
    """Raise `UsageError` if MDS shards describe their columns differently: they share one description."""
    known: dict[str, Any] = {}
    for group in groups:
        for number, name in enumerate(group.metadata["names"]):
            options = options_of_shard(group.format, group.shard_heads.get(number, {}))
            known = known or options
            if options != known:
                msg = f"{name} has the columns {options['columns']}, but shards before it have {known['columns']}"
                hint = "options={'columns': {...}} gives all shards the same columns; nothing was committed"
                raise UsageError(msg, hint=hint)


class CutRows:
    """Writer of consecutive shards, named ``PREFIX-NUMBER``; used once.

    A shard ends before it would exceed ``shard_bytes``. Later rows wait, encoded, until they fill a quarter of a shard;
    fewer rows at the end still join the shard. A destination that is ``done`` is not written: shards are compared.
    """

    def __init__(self, shard: Shard, prefix: str, out: Output, *, shard_bytes: int, done: Index | None) -> None:
        self._shard, self._prefix, self._out, self._shard_bytes = shard, prefix, out, shard_bytes
        self._encoder = encoder_named(shard.format, **shard.options)
        self._begin: Callable[[str], UnfinishedObject] = out.begin_shard if done is None else _Nowhere
        self._publish = out.publish if done is None else partial(_compare, out.url, done)
        self._keeps = done is None
        self._parts: list[Index] = []
        self._writer: ShardWriter | None = None
        self._waiting: list[_Encoded] = []
        self._waiting_bytes = 0

    def written(self, rows: Iterable[Sample]) -> list[Index]:
        """Write all rows and return the parts of the index, one a shard."""
        try:
            for number, row in enumerate(rows):
                self._add(self._encoded(row, number))
            self._end(self._waiting)
        except BaseException:
            if self._writer is not None:
                self._writer.abandon()
            raise
        return self._parts

    def _encoded(self, row: Sample, number: int) -> _Encoded:
        try:
            values = values_in(self._shard.columns, row) if self._shard.columns else []
            return self._encoder.record(row), values, row, number
        except UsageError as error:
            raise UsageError(f"row {number} of {self._prefix}: {error.message}", hint=error.hint) from None

    def _add(self, encoded: _Encoded) -> None:
        num_bytes, writer = encoded[0].num_bytes, self._writer
        is_full = writer is not None and writer.num_samples and writer.num_bytes + num_bytes > self._shard_bytes
        if not is_full and not self._waiting:
            self._put(encoded)
            return
        self._waiting.append(encoded)
        self._waiting_bytes += num_bytes
        if self._waiting_bytes * _SMALL_SHARE >= self._shard_bytes:
            waiting = self._waiting
            self._end(())
            for row in waiting:
                self._add(row)

    def _put(self, encoded: _Encoded) -> None:
        record, values, row, number = encoded
        if self._writer is None:
            name = f"{self._prefix}-{len(self._parts):06d}{self._encoder.suffix}"
            self._writer = ShardWriter(self._encoder, self._begin(name), replace(self._shard, name=name))
        self._writer.check(row)
        self._writer.values.take(values)
        self._writer.add(record, row, position=number)

    def _end(self, rest: Sequence[_Encoded]) -> None:
        """End the shard with the ``rest`` of its rows; the next row begins another."""
        for encoded in rest:
            self._put(encoded)
        self._waiting, self._waiting_bytes = [], 0
        if self._writer is not None:
            part = self._writer.finish(plan=self._out.plan, publish=self._publish)
            self._writer = None
            if self._keeps:
                self._out.journal.keep(part)
            self._parts.append(part)


def _compare(url: str, done: Index, _: UnfinishedObject, part: Index) -> None:
    """Compare a shard with the shard of a finished dataset."""
    name, digest = part.shard_names[0], part.metadata["digest"]
    known = dict(zip(done.shard_names, done.metadata["digests"], strict=True)).get(name, "of no shard")
    if known != digest:
        msg = f"{without_secrets(join(url, name))}: the dataset is finished, but this shard would now have other bytes "
        msg += f"(its digest is {known}; the new digest is {digest})"
        raise UsageError(
            msg, hint="these rows differ from the dataset; write into another directory, or remove the dataset"
        )


class _Nowhere:
    """An object that is not written."""

    def __init__(self, name: str) -> None:
        self.name = name

    def write(self, buffers: Sequence[Buffer]) -> None:
        pass

    def finish(self) -> None:
        pass

    def patch(self, first_byte: int, data: bytes) -> None:
        pass

    def finish_new(self, *, replaces: ObjectInfo | None = None) -> bool:  # noqa: ARG002  # of the same shape
        return True

    def abandon(self) -> None:
        pass

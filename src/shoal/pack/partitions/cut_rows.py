"""Rows of a partition cut into shards of about equal bytes, without a small one at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from shoal.errors import UsageError
from shoal.formats.shard_format import Sample
from shoal.formats.writing.encoder import EncodedRecord
from shoal.formats.writing.written_formats import encoder_named
from shoal.index.table import Index
from shoal.pack.output.destination import Output
from shoal.pack.shards.column_values import values_in
from shoal.pack.shards.shard_writer import Shard, ShardWriter
from shoal.storage.files.atomic_writes import UnfinishedObject
from shoal.storage.store_protocol import Buffer, ObjectInfo
from shoal.storage.urls import join, without_secrets

_SMALL_SHARE = 4  # less than a quarter of a shard does not become one of its own

_Encoded = tuple[EncodedRecord, Sequence[Any], Sample, int]


class CutRows:
    """Writer of consecutive shards, named ``PREFIX-NUMBER``; used once.

    A shard ends before it would exceed ``shard_bytes``. The rows behind it wait, encoded, until they are a quarter of
    a shard; if there are no more, they still belong to it. In a destination that is ``done``, nothing is written:
    shards are made and compared.
    """

    def __init__(self, shard: Shard, prefix: str, out: Output, *, shard_bytes: int, done: Index | None) -> None:
        self._shard, self._prefix, self._out, self._shard_bytes = shard, prefix, out, shard_bytes
        self._encoder = encoder_named(shard.format, **shard.options)
        self._begin: Callable[[str], UnfinishedObject] = out.begin_shard if done is None else _Nowhere
        self._publish = out.publish if done is None else _Compared(out.url, done).publish
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
            for one in waiting:
                self._add(one)

    def _put(self, encoded: _Encoded) -> None:
        record, values, row, number = encoded
        if self._writer is None:
            name = f"{self._prefix}-{len(self._parts):06d}{self._encoder.suffix}"
            self._writer = ShardWriter(self._encoder, self._begin(name), replace(self._shard, name=name))
        self._writer.check(row)
        self._writer.values.take(values)
        self._writer.add(record, row, position=number)

    def _end(self, rest: Sequence[_Encoded]) -> None:
        """End the shard with these rows, and begin another when there are more."""
        for encoded in rest:
            self._put(encoded)
        self._waiting, self._waiting_bytes = [], 0
        if self._writer is not None:
            part = self._writer.finish(plan=self._out.plan, publish=self._publish)
            self._writer = None
            if self._keeps:
                self._out.journal.keep(part)
            self._parts.append(part)


class _Compared:
    """The shards of a finished dataset, with which those that are made now are compared."""

    def __init__(self, url: str, done: Index) -> None:
        self._url = url
        self._digests = dict(zip(done.shard_names, done.metadata["digests"], strict=True))

    def publish(self, unfinished: UnfinishedObject, part: Index) -> None:  # noqa: ARG002  # of the same shape
        name, digest = part.shard_names[0], part.metadata["digest"]
        if self._digests.get(name) != digest:
            msg = f"{without_secrets(join(self._url, name))}: the dataset is finished, and this shard would now have "
            msg += f"other bytes (its digest is {self._digests.get(name, 'of no shard')}, and {digest} came out)"
            raise UsageError(msg, hint="these rows are others; write into another directory, or remove what is there")


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

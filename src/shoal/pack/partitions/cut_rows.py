"""Rows of a partition cut into shards of about equal bytes, without a small one at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from shoal.errors import UsageError
from shoal.formats.shard_format import Sample
from shoal.formats.writing.encoder import EncodedRecord
from shoal.formats.writing.written_formats import encoder_named
from shoal.index.table import Index
from shoal.pack.output.destination import Output
from shoal.pack.shards.column_values import values_in
from shoal.pack.shards.shard_writer import Shard, ShardWriter
from shoal.storage.atomic_writes import UnfinishedObject
from shoal.storage.store_protocol import Buffer, ObjectInfo
from shoal.storage.urls import join, without_secrets

_SMALL_SHARE = 4  # less than a quarter of a shard joins the previous shard

_Encoded = tuple[EncodedRecord, Sequence[Any], Sample, int]


class CutRows:
    """Writer of consecutive shards, named ``PREFIX-NUMBER``; used once.

    A shard ends before it would exceed ``shard_bytes``. Later rows wait, encoded, until they fill a quarter of a shard;
    fewer rows at the end still join the shard. A destination that is ``done`` is not written: shards are compared.
    """

    def __init__(self, shard: Shard, prefix: str, out: Output, *, shard_bytes: int, done: Index | None) -> None:
        self._shard, self._prefix, self._out, self._shard_bytes = shard, prefix, out, shard_bytes
        self._encoder = encoder_named(shard.format, **shard.options)
        self._begin: Callable[[str], UnfinishedObject] = out.begin_shard if done is None else _Nowhere
        self._publish = out.publish if done is None else partial(_compare, out.url, _digests_of(done))
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


def _digests_of(done: Index) -> dict[str, str]:
    return dict(zip(done.shard_names, done.metadata["digests"], strict=True))


def _compare(url: str, digests: Mapping[str, str], _: UnfinishedObject, part: Index) -> None:
    """Compare a shard with the shard of a finished dataset."""
    name, digest = part.shard_names[0], part.metadata["digest"]
    if digests.get(name) != digest:
        msg = f"{without_secrets(join(url, name))}: the dataset is finished, and this shard would now have other bytes "
        msg += f"(its digest is {digests.get(name, 'of no shard')}, and {digest} came out)"
        raise UsageError(msg, hint="these rows are others; write into another directory, or remove the dataset")


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

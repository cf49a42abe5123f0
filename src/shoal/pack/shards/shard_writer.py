"""One shard, the unit of packing: made from its inputs completely or not at all, always with the same result.

Any scheduler (one process, several, a cluster) hands out shards with their inputs and collects summaries.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from zlib import crc32

import numpy as np

from shoal.errors import ShoalError, UsageError
from shoal.formats.column_paths import Column
from shoal.formats.shard_format import Sample
from shoal.formats.tables.writer import TableShard
from shoal.formats.writing.encoder import AppendedShard, EncodedRecord, Encoder, RecordBlock
from shoal.formats.writing.written_formats import encoder_named
from shoal.index.assembly import ScannedShard, assemble
from shoal.index.cutting import EXTENT_BYTES
from shoal.index.shard_scan import Buffer
from shoal.index.table import Index
from shoal.pack.inputs.repeats import copy_of
from shoal.pack.output.destination import DIGEST_BYTES, Output
from shoal.pack.output.refusals import lacking
from shoal.pack.shards.column_values import ColumnValues, values_in
from shoal.storage.files.atomic_writes import UnfinishedObject
from shoal.storage.urls import join

_AT_ONCE_BYTES, _LARGE_BYTES = 1 << 20, 8 << 20


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard to be made: its name below the output, its format, and the columns of its samples for the index.

    ``options`` are options of the format. With ``on_error="skip"``, inputs that cannot be read or written are left out
    and listed; otherwise the first of them is an error. With ``on_same_key="rename"``, a tar sample gets the key of a
    copy (`shoal.pack.inputs.repeats`) if the previous sample has its key, and is counted; otherwise it is an error.

    Examples
    --------
    >>> shard = shoal.pack.Shard("train-000000.jsonl", "jsonl", on_error="skip")
    >>> shoal.pack.pack_shard(shard, [{"text": "a cat"}], shoal.pack.Output("packed", plan="texts")).name
    'train-000000.jsonl'
    """

    name: str
    format: str
    options: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()
    extent_bytes: int = EXTENT_BYTES
    on_error: Literal["raise", "skip"] = "raise"
    on_same_key: Literal["raise", "rename"] = "raise"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Placeholder for the sample of an unreadable input: its name, and the error.

    The index of the packed dataset stores ``reason``, which contains no path of this machine.

    Examples
    --------
    >>> error = shoal.errors.StorageError("a.jpg: permission denied")
    >>> shoal.pack.Unreadable("a.jpg", error, reason="permission denied").reason
    'permission denied'
    """

    name: str
    error: ShoalError
    reason: str


@dataclass(frozen=True, slots=True)
class Named:
    """A sample with a name for the list of skipped samples; other samples are listed by their keys."""

    name: str
    sample: Sample


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """Result of packing one shard.

    ``digest`` has the first 16 bytes of the shard's SHA-256, as hex: equal for equal inputs. ``skipped`` lists inputs
    that were left out, by name and reason; ``num_renamed`` samples got another key. ``done_before`` is True if an
    earlier run made the shard.

    Examples
    --------
    >>> shoal.pack.pack([{"text": "a cat"}], "packed", format="jsonl").shards[0]
    ShardSummary(name='shard-000000.jsonl', num_samples=1, num_bytes=17, digest='...', skipped=(), ...)
    """

    name: str
    num_samples: int
    num_bytes: int
    digest: str
    skipped: tuple[tuple[str, str], ...] = ()
    num_renamed: int = 0
    elapsed_seconds: float = 0.0
    done_before: bool = False


Input = Sample | Named | Unreadable | RecordBlock
"""Inputs that `pack_shard` accepts."""


def pack_shard(shard: Shard, inputs: Iterable[Input], out: Output) -> ShardSummary:
    """Make one shard from its inputs, in their order, and record in ``out`` that it is finished.

    Inputs may be encoded blocks of records, with the shard's columns. A shard that is recorded as finished is neither
    read nor written. No shard is replaced: a shard of the same name and bytes, of a killed run or another machine, is
    kept. Memory: about 2 MiB, 10 MiB if the output is an object store, a whole shard if the format needs it.

    Raises
    ------
    UsageError
        The format cannot hold a sample, or a shard of this name has other bytes.
    StorageError
        An input cannot be read, or the shard cannot be written; nothing of the shard is left.

    Examples
    --------
    >>> shard, samples = shoal.pack.Shard("a.jsonl", "jsonl"), ({"text": f"cat {number}"} for number in range(3))
    >>> shoal.pack.pack_shard(shard, samples, shoal.pack.Output("packed", plan="texts")).num_samples
    3
    """
    part = out.journal.kept(shard.name)
    if part is not None and (shard.on_error == "skip" or not part.metadata["skipped"]):
        return replace(summary_of(part), done_before=True)
    if part is not None:
        if not out.may_withdraw:
            raise lacking(join(out.url, shard.name), part.metadata["skipped"])
        out.withdraw(part)
    began_seconds = time.monotonic()
    encoder = encoder_named(shard.format, **shard.options)
    writer = ShardWriter(encoder, out.begin_shard(shard.name), shard)
    try:
        _write_all(writer, encoder, inputs, shard)
        part = writer.finish(plan=out.plan, publish=out.publish)
    except MemoryError:
        writer.abandon()
        raise _no_memory(f"the contents of {shard.name}") from None
    except BaseException:
        writer.abandon()
        raise
    out.journal.keep(part)
    return replace(summary_of(part), elapsed_seconds=time.monotonic() - began_seconds)


def _no_memory(what: str) -> UsageError:
    msg = f"there is no memory for {what}"
    return UsageError(msg, hint="reduce num_workers=, make MDS shards smaller, or leave out large inputs")


def _write_all(writer: ShardWriter, encoder: Encoder, inputs: Iterable[Input], shard: Shard) -> None:
    """Write all inputs except skipped inputs."""
    position = -1
    for entry in inputs:
        if isinstance(entry, RecordBlock):
            writer.add_block(entry)
            position += entry.num_records
            continue
        position += 1
        if isinstance(entry, Unreadable):
            if shard.on_error == "raise":
                raise entry.error
            writer.skip(position, entry.name, entry.reason)
            continue
        name, sample = (entry.name, entry.sample) if isinstance(entry, Named) else (None, entry)
        if shard.on_same_key == "rename":
            sample = writer.distinct(sample)
        try:
            writer.check(sample)
            values = values_in(shard.columns, sample) if shard.columns else []
            record = encoder.record(sample)
            writer.values.take(values)
        except (UsageError, MemoryError) as error:
            name = _key_of(sample) if name is None else name
            refused = error if isinstance(error, UsageError) else _no_memory(f"the sample {name!r}")
            if shard.on_error == "skip":
                writer.skip(position, name, refused.message)
                continue
            which = repr(name) if name else f"sample {position} of {shard.name}"  # encoders may not know the name
            if which in refused.message:
                raise refused from None
            raise UsageError(f"{which}: {refused.message}", hint=refused.hint) from None
        writer.add(record, sample, name=name, position=position)


def summary_of(part: Index) -> ShardSummary:
    """Return the summary of a shard from its part of the index."""
    return ShardSummary(
        name=part.shard_names[0],
        num_samples=part.num_samples,
        num_bytes=part.num_bytes,
        digest=str(part.metadata["digest"]),
        skipped=tuple((str(name), str(reason)) for name, reason in part.metadata["skipped"]),
        num_renamed=int(part.metadata.get("num_renamed", 0)),
    )


class ShardWriter:
    """Writer of one shard to a store: records are counted, digested, and flushed now and then."""

    def __init__(self, encoder: Encoder, unfinished: UnfinishedObject, shard: Shard) -> None:
        self._encoder, self._object, self._shard = encoder, unfinished, shard
        self._encoding = encoder.begin()
        self.values = ColumnValues(shard.columns)
        self._digest = hashlib.sha256()
        self._waiting: list[Buffer] = []
        self._waiting_bytes = 0
        self._last: EncodedRecord | None = None
        self._is_tar = encoder.name.partition(".")[0] == "tar"
        self._last_key: object = None
        self._num_renamed = 0
        self._skipped: list[tuple[str, str]] = []
        self._skipped_positions: list[int] = []
        # Position and name of each table row: a table may reject rows long after they were added.
        self._row_names: list[tuple[int, str]] = []
        self._rows = self._encoding if shard.on_error == "skip" and isinstance(self._encoding, TableShard) else None
        if self._rows is not None:
            self._rows.leave_out()

    @property
    def num_samples(self) -> int:
        """Number of samples added so far."""
        return self._encoding.num_samples

    @property
    def num_bytes(self) -> int:
        """Approximate bytes of the shard if it ended now."""
        return self._encoding.num_bytes

    def distinct(self, sample: Sample) -> Sample:
        """Return the sample, with the key of a copy if the previous sample has the same key."""
        if self._last_key is None or sample.get("__key__") != self._last_key:
            return sample
        self._num_renamed += 1
        return {**sample, "__key__": copy_of(str(self._last_key), 1)}

    def check(self, sample: Sample) -> None:
        """Raise `UsageError` if the previous sample has the same key: readers of a tar join such neighbours."""
        if self._last_key is not None and sample.get("__key__") == self._last_key:
            msg = f"the sample {self._last_key!r} follows a sample with the same key, and readers of a tar would "
            msg += "join both into one sample"
            raise UsageError(msg, hint="give each sample its own key; in other formats a key is just a field")

    def skip(self, position: int, name: str, reason: str) -> None:
        """Record a skipped input, by its position among the inputs of the shard."""
        self._skipped.append((name, reason))
        self._skipped_positions.append(position)

    def add(self, record: EncodedRecord, sample: Sample, *, name: str | None = None, position: int = 0) -> None:
        """Add a record, whose column values are already in `values`, and its sample."""
        if self._is_tar:
            self._last_key = sample["__key__"]
        if self._rows is not None:
            self._row_names.append((position, _key_of(sample) if name is None else name))
        self._waiting += self._encoding.add(record)
        self._waiting_bytes += record.num_bytes
        self._last = record
        self._skip_refused()
        if self._waiting_bytes >= _AT_ONCE_BYTES:
            self._flush()

    def add_block(self, block: RecordBlock) -> None:
        """Add a block of records and their column values."""
        if not isinstance(self._encoding, AppendedShard):
            msg = f"{self._shard.name}: only shards of consecutive records take encoded records"
            raise UsageError(msg, hint=f"give samples to shards of {self._shard.format}")
        self._flush()
        self.values.add_block(block.columns, block.num_records)
        for data in self._encoding.add_block(block):
            self._digest.update(data)
            self._object.write([data])

    def finish(self, *, plan: str, publish: Callable[[UnfinishedObject, Index], None] | None = None) -> Index:
        """Publish the shard and return its part of the index; without ``publish`` it replaces a shard of its name."""
        self._waiting += self._encoding.finish()
        self._skip_refused()
        self._flush()
        part = self._part(plan)
        if publish is None:
            self._object.finish()
        else:
            publish(self._object, part)
        return part

    def abandon(self) -> None:
        """Discard the unfinished shard."""
        self._object.abandon()

    def _skip_refused(self) -> None:
        for number, error in self._rows.refused() if self._rows is not None else ():
            self.skip(*self._row_names.pop(number), error.message)
            self.values.drop(number)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        # Small records are joined into one write; large ones are not copied.
        parts = waiting if self._waiting_bytes > _LARGE_BYTES else [b"".join(waiting)]
        self._waiting_bytes = 0
        for data in parts:
            if memoryview(data):
                self._digest.update(data)
                self._object.write([data])

    def _part(self, plan: str) -> Index:
        written, extent_bytes = self._encoding.written(), self._shard.extent_bytes
        scanned = ScannedShard(self._shard.name, written.num_bytes, "", written.scan)
        columns, texts = self.values.arrays()
        if written.record_crcs is not None:
            columns["record_crc32"] = written.record_crcs.astype(np.uint32)
        metadata = {
            "plan": plan,
            "digest": self._digest.hexdigest()[: 2 * DIGEST_BYTES],
            "skipped": self._skipped,
            "skipped_places": self._skipped_positions,
            "num_renamed": self._num_renamed,
            "texts": texts,
            "frame": written.frame_crc if written.scan.num_samples else None,
            "mark": None if self._last is None else mark_of(self._last),
        }
        part = assemble(self._encoder.name, [scanned], extent_bytes=extent_bytes, metadata=metadata)
        return replace(part, extent_checksum=written.extent_crcs(extent_bytes=extent_bytes), columns=columns)


def mark_of(record: EncodedRecord) -> int:
    """Return a number that identifies a record: the CRC of its bytes, or of the values of a row.

    >>> from shoal.formats.writing.written_formats import encoder_named
    >>> mark_of(encoder_named("jsonl").record({"a": 1})) == mark_of(encoder_named("jsonl").record({"a": 2}))
    False
    """
    if record.row is not None:
        return crc32(repr(record.row).encode("utf-8", "surrogatepass"))
    crc = 0
    for part in record.parts:
        crc = crc32(part, crc)
    return crc


def _key_of(sample: Sample) -> str:
    return str(sample.get("__key__", sample.get("key", "")))

"""TFRecord shards written: each record between its length and two checksums."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from zlib import crc32

from shoal.shards.crc32c import crc32c
from shoal.shards.protocol import Buffer, Sample
from shoal.shards.tf_example import NotAnExampleError, parse_example
from shoal.shards.writing.encoder import AppendedShard, Record
from shoal.shards.writing.tf_example import encode_example

__all__ = ["TFRecordEncoder"]

_length, _crc = Struct("<Q").pack, Struct("<I").pack
_MASK_DELTA = 0xA282EAD8


class TFRecordEncoder:
    """The format of one record after the other.

    A sample of ``record`` alone, bytes, is that record; any other is a ``tf.train.Example`` of its fields, in their
    order.
    """

    name: str = "tfrecord"
    suffix: str = ".tfrecord"

    def record(self, sample: Sample) -> Record:
        """The record of a sample, framed.

        Raises
        ------
        UsageError
            A value is nothing that an example holds.
        """
        raw = sample.get("record") if len(sample) == 1 else None
        data = raw if isinstance(raw, bytes) else encode_example(sample)
        length = _length(len(data))
        header = length + _crc(_masked(crc32c(length)))
        return Record((header, data, _crc(_masked(crc32c(data)))), len(data) + 16, crc32(header))

    def begin(self) -> TFRecordShard:
        """A new shard."""
        return TFRecordShard()


class TFRecordShard(AppendedShard):
    """One shard in the making; its head says whether its first record is an example, as a scan would find."""

    def add(self, record: Record) -> Sequence[Buffer]:
        """Add a record; its bytes."""
        if not self.num_samples:
            try:
                parse_example(bytes(record.parts[1]))
                self.head["records"] = "examples"
            except NotAnExampleError:
                pass
        return super().add(record)


def _masked(crc: int) -> int:
    """As `shoal.shards.crc32c.masked`, of one number."""
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + _MASK_DELTA) & 0xFFFFFFFF

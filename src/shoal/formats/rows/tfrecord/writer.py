"""Writer of TFRecord shards: each record between its length and two checksums."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from zlib import crc32

from shoal.errors import UsageError
from shoal.formats.rows.tfrecord.crc32c import crc32c, masked
from shoal.formats.rows.tfrecord.tf_example import encode_example, is_example
from shoal.formats.shard_format import Sample
from shoal.formats.writing.encoder import AppendedShard, EncodedRecord
from shoal.index.shard_scan import Buffer

_length, _crc = Struct("<Q").pack, Struct("<I").pack


class TFRecordEncoder:
    """The format of one record after another.

    A sample with only ``record``, bytes, is that record; any other becomes a ``tf.train.Example`` of its fields, in
    their order. Readers expect one kind of records in a shard: the first record decides, others are refused.
    """

    name: str = "tfrecord"
    suffix: str = ".tfrecord"

    def __init__(self) -> None:
        self._are_examples: bool | None = None

    def record(self, sample: Sample) -> EncodedRecord:
        """Encode a sample as a framed record.

        Raises `UsageError` if an example cannot hold a value; or the first sample was of the other kind.
        """
        raw = sample.get("record") if len(sample) == 1 else None
        is_raw = isinstance(raw, bytes)
        data = raw if isinstance(raw, bytes) else encode_example(sample)
        if is_raw or not self._are_examples:
            self._check_kind(data, is_raw=is_raw)
        length = _length(len(data))
        header = length + _crc(masked(crc32c(length)))
        return EncodedRecord((header, data, _crc(masked(crc32c(data)))), len(data) + 16, crc32(header))

    def _check_kind(self, data: bytes, *, is_raw: bool) -> None:
        """Check that this record is of the kind of the first record."""
        is_one = not is_raw or (self._are_examples is not False and is_example(data))
        if self._are_examples is None:
            self._are_examples = is_one
        elif is_one != self._are_examples:
            kinds = ("a tf.train.Example", "a record as it is")
            first, this = kinds if self._are_examples else kinds[::-1]
            msg = f"the first sample of the shard is {first}, but this sample is {this}"
            raise UsageError(msg, hint="readers expect all records to be of one kind: give samples of one kind")

    def begin(self) -> TFRecordShard:
        """Begin a new shard."""
        return TFRecordShard()


class TFRecordShard(AppendedShard):
    """One shard being written; its head records whether the first record is an example, as a scan would."""

    def add(self, record: EncodedRecord) -> Sequence[Buffer]:
        """Add a record; return its bytes."""
        if not self.num_samples and is_example(bytes(record.parts[1])):
            self.head["records"] = "examples"
        return super().add(record)

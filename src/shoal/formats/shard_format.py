"""What a shard format must be able to do: find its samples, and hand them out of a stretch of bytes.

A format is written in one file of this room. It sees a shard twice:

* once when the index is built, through `Format.scan`, which may ask for any byte of the shard and says where each
  sample begins and ends (formats that can, skip the payloads);
* later, any number of times, through `Format.parse`, which gets the bytes of some consecutive samples and hands out
  the samples one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shoal.formats.field_columns import Columns, Record
from shoal.index.shard_scan import Buffer, ShardScan

__all__ = [
    "Aside",
    "Buffer",
    "ColumnRecords",
    "ColumnarFormat",
    "Format",
    "FrontFormat",
    "PiecemealFormat",
    "ReadBytes",
    "ReadSample",
    "RecordFormat",
    "Records",
    "RecutFormat",
    "Sample",
    "ShardScan",
    "Spilled",
    "SpillingFormat",
    "Stretch",
    "ViewingFormat",
    "reading_alone",
]

Sample = dict[str, Any]


class ReadBytes(Protocol):
    """Reads one shard: exactly the bytes ``[first_byte, end_byte)``, or raises; never a short answer."""

    def __call__(self, first_byte: int, end_byte: int, /) -> Buffer:
        """The bytes ``[first_byte, end_byte)`` of the shard."""
        ...


class Records(Protocol):
    """Some consecutive samples of one shard, parsed as far as needed to hand them out by number."""

    def __len__(self) -> int: ...

    def layout_crcs(self) -> NDArray[np.uint32]:
        """The same CRCs as `ShardScan.layout_crcs`, of these samples; shape (len,)."""
        ...

    def sample(self, number: int) -> Sample:
        """Sample ``number`` (0 is the first of these), owning its bytes: nothing in it is a view of the buffer."""
        ...


@runtime_checkable
class ColumnRecords(Protocol):
    """Records that lie in memory as columns, so that many samples are gathered at once."""

    def columns(self) -> Columns | None:
        """The fields of all samples; row ``i`` of them is what ``sample(i)`` gives. None where a field is no column."""
        ...


class Stretch(NamedTuple):
    """Some consecutive samples of one shard, as the index knows them: what `Format.parse` is told of its bytes.

    ``shard`` is the name of the shard, ``first_byte`` where in it the bytes begin, and ``head`` what `Format.scan` kept
    of it. ``sample_starts`` are offsets into the bytes, shape (num_samples + 1,), or None where the index does not keep
    them: for pieces, and in very large datasets, where a format finds them itself. A plain tuple, since one is made for
    every chunk.
    """

    shard: str
    first_byte: int
    num_samples: int
    sample_starts: Sequence[int] | None = None
    head: Mapping[str, Any] = MappingProxyType({})


class Format(Protocol):
    """One shard format."""

    @property
    def name(self) -> str:
        """What an index calls it; of no other format. A plain attribute will do, here and for the suffixes."""
        ...

    @property
    def suffixes(self) -> tuple[str, ...]:
        """With which the names of its shards end, in lower case, each with its dot."""
        ...

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Find the samples of a shard of ``num_bytes`` bytes; raises `ShardError` with the byte where it cannot."""
        ...

    def parse(self, buffer: Buffer, stretch: Stretch) -> Records:
        """Open the bytes of some consecutive samples.

        Raises `ShardError`, with the byte counted from the start of the shard, where the bytes are not what the index
        says.
        """
        ...


@runtime_checkable
class ColumnarFormat(Protocol):
    """A format whose records may be `ColumnRecords`: only then batches are looked for in columns."""

    def projected(self, names: Sequence[str]) -> Format:
        """The same format, which decodes only these fields of shards that have all of them, and all fields of others.

        Their order stays that of the shard.
        """
        ...


class RecordFormat(Protocol):
    """A columnar format of which some shards hold records of one length, which need not be parsed."""

    def record(self, head: Mapping[str, Any], *, shard: str) -> Record | None:
        """What all samples of a shard with this head are; None where they have no common length."""
        ...


class PiecemealFormat(Protocol):
    """A format that reads one sample by several reads where that saves copying a large payload."""

    def read_sample(self, read: ReadBytes, end_byte: int, stretch: Stretch) -> Sample:
        """The one sample of ``stretch``, which ends at ``end_byte`` of the shard.

        Gives what `Format.parse` of these bytes would, and raises what it would.
        """
        ...


@runtime_checkable
class ViewingFormat(Protocol):
    """A format whose values can be views of the bytes they were parsed from."""

    def parse_views(self, buffer: Buffer, payloads: memoryview, stretch: Stretch) -> Records:
        """As `Format.parse`, but bytes are slices of ``payloads``, which has the same bytes as ``buffer``."""
        ...


class Aside(Protocol):
    """A place on this machine that takes decoded bytes as they come, and gives them again."""

    def append(self, data: Buffer, /) -> None:
        """Put these behind what is there."""
        ...

    def read(self, first_byte: int, end_byte: int, /) -> bytes:
        """The bytes ``[first_byte, end_byte)`` of all that was put there."""
        ...


class Spilled(NamedTuple):
    """How a piece lies decoded: in parts that can be read alone.

    Part ``i`` are the bytes ``[borders[i], borders[i + 1])`` and holds ``samples_per_part`` samples, the last one
    perhaps fewer: ``num_samples`` in all; ``borders`` has shape (num_parts + 1,), int64. ``head`` is what
    `SpillingFormat.parse_part` must know of all parts; JSON types only, small.
    """

    borders: NDArray[np.int64]
    num_samples: int
    samples_per_part: int
    head: Mapping[str, Any] = MappingProxyType({})


@runtime_checkable
class SpillingFormat(Protocol):
    """A format of pieces that can be decoded to a place of their own, to be read there sample by sample."""

    @property
    def spilled_as(self) -> str:
        """What tells apart pieces that were decoded in other ways: the format, and which columns of it."""
        ...

    def spill(self, read: ReadBytes, end_byte: int, stretch: Stretch, aside: Aside) -> Spilled:
        """Decode the piece of ``stretch``, which ends at ``end_byte`` of the shard, holding little of it at a time.

        Raises what `Format.parse` of its bytes would.
        """
        ...

    def parse_part(self, data: bytes, stretch: Stretch) -> Records:
        """Open one part: its bytes, where in the whole it begins, its samples, and ``head`` of `Spilled`."""
        ...


@runtime_checkable
class RecutFormat(Protocol):
    """A format that has learned to cut shards otherwise, and knows by the head of one how an index was made."""

    def scan_as(self, head: Mapping[str, Any], read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """As `Format.scan`, cut as the index was made that keeps ``head`` of the shard."""
        ...


class FrontFormat(Protocol):
    """A format of which only whole shards can be scanned, since their front says what follows.

    Its records have ``starts``, the offsets at which samples begin and the last one ends: by these, pieces of such a
    shard, which is compressed, are spilled.
    """

    needs_front: bool


class ReadSample(Protocol):
    """Reads one sample alone."""

    def __call__(self, read: ReadBytes, end_byte: int, stretch: Stretch, /) -> Sample:
        """The one sample of ``stretch``, which ends at ``end_byte`` of the shard."""
        ...


def reading_alone(format: Format) -> ReadSample:  # noqa: A002
    """How a sample of this format is read alone: as it says itself, else whole."""
    itself: ReadSample | None = getattr(format, "read_sample", None)

    def whole(read: ReadBytes, end_byte: int, stretch: Stretch, /) -> Sample:
        return format.parse(read(stretch.first_byte, end_byte), stretch).sample(0)

    return whole if itself is None else itself

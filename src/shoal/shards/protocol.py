"""What a shard format must be able to do: find its samples, and hand them out of a stretch of bytes.

A format is written in one file of this room. It sees a shard twice:

* once when the index is built, through `Format.scan`, which may ask for any byte of the shard and says where each
  sample begins and ends (formats that can, skip the payloads);
* later, any number of times, through `Format.parse`, which gets the bytes of some consecutive samples and hands out
  the samples one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shoal.shards.columns import Columns, Record

Buffer = bytes | bytearray | memoryview
Sample = dict[str, Any]


class ReadBytes(Protocol):
    """Reads one shard: exactly the bytes ``[first_byte, end_byte)``, or raises; never a short answer."""

    def __call__(self, first_byte: int, end_byte: int, /) -> Buffer:
        """The bytes ``[first_byte, end_byte)`` of the shard."""
        ...


@dataclass(frozen=True, slots=True)
class ShardScan:
    """Where the samples of one shard lie.

    ``sample_starts`` has shape (num_samples + 1,), int64, ascending: sample ``i`` occupies bytes
    ``[sample_starts[i], sample_starts[i + 1])`` of the shard, anything between two samples (directories, links,
    blank lines) belonging to the later one. Bytes before the first and after the last sample belong to none.
    ``layout_crcs`` has shape (num_samples,), uint32: a CRC-32 of what the scan read of each sample (the headers of
    its tar members; the whole line of a text format), by which a shard is recognised again.
    ``head`` holds what `Format.parse` must know from elsewhere in the shard; JSON types only, small.
    ``notes`` counts what the scan met and did not index (``{"links": 3}``), for people to see.

    Where no bytes belong to one sample alone (a row group, a compressed shard), the stretches between two
    ``sample_starts`` are *pieces* instead, each of which is an extent of its own: ``piece_samples``, shape
    (num_pieces,), int64, positive, says how many samples each has, ``piece_decoded_bytes`` how many bytes it takes in
    memory, and ``layout_crcs`` has one value a piece. Where a piece needs bytes with which the next one begins,
    ``piece_ends``, shape (num_pieces,), int64, ascending, says where the bytes of each end; the last one at the last of
    ``sample_starts``, and none behind the start of the next piece but one.
    """

    sample_starts: NDArray[np.int64]
    layout_crcs: NDArray[np.uint32]
    head: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, int] = field(default_factory=dict)
    piece_samples: NDArray[np.int64] | None = None
    piece_decoded_bytes: NDArray[np.int64] | None = None
    piece_ends: NDArray[np.int64] | None = None

    @property
    def ends(self) -> NDArray[np.int64]:
        """Where the bytes of each sample, or piece, end."""
        return self.sample_starts[1:] if self.piece_ends is None else self.piece_ends

    @property
    def num_samples(self) -> int:
        """Samples found in the shard."""
        return len(self.sample_starts) - 1 if self.piece_samples is None else int(self.piece_samples.sum())

    def samples_before(self) -> NDArray[np.int64]:
        """How many samples lie before each of ``sample_starts``; the same shape."""
        if self.piece_samples is None:
            return np.arange(len(self.sample_starts))
        return np.concatenate([[0], np.cumsum(self.piece_samples)])


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

    name: str
    suffixes: tuple[str, ...]

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

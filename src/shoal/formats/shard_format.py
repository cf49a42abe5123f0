"""The interface of a shard format: find the samples of a shard, and decode them from a range of its bytes.

A format sees a shard twice:

* once when the index is built, through `Format.scan`, which may read any byte of the shard and returns where each
  sample begins and ends (formats that can skip the payloads do);
* later, any number of times, through `Format.parse`, which gets the bytes of some consecutive samples and hands out
  the samples one by one.

Whatever else a format may be able to do is one of the protocols below `Format`, and code asks for it by
``isinstance(format, SpillingFormat)``; `shoal.formats.forward_scan.ForwardFormat` is one more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shoal.formats.field_columns import Columns, Record
from shoal.index.shard_scan import Buffer, ShardScan

Sample = dict[str, Any]


class ReadBytes(Protocol):
    """A reader of one shard: returns exactly the bytes ``[first_byte, end_byte)``, or raises; never fewer."""

    def __call__(self, first_byte: int, end_byte: int, /) -> Buffer:
        """Return the bytes ``[first_byte, end_byte)`` of the shard."""
        ...


class Records(Protocol):
    """Some consecutive samples of one shard, parsed as far as needed to hand them out by number."""

    def __len__(self) -> int: ...

    def layout_crcs(self) -> NDArray[np.uint32]:
        """Return the CRCs of these samples as in `ShardScan.layout_crcs`; shape (len,)."""
        ...

    def sample(self, number: int) -> Sample:
        """Return sample ``number`` (0 is the first), owning its bytes: nothing in it is a view of the buffer."""
        ...


@runtime_checkable
class ColumnRecords(Protocol):
    """Records that lie in memory as columns, so that many samples are gathered at once."""

    def columns(self) -> Columns | None:
        """Return the fields of all samples; row ``i`` matches ``sample(i)``. None if some field is no column."""
        ...


class Span(NamedTuple):
    """Some consecutive samples of one shard, as the index knows them: passed to `Format.parse` with their bytes.

    ``shard`` is the name of the shard, ``first_byte`` the position of the bytes in it, and ``head`` what `Format.scan`
    kept of it. ``sample_starts`` are offsets into the bytes, shape (num_samples + 1,), or None if the index does not
    keep them: for pieces, and in very large datasets, where a format finds them itself. A plain tuple, since one is
    created for every chunk.
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
        """Name of the format in an index; unique. A plain attribute will do, here and for the suffixes."""
        ...

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of the names of its shards, in lower case, each with its dot."""
        ...

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Find the samples of a shard of ``num_bytes`` bytes; raises `ShardError` with the byte where it cannot."""
        ...

    def parse(self, buffer: Buffer, span: Span) -> Records:
        """Open the bytes of some consecutive samples.

        Raises `ShardError`, with the byte counted from the start of the shard, if the bytes are not what the index
        says.
        """
        ...


@runtime_checkable
class OptionsFormat(Protocol):
    """A format with options that determine how it finds samples.

    These are options that differ from those implied by the name of the format, as JSON; an index keeps them.
    """

    options: Mapping[str, Any]


@runtime_checkable
class VersionedFormat(Protocol):
    """A format with a cutting rule of its own, whose version increases with each change.

    Scans cached under another version are not used.
    """

    scan_rule: int


@runtime_checkable
class CodecFormat(Protocol):
    """A format whose options say how its shards are compressed as a whole, "" if not; their names do not."""

    whole_codec: str


@runtime_checkable
class SchemaFormat(Protocol):
    """A format of tables, whose heads keep a schema."""

    def schema(self, head: Mapping[str, Any]) -> Any:
        """Return the Arrow schema that the head of a shard keeps."""
        ...

    def features(self, head: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the features that Hugging Face's ``datasets`` declares for the columns; None if it wrote none."""
        ...


@runtime_checkable
class FieldNamesFormat(Protocol):
    """A format whose shards may name the fields that all of their samples have."""

    def field_names(self, head: Mapping[str, Any]) -> Sequence[str] | None:
        """Return the fields of a shard's samples by its head, which may be empty; None if it does not name them.

        Fields that directories give (``column=value``) are not among them.
        """
        ...


@runtime_checkable
class ColumnarFormat(Protocol):
    """A format whose records may be `ColumnRecords`; only such formats are asked for columns when batching."""

    def projected(self, names: Sequence[str]) -> Format:
        """Return a copy that decodes only these fields of shards that have all of them, and all fields of others.

        Their order stays that of the shard.
        """
        ...


@runtime_checkable
class FieldsFormat(Protocol):
    """A columnar format that reads only the bytes that its fields need."""

    def read_fields(self, read: ReadBytes, end_byte: int, span: Span) -> Records:
        """Read the samples of ``span``, which ends at ``end_byte`` of the shard.

        Raises what `Format.parse` would.
        """
        ...


@runtime_checkable
class RecordFormat(Protocol):
    """A columnar format with shards whose records all have one length, which need not be parsed."""

    def record(self, head: Mapping[str, Any], *, shard: str) -> Record | None:
        """Return the common layout of a shard's samples by its head; None if they have no common length."""
        ...


@runtime_checkable
class PiecemealFormat(Protocol):
    """A format that reads one sample by several reads where that saves copying a large payload."""

    def read_sample(self, read: ReadBytes, end_byte: int, span: Span) -> Sample:
        """Read the one sample of ``span``, which ends at ``end_byte`` of the shard.

        Returns and raises what `Format.parse` of these bytes would.
        """
        ...


@runtime_checkable
class BesideFormat(Protocol):
    """A format of which another file beside a shard, if there is one, says where its samples are."""

    def scan_beside(self, beside: ReadBytes, beside_bytes: int, num_bytes: int, *, shard: str) -> ShardScan:
        """Find the samples of a shard of ``num_bytes`` bytes by the file beside it; raises what `Format.scan` would."""
        ...


@dataclass(frozen=True, slots=True)
class Unread:
    """Placeholder for the bytes of a field that were not read: only their number is known."""

    num_bytes: int


@runtime_checkable
class PartialFormat(Protocol):
    """A format that can read some fields of a sample and skip the bytes of others."""

    def read_wanted(self, read: ReadBytes, end_byte: int, span: Span, wanted: Callable[[str], bool]) -> Sample:
        """Read the one sample of ``span``, which ends at ``end_byte`` of the shard; fields not wanted are `Unread`.

        Raises what `Format.parse` of its bytes would, except about the bytes that are skipped.
        """
        ...


@runtime_checkable
class ViewingFormat(Protocol):
    """A format whose values can be views of the bytes they were parsed from."""

    def parse_views(self, buffer: Buffer, payloads: memoryview, span: Span) -> Records:
        """Parse like `Format.parse`, but with bytes as slices of ``payloads``, which has the bytes of ``buffer``."""
        ...


class SpillSpace(Protocol):
    """Local scratch space that decoded bytes are appended to and read back from."""

    def append(self, data: Buffer, /) -> None:
        """Append these bytes."""
        ...

    def read(self, first_byte: int, end_byte: int, /) -> bytes:
        """Return the bytes ``[first_byte, end_byte)`` of all that was appended."""
        ...


class Spilled(NamedTuple):
    """The layout of a decoded piece: parts that can be read alone.

    Part ``i`` is the bytes ``[borders[i], borders[i + 1])`` and holds ``samples_per_part`` samples, the last one
    perhaps fewer: ``num_samples`` in all; ``borders`` has shape (num_parts + 1,), int64. ``head`` is what
    `SpillingFormat.parse_part` must know about all parts; JSON types only, small.
    """

    borders: NDArray[np.int64]
    num_samples: int
    samples_per_part: int
    head: Mapping[str, Any] = MappingProxyType({})


@runtime_checkable
class SpillingFormat(Protocol):
    """A format of pieces that can be decoded into scratch space and read back there sample by sample."""

    @property
    def spilled_as(self) -> str:
        """Key that distinguishes pieces decoded in different ways: the format, and which of its columns."""
        ...

    def spill(self, read: ReadBytes, end_byte: int, span: Span, space: SpillSpace) -> Spilled:
        """Decode the piece of ``span``, which ends at ``end_byte`` of the shard, holding little of it at a time.

        Raises what `Format.parse` of its bytes would.
        """
        ...

    def parse_part(self, data: bytes, span: Span) -> Records:
        """Open one part; ``span`` has its offset in the whole, its samples and the ``head`` of `Spilled`."""
        ...


@runtime_checkable
class RecutFormat(Protocol):
    """A format whose cutting rule has changed, and which sees in a head how an index was cut."""

    def scan_as(self, head: Mapping[str, Any], read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Scan like `Format.scan`, cutting as the index did that keeps ``head`` of the shard."""
        ...


@runtime_checkable
class FrontFormat(Protocol):
    """A format of which only whole shards can be scanned, since their front describes the rest.

    Its records have ``starts``, the offsets at which samples begin and the last one ends: with these, pieces of such a
    shard, when compressed, are spilled.
    """

    needs_front: bool


@runtime_checkable
class MidwayFormat(Format, Protocol):
    """A format whose shards can be scanned from the beginning of any record on, which bytes alone may show.

    A scan from a guessed start serves to read ahead of the scan from the front, so a wrong guess does no harm.
    """

    def likely_start(self, buffer: Buffer, first_byte: int) -> int | None:
        """Return the byte of the shard at which a record first seems to begin in ``buffer``; None if none does.

        ``buffer`` begins at ``first_byte`` of the shard. What is cut off by its end need not be found.
        """
        ...


def reading_alone(format: Format) -> Callable[[ReadBytes, int, Span], Sample]:  # noqa: A002
    """Return `PiecemealFormat.read_sample` of the format, or else a function that reads the bytes of a sample whole."""
    if isinstance(format, PiecemealFormat):
        return format.read_sample

    def whole(read: ReadBytes, end_byte: int, span: Span, /) -> Sample:
        return format.parse(read(span.first_byte, end_byte), span).sample(0)

    return whole

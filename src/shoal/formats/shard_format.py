"""The base class of shard formats: where a shard has its samples, and which samples are in a range of its bytes.

A format sees a shard twice: `Format.scan` finds the samples once, when the index is built, and may read any byte of the
shard; `Format.parse` gets the bytes of some consecutive samples, any number of times, and hands out the samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shoal.formats.field_columns import Columns, Record
from shoal.index.shard_scan import Buffer, ShardScan

Sample = dict[str, Any]

ROW = "row"
"""Key of a head: the row of the shard in the table that lists the shards, as JSON; no scan adds it."""


class ReadBytes(Protocol):
    r"""A function that returns exactly the bytes ``[first_byte, end_byte)`` of one shard, or raises an error.

    Examples
    --------
    >>> data = b"one\ntwo\n"
    >>> read: shoal.formats.ReadBytes = lambda first_byte, end_byte: data[first_byte:end_byte]
    >>> read(4, 7)
    b'two'
    """

    def __call__(self, first_byte: int, end_byte: int, /) -> Buffer:
        """Return the bytes ``[first_byte, end_byte)`` of the shard."""
        ...


class Records(Protocol):
    r"""Some consecutive samples of one shard, parsed as far as needed to hand them out by number.

    Examples
    --------
    >>> records = shoal.formats.Text().parse(b"one\ntwo\n", shoal.formats.Span("a.txt", first_byte=0, num_samples=2))
    >>> len(records), records.sample(1)
    (2, {'text': 'two'})
    """

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
        """Return the fields of all samples; row ``i`` matches ``sample(i)``. None if some field is not a column."""
        ...


class Span(NamedTuple):
    r"""Some consecutive samples of one shard, as the index knows them: passed to `Format.parse` with their bytes.

    ``shard`` is the name of the shard, ``first_byte`` the position of the bytes in the shard, and ``head`` the head
    from `Format.scan`. ``sample_starts`` are offsets into the bytes, shape (num_samples + 1,), or None if the index has
    no offsets: for pieces, and in very large datasets, where the format finds the offsets. A span is a plain tuple,
    since every chunk creates a span.

    Examples
    --------
    >>> span = shoal.formats.Span("a.txt", first_byte=100, num_samples=2, sample_starts=[0, 4, 8])
    >>> shoal.formats.Text().parse(b"one\ntwo\n", span).sample(0)
    {'text': 'one'}
    """

    shard: str
    first_byte: int
    num_samples: int
    sample_starts: Sequence[int] | None = None
    head: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Unread:
    """Placeholder for the bytes of a field that were not read: only their number is known."""

    num_bytes: int


class SpillSpace(Protocol):
    """Local scratch space for decoded bytes: append-only, readable anywhere."""

    def append(self, data: Buffer, /) -> None:
        """Append these bytes."""
        ...

    def read(self, first_byte: int, end_byte: int, /) -> bytes:
        """Return the bytes ``[first_byte, end_byte)`` of all appended ones."""
        ...


class Spilled(NamedTuple):
    """The layout of a decoded piece: parts that can be read alone.

    Part ``i`` is the bytes ``[borders[i], borders[i + 1])`` and holds ``samples_per_part`` samples, the last one
    perhaps fewer: ``num_samples`` in all; ``borders`` has shape (num_parts + 1,), int64. ``head`` is what
    `Format.parse_part` must know about all parts; JSON types only, small.
    """

    borders: NDArray[np.int64]
    num_samples: int
    samples_per_part: int
    head: Mapping[str, Any] = MappingProxyType({})


class Content(Protocol):
    """Bytes that are read in ascending order: of a shard, or of a decompressed one whose size is not known yet."""

    @property
    def num_bytes(self) -> int | None:
        """Size of the content; None until a read has reached its end."""
        ...

    def read(self, first_byte: int, end_byte: int, /) -> Buffer:
        """Return the bytes ``[first_byte, end_byte)``, fewer only at the end; ranges must begin in ascending order."""
        ...


class StoredContent:
    """The bytes of a shard of known size; any range can be read."""

    def __init__(self, read: ReadBytes, num_bytes: int) -> None:
        self._read, self.num_bytes = read, num_bytes

    def read(self, first_byte: int, end_byte: int, /) -> Buffer:
        """Read a range; see `Content.read`."""
        end_byte = min(end_byte, self.num_bytes)
        return self._read(first_byte, end_byte) if first_byte < end_byte else b""


class BorderSink(Protocol):
    """A receiver of sample borders, in the order in which a scan finds them; it need not keep them all."""

    def add(self, borders: NDArray[np.int64], crcs: NDArray[np.uint32], /) -> None:
        """Receive the next borders, ascending, and the CRCs of the samples that end at these borders.

        The first border of a shard is the start of the first sample; every other border is the end of a sample.
        """
        ...


class SampleBorders:
    """All borders of a shard, 8 bytes a sample, and the samples' CRCs, 4 bytes more, unless ``with_crcs`` is False."""

    def __init__(self, *, with_crcs: bool = True) -> None:
        self._borders, self._crcs, self._keeps_crcs = array("q"), array("I"), with_crcs

    def add(self, borders: NDArray[np.int64], crcs: NDArray[np.uint32], /) -> None:
        """Keep the next borders and CRCs; see `BorderSink.add`."""
        if len(borders):
            self._borders.frombytes(np.ascontiguousarray(borders, dtype=np.int64).data.cast("B"))
        if self._keeps_crcs and len(crcs):
            self._crcs.frombytes(np.ascontiguousarray(crcs, dtype=np.uint32).data.cast("B"))

    def starts(self) -> NDArray[np.int64]:
        """Return where samples begin and the last one ends, shape (num_samples + 1,): [0] if there are none."""
        return np.frombuffer(self._borders, dtype=np.int64) if self._borders else np.zeros(1, dtype=np.int64)

    def crcs(self) -> NDArray[np.uint32]:
        """Return the CRC of each sample; shape (num_samples,)."""
        return np.frombuffer(self._crcs, dtype=np.uint32) if self._crcs else np.zeros(0, dtype=np.uint32)


class About(NamedTuple):
    """Findings of a scan besides the samples: ``head`` and ``notes`` of `ShardScan`."""

    head: Mapping[str, Any] = {}
    notes: Mapping[str, int] = {}


class Format(ABC):
    r"""One shard format: the base class of all formats.

    A format has a ``name``, ``suffixes``, `parse`, and `scan` or `scan_forward`. Everything else is optional: an
    attribute such as `has_columns` declares an ability, and the defaults fit a format without the ability.

    Examples
    --------
    >>> lines, data = shoal.formats.Text(), b"one\ntwo\n"
    >>> scan = lines.scan(lambda first_byte, end_byte: data[first_byte:end_byte], len(data), shard="a.txt")
    >>> lines.parse(data, shoal.formats.Span("a.txt", 0, 2, scan.sample_starts)).sample(1)
    {'text': 'two'}
    """

    name: str
    """Name of the format in an index; unique."""
    suffixes: tuple[str, ...]
    """Suffixes of the names of its shards, in lower case, each with its dot."""
    options: Mapping[str, Any] = MappingProxyType({})
    """Options that determine how samples are found, as JSON; an index keeps them. The name implies all others."""
    scan_rule: int = 0
    """Version of the format's own cutting rule: scans cached under another version are not used. 0: no rule."""
    whole_codec: str = ""
    """Codec that compresses shards as a whole, if an option and not the name says so."""
    needs_front: bool = False
    """Only whole shards can be scanned, since their front describes the rest.

    Records of such a format have ``starts``, the offsets where samples begin and the last one ends: with these, pieces
    of a compressed shard are spilled.
    """

    needs_bytes: bool = True
    """If False, `parse` reads its samples itself, through a library, and readers pass an empty buffer.

    Threads call `parse` ahead of the use of samples. `parse` raises `StorageError` for a failed read; a transient one
    is retried. Nothing of such shards is in a chunk cache, and bytes have no checksums.
    """

    @abstractmethod
    def parse(self, buffer: Buffer, span: Span) -> Records:
        """Open the bytes of some consecutive samples.

        Raises `ShardError`, with the byte counted from the start of the shard, if the bytes do not match the
        index.
        """

    def parse_together(self, spans: Sequence[Span]) -> list[Records]:
        """Return the records of several spans, perhaps of several shards; only for formats without `needs_bytes`.

        Raises as `parse` does, for any of the spans; readers then try each span alone.
        """
        return [self.parse(b"", span) for span in spans]

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Find the samples of a shard of ``num_bytes`` bytes; raises `ShardError` with the first invalid byte.

        The default calls `scan_forward`, and takes 12 bytes a sample on top of its memory.
        """
        borders = SampleBorders()
        about = self.scan_forward(StoredContent(read, num_bytes), borders, shard=shard)
        if about is None:
            raise NotImplementedError(f"{type(self).__name__} has neither scan nor scan_forward")
        return ShardScan(borders.starts(), borders.crcs(), head=about.head, notes=about.notes)

    def scan_forward(self, content: Content, borders: BorderSink, *, shard: str) -> About | None:  # noqa: ARG002
        """Find all samples of the content in one pass; raises as `scan` does.

        Returns None, the default, if the format cannot be scanned in one pass.
        """
        return None

    def scan_as(self, head: Mapping[str, Any], read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:  # noqa: ARG002
        """Scan like `scan`, with the cutting rule of the index that has this ``head``."""
        return self.scan(read, num_bytes, shard=shard)

    has_sidecar: bool = False
    """A file beside a shard may say where its samples are; `scan_sidecar` reads it."""

    def scan_sidecar(self, sidecar: ReadBytes, sidecar_bytes: int, num_bytes: int, *, shard: str) -> ShardScan:
        """Find the samples of a shard of ``num_bytes`` bytes by the file beside it; raises as `scan` does."""
        raise NotImplementedError  # nobody calls it: has_sidecar is False here

    can_start_midway: bool = False
    """A scan may begin at any record, and `likely_start` finds one: so remote scans read ahead from several places."""

    def likely_start(self, buffer: Buffer, first_byte: int) -> int | None:
        """Return the byte of the shard where a record first seems to begin in ``buffer``; None if none does.

        ``buffer`` begins at ``first_byte`` of the shard. A record cut off by the end of ``buffer`` need not be found. A
        wrong answer costs time and changes no scan.
        """
        raise NotImplementedError  # nobody calls it: can_start_midway is False here

    def field_names(self, head: Mapping[str, Any]) -> Sequence[str] | None:  # noqa: ARG002
        """Return the fields that all samples of a shard have, by its head, which may be empty; None if not known.

        Fields from directories (``column=value``) are not included.
        """
        return None

    def schema(self, head: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """Return the Arrow schema that the head of a shard keeps; None if the format has none."""
        return None

    def features(self, head: Mapping[str, Any]) -> dict[str, Any] | None:  # noqa: ARG002
        """Return the features that Hugging Face's ``datasets`` declares for the columns; None if there are none."""
        return None

    def record(self, head: Mapping[str, Any], *, shard: str) -> Record | None:  # noqa: ARG002
        """Return the common layout of a shard's samples by its head; None if they have no common length."""
        return None

    has_columns: bool = False
    """Records may be `ColumnRecords`; batches of other formats are never gathered from columns."""

    def projected(self, names: Sequence[str]) -> Format:  # noqa: ARG002
        """Return a copy that decodes only these fields of shards that have all of them, and all fields of others.

        Fields keep the order of the shard. The default returns the format itself.
        """
        return self

    reads_fields: bool = False
    """`read_fields` reads fewer bytes than `parse` takes."""

    def read_fields(self, read: ReadBytes, end_byte: int, span: Span) -> Records:
        """Read the samples of ``span``, which ends at ``end_byte`` of the shard, without bytes of unwanted fields.

        Raises as `parse` does.
        """
        return self.parse(read(span.first_byte, end_byte), span)

    def read_sample(self, read: ReadBytes, end_byte: int, span: Span) -> Sample:
        """Read the one sample of ``span``, which ends at ``end_byte`` of the shard.

        A format may use several reads, which saves copying a large payload. Returns and raises
        as `parse` of these bytes does.
        """
        return self.parse(read(span.first_byte, end_byte), span).sample(0)

    skips_fields: bool = False
    """`read_wanted` skips the bytes of unwanted fields."""

    def read_wanted(self, read: ReadBytes, end_byte: int, span: Span, wanted: Callable[[str], bool]) -> Sample:  # noqa: ARG002
        """Read the one sample of ``span``, which ends at ``end_byte`` of the shard; unwanted fields may be `Unread`.

        Raises as `parse` of its bytes does, except about the skipped bytes.
        """
        return self.read_sample(read, end_byte, span)

    has_views: bool = False
    """`parse_views` returns values that are views of the parsed bytes."""

    def parse_views(self, buffer: Buffer, payloads: memoryview, span: Span) -> Records:  # noqa: ARG002
        """Parse like `parse`, but with bytes as slices of ``payloads``, which has the bytes of ``buffer``."""
        return self.parse(buffer, span)

    spilled_as: str = ""
    """Key of the way in which `spill` decodes pieces: the format, and its columns. Empty: pieces cannot be spilled."""

    def spill(self, read: ReadBytes, end_byte: int, span: Span, space: SpillSpace) -> Spilled:
        """Decode the piece of ``span``, which ends at ``end_byte`` of the shard, holding little of it at a time.

        Raises the same errors as `parse`.
        """
        raise NotImplementedError  # nobody calls it: spilled_as is empty here

    def parse_part(self, data: bytes, span: Span) -> Records:
        """Open one part; ``span`` has its offset in the whole, its samples and the ``head`` of `Spilled`."""
        raise NotImplementedError  # nobody calls it: spilled_as is empty here


_MEMBERS = ("name", "suffixes", *(member for member in vars(Format) if not member.startswith("_")))


class _PlainFormat(Format):
    """A format from a class that does not inherit from `Format`, with the defaults of missing members."""

    def __init__(self, plain: Any) -> None:
        vars(self).update({member: getattr(plain, member) for member in _MEMBERS if hasattr(plain, member)})
        self._plain = plain

    def parse(self, buffer: Buffer, span: Span) -> Records:
        records: Records = self._plain.parse(buffer, span)
        return records


def as_format(plain: Any) -> Format:
    """Return a format as an object of `Format`, with the defaults for members that its own class lacks."""
    return plain if isinstance(plain, Format) else _PlainFormat(plain)

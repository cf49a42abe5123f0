"""MDS shards, as MosaicML Streaming writes them: a table of offsets, a description of the columns, samples.

Layout: ``u32 n``, ``u32 offsets[n + 1]`` counted from the start of the file, JSON that describes the columns, and the
samples. A sample is a ``u32`` size for every column of variable size, then the values one after another. So the head
of a shard gives the position of all samples, and a sample can be read alone.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError, UsageError
from shoal.formats.compiled_cutting import is_compiled, mds_sample, mds_samples
from shoal.formats.field_columns import Columns, Kind, Record, wanted_of
from shoal.formats.rows.mds.encodings import (
    NoFileError,
    StoredValue,
    array_of,
    compiled_kind,
    decoder_of,
    files_of,
    fixed_bytes_of,
)
from shoal.formats.rows.offset_table import offset_crcs, read_offsets, table_bytes, walk_sizes
from shoal.formats.rows.records import BadRecordError, Cut, CutRecords, borders_in
from shoal.formats.shard_format import Format, ReadBytes, Sample, Span
from shoal.index.shard_scan import Buffer, ShardScan

_DESCRIPTION_LIMIT_BYTES = 16 << 20
_LARGE_BYTES = 16 << 10  # a value from here on is read by itself: one more read costs less than one more copy
_NO_SHARD = "this is not an MDS shard, or it is compressed or damaged"


class Mds(Format):
    """The format of MosaicML Streaming; a sample has the columns of its shard, decoded as Streaming does.

    ``allow_pickle`` reads columns of pickles, which runs any code in them.

    Examples
    --------
    >>> shoal.open("docs", format=shoal.formats.Mds(allow_pickle=True))[0]
    {'tokens': array([100, 101, 102, 103, 104, 105, 106, 107], dtype=uint16), 'num_tokens': 8}
    """

    name: str = "mds"
    suffixes: tuple[str, ...] = (".mds",)
    has_columns = True
    needs_front = True  # the front holds the table of samples

    def __init__(self, *, allow_pickle: bool = False) -> None:
        self.allow_pickle = allow_pickle
        self._wanted: tuple[str, ...] | None = None
        self._files: tuple[str, ...] | None = None  # None: decoded values; else the encodings that stay as stored

    def projected(self, names: Sequence[str]) -> Mds:
        """Return a copy that decodes only these columns of shards that have all of them."""
        projected = Mds(allow_pickle=self.allow_pickle)
        projected._wanted, projected._files = tuple(names), self._files
        return projected

    def with_files(self, stored: Collection[str] = ()) -> Mds:
        """Return a copy that gives images as bytes of files: a JPEG or PNG as it is, pixels as a PNG.

        Values of the encodings ``stored`` are not decoded: they are `StoredValue`, for shards with the same encoding.
        """
        other = Mds(allow_pickle=self.allow_pickle)
        other._wanted, other._files = self._wanted, tuple(sorted(stored))
        return other

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Read the head of a shard, 4 bytes a sample; the layout CRC of a sample covers its two offsets.

        Raises `ShardError` if the head contradicts itself or the size of the shard.
        """
        starts = read_offsets(read, num_bytes, shard=shard, least_bytes=1, hint=_NO_SHARD)
        columns = _described_columns(read, table_bytes(len(starts) - 1), int(starts[0]), shard)
        return ShardScan(starts, offset_crcs(starts), head={"columns": columns})

    def record(self, head: Mapping[str, Any], *, shard: str) -> Record | None:
        """Return a sample's layout if all columns have a fixed size: they follow each other without gaps; else None."""
        layout, kinds = _record_of(self._columns(head, shard))
        return None if layout is None else Record(layout, kinds)

    def field_names(self, head: Mapping[str, Any]) -> Sequence[str] | None:
        """Return the names of the columns."""
        return [str(column[0]) for column in head.get("columns", ())] or None

    def _columns(self, head: Mapping[str, Any], shard: str) -> tuple[_Column, ...]:
        try:
            return _known_columns(tuple(map(tuple, head["columns"])), self.allow_pickle, self._wanted, self._files)
        except UsageError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            msg = f"the index does not say which columns this shard has ({error!r})"
            raise ShardError(msg, shard=shard, hint="index it again") from None

    def parse(self, buffer: Buffer, span: Span) -> CutRecords:
        """Open the bytes of consecutive samples; each is decoded on request.

        Raises `ShardError` if the bytes do not hold that many samples.
        """
        columns = self._columns(span.head, span.shard)
        num_sizes = sum(column.fixed_bytes is None for column in columns)
        fixed_bytes = sum(column.fixed_bytes or 0 for column in columns)
        walk = partial(walk_sizes, buffer, span.num_samples, num_sizes=num_sizes, fixed_bytes=fixed_bytes)
        starts = borders_in(buffer, span, walk)
        crcs, decode = partial(offset_crcs, starts, span.first_byte), _decoder(columns)
        gathered = partial(_gathered, columns, buffer, starts)
        return CutRecords(buffer, starts, span, decode=decode, crcs=crcs, columns=gathered, cut=_cutter(columns))

    def read_sample(self, read: ReadBytes, end_byte: int, span: Span) -> Sample:
        """Read one sample, each large value by itself, so that it is copied once.

        Raises `ShardError` as `parse` and `CutRecords.sample` do.
        """
        sample = _decoder(self._columns(span.head, span.shard)).read(read, span.first_byte, end_byte)
        if sample is not None:
            return sample
        return self.parse(read(span.first_byte, end_byte), span).sample(0)


def _gathered(columns: tuple[_Column, ...], buffer: Buffer, starts: Sequence[int]) -> Columns | None:
    """Return the columns as views of the bytes, if all values are numbers or arrays of one shape; else None. O(1)."""
    record, kinds = _record_of(columns)
    num_samples = len(starts) - 1
    if record is None or starts[-1] - starts[0] != num_samples * record.itemsize:
        return None
    records: NDArray[Any] = np.ndarray((num_samples,), record, buffer, starts[0])
    return Columns(kinds, tuple(records[name] for name, _ in kinds))


class _SampleDecoder:
    """Decoder of samples with these columns, prepared once."""

    __slots__ = ("_columns", "_front_bytes", "_head_bytes", "_plain", "_sizes")

    def __init__(self, columns: tuple[_Column, ...]) -> None:
        self._columns = [(column, column.fixed_bytes) for column in columns]
        self._plain: list[tuple[str, int | None, Callable[[bytes], Any] | None]] | None = None
        self._sizes = Struct(f"<{sum(column.fixed_bytes is None for column in columns)}I")
        self._head_bytes = self._sizes.size
        fixed = itertools.takewhile(
            lambda size: size is not None and size < _LARGE_BYTES, (size for _, size in self._columns)
        )
        self._front_bytes = self._head_bytes + sum(size for size in fixed if size is not None)

    def __call__(self, data: bytes) -> Sample:
        """Return the values of a sample, by the sizes at its start."""
        sample: Sample = {}
        at = self._head_bytes
        try:
            sizes = iter(self._sizes.unpack_from(data))
            for name, fixed_bytes, decode in self._plain or self._decoders():
                end = at + (fixed_bytes or next(sizes))
                if decode is not None:
                    sample[name] = decode(data[at:end])
                at = end
        except Exception:  # noqa: BLE001  # `_checked` below reports the defect
            at = -1
        return sample if at == len(data) else self._checked(data)

    def read(self, read: ReadBytes, first_byte: int, end_byte: int) -> Sample | None:
        """Read the sample in these bytes of a shard by several reads; None if it is invalid or has no large value."""
        at = first_byte + self._front_bytes
        if at > end_byte:
            return None
        data, base = bytes(read(first_byte, at)), first_byte
        sizes = iter(self._sizes.unpack_from(data))
        at = first_byte + self._head_bytes
        borders = [at, *(at := at + (size or next(sizes)) for _, size in self._columns)]
        if at != end_byte or max(end - begin for begin, end in pairwise(borders)) < _LARGE_BYTES:
            return None
        sample: Sample = {}
        try:
            for number, (name, _, decode) in enumerate(self._plain or self._decoders()):
                begin, end = borders[number : number + 2]
                if decode is None:
                    continue
                if end - begin >= _LARGE_BYTES:
                    sample[name] = decode(bytes(read(begin, end)))
                    continue
                if end > base + len(data):  # with the small values that follow
                    stops = itertools.takewhile(
                        lambda pair: pair[1] - pair[0] < _LARGE_BYTES, pairwise(borders[number:])
                    )
                    base, data = begin, bytes(read(begin, max(stop for _, stop in stops)))
                sample[name] = decode(data[begin - base : end - base])
        except Exception:  # noqa: BLE001  # reading all of it reports the defect
            return None
        return sample

    def _decoders(self) -> list[tuple[str, int | None, Callable[[bytes], Any] | None]]:
        """Return names, sizes and decoders, None for an unwanted column; raises `UsageError` for pickles."""
        self._plain = [
            (column.name, size, column.decode if column.is_wanted else None) for column, size in self._columns
        ]
        return self._plain

    def _checked(self, data: bytes) -> Sample:
        """Return the values of a sample, checking each step; raises `BadRecordError` with the byte of a defect."""
        sample: Sample = {}
        at = end = self._head_bytes
        num_bytes = len(data)
        sizes = iter(self._sizes.unpack_from(data) if end <= num_bytes else ())
        for column, fixed_bytes in self._columns:
            end = at + (next(sizes, num_bytes) if fixed_bytes is None else fixed_bytes)
            if end > num_bytes:
                raise BadRecordError(f"column {column.name!r} ends after its sample, which has {num_bytes} bytes")
            if column.is_wanted:
                try:
                    sample[column.name] = column.decode(data[at:end])
                except UsageError:
                    raise
                except NoFileError as error:
                    raise BadRecordError(f"column {column.name!r} {error}", byte=at, hint=error.hint) from None
                except (ValueError, RecursionError, OSError, SyntaxError) as error:
                    msg = f"column {column.name!r} is not a valid {column.encoding}: {error}"
                    raise BadRecordError(msg, byte=at) from None
            at = end
        if end != num_bytes:
            raise BadRecordError(f"the columns of this sample have {end} bytes, but the sample has {num_bytes}")
        return sample


@dataclass(frozen=True, eq=False)
class _Column:
    """One column; ``stored`` are the encodings whose values stay as they lie in the shard, None if all are decoded."""

    name: str
    encoding: str
    is_wanted: bool
    allow_pickle: bool
    stored: tuple[str, ...] | None

    @cached_property
    def fixed_bytes(self) -> int | None:
        return fixed_bytes_of(self.encoding)

    @cached_property
    def decode(self) -> Callable[[bytes], Any]:
        if self.stored is not None and self.encoding in self.stored:
            return StoredValue
        as_files = None if self.stored is None else files_of(self.encoding)
        return as_files or decoder_of(self.encoding, allow_pickle=self.allow_pickle)


@lru_cache(maxsize=64)
def _known_columns(
    pairs: tuple[tuple[str, str], ...],
    allow_pickle: bool,  # noqa: FBT001
    wanted: tuple[str, ...] | None,
    files: tuple[str, ...] | None,
) -> tuple[_Column, ...]:
    chosen = wanted_of([name for name, _ in pairs], wanted)
    return tuple(_Column(name, encoding, name in chosen, allow_pickle, files) for name, encoding in pairs)


@lru_cache(maxsize=64)
def _decoder(columns: tuple[_Column, ...]) -> _SampleDecoder:
    return _SampleDecoder(columns)


@lru_cache(maxsize=64)
def _cutter(columns: tuple[_Column, ...]) -> Cut | None:
    """Return the compiled twins of `_decoder`; None if there are none."""
    if not is_compiled:
        return None
    try:
        kinds = [compiled_kind(column.decode) if column.is_wanted else None for column in columns]
    except UsageError:  # raised again for the first sample
        return None
    sizes = [column.fixed_bytes for column in columns]
    described = tuple(
        (column.name, -1 if size is None else size, kind)
        for column, size, kind in zip(columns, sizes, kinds, strict=True)
    )
    return Cut(partial(mds_sample, described, sizes.count(None)), partial(mds_samples, described, sizes.count(None)))


@lru_cache(maxsize=64)
def _record_of(columns: tuple[_Column, ...]) -> tuple[np.dtype[Any] | None, tuple[tuple[str, Kind], ...]]:
    """Return a sample's numpy record type, if all values are numbers or arrays of one shape; and its wanted fields."""
    kinds = [array_of(column.encoding) for column in columns]
    fields = [(column.name, *kind) for column, kind in zip(columns, kinds, strict=True) if kind is not None]
    if len(fields) < len(columns):
        return None, ()
    wanted = tuple(
        (column.name, Kind("number" if column.encoding == "int" else "array", kind.newbyteorder("="), shape))
        for column, (_, kind, shape) in zip(columns, fields, strict=True)
        if column.is_wanted
    )
    return np.dtype(fields), wanted


def _described_columns(read: ReadBytes, begin: int, end: int, shard: str) -> list[list[str]]:
    """Return names and encodings from the description at bytes ``[begin, end)``, checked."""
    try:
        if end - begin > _DESCRIPTION_LIMIT_BYTES:
            raise ValueError(f"it has {end - begin} bytes")
        description = json.loads(bytes(read(begin, end)))
        names, encodings, sizes = (description[f"column_{what}"] for what in ("names", "encodings", "sizes"))
        columns = [[str(name), str(encoding)] for name, encoding in zip(names, encodings, strict=True)]
        for (name, encoding), size in zip(columns, sizes, strict=True):
            if fixed_bytes_of(encoding) != size:
                raise ValueError(f"column {name!r}, {encoding}, has {size} bytes a value")
            decoder_of(encoding, allow_pickle=True)
        if not columns or len({name for name, _ in columns}) < len(columns):
            raise ValueError(f"columns {names}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        what = error.message if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        msg = f"the description of the columns at bytes [{begin}, {end}) cannot be read: {what:.200}"
        raise ShardError(msg, shard=shard, byte=begin, hint=_NO_SHARD) from None
    return columns

"""MDS shards, as MosaicML Streaming writes them: a table of offsets, a description of the columns, samples.

``u32 n``, ``u32 offsets[n + 1]`` counted from the start of the file, JSON that describes the columns, and the samples,
each of which is a ``u32`` size for every column of variable size and then the values one after the other. So the head
of a shard says where all of its samples are, and a sample can be read alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError, UsageError
from shoal.shards.mds_encodings import Decode, array_of, decoder_of, fixed_bytes_of
from shoal.shards.protocol import Buffer, ReadBytes, Sample, ShardScan

__all__ = ["Mds", "MdsRecords"]

_DESCRIPTION_LIMIT_BYTES = 16 << 20
_NO_SHARD = "this is no MDS shard, a compressed or a damaged one"
_OTHER_FILE = "the shard is damaged, or not the one that was indexed: copy it again, or index it again"


class Mds:
    """The format of MosaicML Streaming; a sample has the columns of its shard, decoded as Streaming does.

    With ``allow_pickle`` columns of pickles are read, which runs whatever code is in them.
    """

    name: str = "mds"
    suffixes: tuple[str, ...] = (".mds",)

    def __init__(self, *, allow_pickle: bool = False) -> None:
        self.allow_pickle = allow_pickle

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Read the head of a shard, 4 bytes a sample; the layout CRC of a sample is that of its two offsets.

        Raises
        ------
        ShardError
            Where the head contradicts itself or the size of the shard.
        """
        num_samples = int(np.frombuffer(read(0, 4), "<u4")[0]) if num_bytes >= 8 else -1
        if num_samples < 0 or 4 * (num_samples + 2) > num_bytes:
            msg = f"a head for {num_samples} samples does not fit into {num_bytes} bytes"
            raise ShardError(msg, shard=shard, byte=0, hint=_NO_SHARD)
        table_end = 4 * (num_samples + 2)
        starts = np.frombuffer(read(4, table_end), "<u4").astype(np.int64)
        wrong = np.flatnonzero(np.diff(starts, prepend=table_end) < (np.arange(num_samples + 1) > 0))
        if wrong.size or starts[-1] != num_bytes:
            place = int(wrong[0]) if wrong.size else num_samples
            msg = f"sample {place} begins at byte {starts[place]} by the table of offsets; the shard has {num_bytes}"
            raise ShardError(msg, shard=shard, byte=4 * (1 + place), hint=_NO_SHARD)
        columns = _columns(read, table_end, int(starts[0]), shard)
        return ShardScan(starts, _layout_crcs(starts), head={"columns": columns})

    def read_sample(
        self, read: ReadBytes, first_byte: int, end_byte: int, *, shard: str, head: Mapping[str, Any]
    ) -> Sample:
        """One sample, read whole."""
        sample, borders = read(first_byte, end_byte), [0, end_byte - first_byte]
        return self.parse(sample, borders, num_samples=1, shard=shard, first_byte=first_byte, head=head).sample(0)

    def parse(
        self,
        buffer: Buffer,
        sample_starts: Sequence[int] | None,
        *,
        num_samples: int,
        shard: str,
        first_byte: int,
        head: Mapping[str, Any],
    ) -> MdsRecords:
        """Open the bytes of consecutive samples; each is decoded when it is asked for.

        Raises
        ------
        ShardError
            Where the bytes do not hold so many samples.
        """
        try:
            columns = _known_columns(tuple(map(tuple, head["columns"])), self.allow_pickle)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, UsageError):
                raise
            msg = f"the index does not say which columns this shard has ({error!r})"
            raise ShardError(msg, shard=shard, hint="index it again") from None
        starts = _walk(buffer, columns, num_samples) if sample_starts is None else sample_starts
        whole = starts[-1] == len(buffer) if sample_starts is None else starts[-1] <= len(buffer)
        if len(starts) != num_samples + 1 or not whole:
            msg = f"the index says {num_samples} samples in these {len(buffer)} bytes, and they do not hold them"
            raise ShardError(msg, shard=shard, byte=first_byte, hint=_OTHER_FILE)
        return MdsRecords(buffer, starts, shard, first_byte, columns)


class MdsRecords:
    """Some consecutive samples of a shard, handed out by number."""

    __slots__ = ("_buffer", "_columns", "_first_byte", "_num_sizes", "_shard", "_starts")

    def __init__(
        self, buffer: Buffer, starts: Sequence[int], shard: str, first_byte: int, columns: tuple[_Column, ...]
    ) -> None:
        self._buffer, self._starts, self._shard, self._first_byte = buffer, starts, shard, first_byte
        self._columns = columns
        self._num_sizes = sum(column.fixed_bytes is None for column in columns)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def layout_crcs(self) -> NDArray[np.uint32]:
        """The CRCs of the offsets of each sample, as `Mds.scan` gives them; shape (len,)."""
        return _layout_crcs(np.asarray(self._starts, dtype=np.int64) + self._first_byte)

    def columns(self) -> dict[str, NDArray[Any]] | None:
        """The columns as views of the bytes, where all values are numbers or arrays of one shape; else None. O(1)."""
        record = _record_of(self._columns)
        if record is None or self._starts[-1] - self._starts[0] != len(self) * record.itemsize:
            return None
        records: NDArray[Any] = np.ndarray((len(self),), record, self._buffer, self._starts[0])
        return {column.name: records[column.name] for column in self._columns}

    def sample(self, number: int) -> Sample:
        """Sample ``number``; O(its bytes).

        Raises
        ------
        ShardError
            Where its sizes contradict each other, or a value is none of its encoding.
        """
        start, end = self._starts[number], self._starts[number + 1]
        data = bytes(memoryview(self._buffer)[start:end])
        at = 4 * self._num_sizes
        sizes = iter(np.frombuffer(data, "<u4", count=self._num_sizes).tolist() if at <= len(data) else ())
        sample: Sample = {}
        for column in self._columns:
            size = next(sizes, None) if column.fixed_bytes is None else column.fixed_bytes
            if size is None or at + size > len(data):
                msg = f"column {column.name!r} ends after its sample, which has {len(data)} bytes"
                raise self._wrong(msg, start)
            try:
                sample[column.name] = column.decode(data[at : at + size])
            except (ValueError, RecursionError, OSError, SyntaxError) as error:
                if isinstance(error, UsageError):
                    raise
                msg = f"column {column.name!r} is no {column.encoding}: {error}"
                raise self._wrong(msg, start + at) from None
            at += size
        if at != len(data):
            msg = f"the columns of this sample have {at} bytes, and it has {len(data)}"
            raise self._wrong(msg, start)
        return sample

    def _wrong(self, what: str, byte: int) -> ShardError:
        return ShardError(what, shard=self._shard, byte=self._first_byte + byte, hint=_OTHER_FILE)


class _Column:
    """One column: its name, how many bytes a value has where all have as many, and how one is decoded."""

    __slots__ = ("_decode", "allow_pickle", "encoding", "fixed_bytes", "name")

    def __init__(self, name: str, encoding: str, *, allow_pickle: bool) -> None:
        self.name, self.encoding, self.allow_pickle = name, encoding, allow_pickle
        self.fixed_bytes = fixed_bytes_of(encoding)
        self._decode: Decode | None = None

    def decode(self, data: bytes) -> Any:
        if self._decode is None:
            self._decode = decoder_of(self.encoding, allow_pickle=self.allow_pickle)
        return self._decode(data)


@lru_cache(maxsize=64)
def _known_columns(pairs: tuple[tuple[str, str], ...], allow_pickle: bool) -> tuple[_Column, ...]:  # noqa: FBT001
    return tuple(_Column(name, encoding, allow_pickle=allow_pickle) for name, encoding in pairs)


@lru_cache(maxsize=64)
def _record_of(columns: tuple[_Column, ...]) -> np.dtype[Any] | None:
    """A sample as a record of numpy's, where all values are numbers or arrays of one shape."""
    kinds = [array_of(column.encoding) for column in columns]
    fields = [(column.name, *kind) for column, kind in zip(columns, kinds, strict=True) if kind is not None]
    return np.dtype(fields) if len(fields) == len(columns) else None


def _columns(read: ReadBytes, begin: int, end: int, shard: str) -> list[list[str]]:
    """Names and encodings from the description at bytes ``[begin, end)``, checked."""
    try:
        if end - begin > _DESCRIPTION_LIMIT_BYTES:
            msg = f"it has {end - begin} bytes"
            raise ValueError(msg)  # noqa: TRY301  # said in one place below
        found = json.loads(bytes(read(begin, end)))
        names, encodings, sizes = (found[f"column_{what}"] for what in ("names", "encodings", "sizes"))
        columns = [[str(name), str(encoding)] for name, encoding in zip(names, encodings, strict=True)]
        for (name, encoding), size in zip(columns, sizes, strict=True):
            if fixed_bytes_of(encoding) != size:
                msg = f"column {name!r}, {encoding}, has {size} bytes a value"
                raise ValueError(msg)  # noqa: TRY301
        decoders = [decoder_of(encoding, allow_pickle=True) for _, encoding in columns]
        if not decoders or len({name for name, _ in columns}) < len(columns):
            msg = f"columns {names}"
            raise ValueError(msg)  # noqa: TRY301
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        what = error.message if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        msg = f"the description of the columns at bytes [{begin}, {end}) cannot be read: {what:.200}"
        raise ShardError(msg, shard=shard, byte=begin, hint=_NO_SHARD) from None
    return columns


def _layout_crcs(starts: NDArray[np.int64]) -> NDArray[np.uint32]:
    words = starts.astype("<u4")
    pairs = np.stack([words[:-1], words[1:]], axis=1).tobytes() if len(words) > 1 else b""
    return np.array([crc32(pairs[at : at + 8]) for at in range(0, len(pairs), 8)], dtype=np.uint32)


def _walk(buffer: Buffer, columns: Sequence[_Column], num_samples: int) -> list[int]:
    """Where samples begin, from the sizes that each has at its start; fewer where they lead out of the buffer."""
    fixed = sum(column.fixed_bytes or 0 for column in columns)
    num_sizes = sum(column.fixed_bytes is None for column in columns)
    starts = [0]
    while len(starts) <= num_samples and starts[-1] + 4 * num_sizes <= len(buffer):
        sizes = np.frombuffer(buffer, "<u4", count=num_sizes, offset=starts[-1])
        starts.append(starts[-1] + 4 * num_sizes + fixed + int(sizes.sum(dtype=np.int64)))
    return starts

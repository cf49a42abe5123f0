"""Shards joined from parts of many objects, for tables whose files each hold a part of a field, such as Zarr.

A joined shard is a row of pieces. A piece has the number of its first row, the end of its rows and the sizes of its
parts (int64, little-endian), and then its parts as they are stored. So every piece has bytes, even if no part is
stored, and a part may be in several pieces. `JoinedStore` makes the bytes, and `JoinedPieces` reads them.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from hashlib import blake2b
from itertools import accumulate
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError, ShoalError, StorageError
from shoal.formats.by_library.array_rows import ArrayRows
from shoal.formats.field_columns import wanted_of
from shoal.formats.shard_format import Format, ReadBytes, Span
from shoal.index.shard_scan import Buffer, ShardScan
from shoal.storage.storage_errors import CHANGED_HINT
from shoal.storage.store_protocol import ObjectInfo, Store, StoreWrapper, check_length

_ROWS_BYTES = 16
_MOST_SHARDS = 64
_HINT = "an object was damaged or replaced? compare it with its source"


Pieces = Sequence[tuple[int, int, Sequence[Buffer]]]
"""Pieces in a row: the first row of each, the end of its rows, and the bytes of its parts."""


class Part(NamedTuple):
    """Some bytes of a stored object; no bytes, and no object, for a part that is not stored."""

    stored: ObjectInfo | None = None
    first_byte: int = 0
    num_bytes: int = 0


class JoinedRows(NamedTuple):
    """The rows ``[row, end_row)`` of a table, and their parts in the order of `JoinedPieces.decoded`."""

    row: int
    end_row: int
    parts: Sequence[Part]


class JoinedStore(StoreWrapper):
    """A store of joined shards, whose parts ``store`` reads; ``pieces_of`` returns the pieces of a shard by its path.

    ``pieces_of`` is pickled for workers, and may read ``store``. The version of a shard is made of the versions of its
    objects; the last 64 shards are remembered.
    """

    def __init__(self, store: Store, pieces_of: Callable[[str], Sequence[JoinedRows]]) -> None:
        super().__init__(store)
        self._pieces_of, self._shards = pieces_of, dict[str, _JoinedShard]()

    def __reduce__(self) -> tuple[object, ...]:
        return JoinedStore, (self.store, self._pieces_of)

    def stat(self, path: str) -> ObjectInfo:
        """Return size and version of a joined shard."""
        shard = self._shard(path)
        return ObjectInfo(path, shard.num_bytes, shard.version)

    find = stat

    def stat_again(self, path: str) -> ObjectInfo:
        """`stat` with the pieces looked up again."""
        self._shards.pop(path, None)
        return self.stat(path)

    def close(self) -> None:
        """Close connections, and forget the pieces of shards."""
        self._shards.clear()
        super().close()

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """Return bytes of a joined shard, by one request for each part."""
        shard, at, data = self._shard(path), first_byte, []
        for number in range(bisect_right(shard.ends, first_byte), len(shard.ends)):
            if at >= end_byte:
                break
            source, first, size = shard.sources[number]
            start, stop = shard.ends[number] - size, min(shard.ends[number], end_byte)
            span = first + at - start, first + stop - start
            data.append(source[slice(*span)] if isinstance(source, bytes) else self.store.read_range(source, *span))
            at = stop
        check_length(path, first_byte, end_byte, at - first_byte, shard.num_bytes)
        return b"".join(data)

    def _shard(self, path: str) -> _JoinedShard:
        if (shard := self._shards.get(path)) is None:
            if len(self._shards) >= _MOST_SHARDS:
                self._shards.clear()
            pieces = self._pieces_of(path)
            for stored in {part.stored for piece in pieces for part in piece.parts if part.stored is not None}:
                # Remote stores compare the versions of what they read.
                if self.reads_ahead and self.store.stat(stored.path) != stored:
                    raise StorageError(f"{stored.path}: this object has changed since it was listed", hint=CHANGED_HINT)
            shard = self._shards[path] = _JoinedShard.of(pieces)
        return shard


class _JoinedShard(NamedTuple):
    """The sources of a shard's bytes (bytes, or a path; first byte; number of bytes), where each ends, a version."""

    sources: list[tuple[bytes | str, int, int]]
    ends: list[int]
    version: str

    @property
    def num_bytes(self) -> int:
        return self.ends[-1] if self.ends else 0

    @classmethod
    def of(cls, pieces: Sequence[JoinedRows]) -> _JoinedShard:
        sources: list[tuple[bytes | str, int, int]] = []
        versions: dict[str, str] = {}
        for row, end_row, parts in pieces:
            head = np.array([row, end_row, *(part.num_bytes for part in parts)], "<i8").tobytes()
            sources.append((head, 0, len(head)))
            for stored, first_byte, num_bytes in parts:
                if stored is not None and num_bytes:
                    sources.append((stored.path, first_byte, num_bytes))
                    versions[stored.path] = stored.version
        digest = blake2b(json.dumps(versions).encode(), digest_size=16).hexdigest()
        is_versioned = all(versions.values())
        return cls(sources, list(accumulate(size for _, _, size in sources)), digest if is_versioned else "")


class JoinedPieces(Format):
    """Base class of the formats of joined shards: `fields`, `row_bytes`, `num_parts` and `decoded` define a format."""

    suffixes: tuple[str, ...] = ()
    has_columns = True
    fields: Sequence[str]
    """Names of the fields, in their order."""
    row_bytes: int
    """Bytes of a decoded row, about."""
    _wanted: Sequence[str] | None = None

    @abstractmethod
    def num_parts(self, row: int, end_row: int) -> int:
        """Return how many parts the piece of these rows has; raise ValueError if no piece has these rows."""

    @abstractmethod
    def decoded(self, pieces: Pieces, names: Sequence[str]) -> Mapping[str, NDArray[Any]]:
        """Return the rows of the named fields.

        An array owns its memory. Any exception becomes a `ShardError`.
        """

    def projected(self, names: Sequence[str]) -> JoinedPieces:
        """Return a copy that decodes only these fields."""
        projected = copy(self)
        vars(projected)["_wanted"] = tuple(names)
        return projected

    def field_names(self, head: Mapping[str, Any]) -> Sequence[str]:  # noqa: ARG002
        """Return the fields."""
        return self.fields

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Read only the sizes; raises `ShardError` if pieces do not follow one another."""
        heads = list(self._heads(read, 0, num_bytes, shard))
        counts = np.array([head[1] - head[0] for _, head in heads], np.int64)
        borders = np.array([*(first_byte for first_byte, _ in heads), num_bytes], np.int64)
        return ShardScan(
            borders, _crcs(heads), piece_samples=counts, piece_decoded_bytes=counts * self.row_bytes
        )  # fmt: skip

    def parse(self, buffer: Buffer, span: Span) -> ArrayRows:
        """Decode some pieces; raises `ShardError` if they cannot be decoded, or have other rows than the index says."""
        view, first_byte = memoryview(buffer), span.first_byte

        def read(first: int, end: int, /) -> Buffer:
            return view[first - first_byte : end - first_byte]

        heads = list(self._heads(read, first_byte, first_byte + len(view), span.shard))
        pieces = []
        for begin, head in heads:
            borders = (begin + head.nbytes + np.cumsum([0, *head[2:]])).tolist()
            pieces.append((int(head[0]), int(head[1]), [read(*borders[at : at + 2]) for at in range(len(head) - 2)]))
        num_rows = sum(end_row - row for row, end_row, _ in pieces)
        try:
            if num_rows != span.num_samples:
                raise ValueError(f"the index says {span.num_samples} rows, but the pieces have {num_rows}")
            names = wanted_of(self.fields, self._wanted)
            rows = ArrayRows(self.decoded(pieces, names), _crcs(heads))
            if len(rows) != num_rows:
                raise ValueError(f"{len(rows)} rows were decoded instead of {num_rows}")
        except ShoalError:
            raise
        except Exception as error:
            where = f"rows [{pieces[0][0]}, {pieces[-1][1]})" if pieces else "no rows"
            msg = f"{where} cannot be decoded: {error}"
            raise ShardError(msg, shard=span.shard, byte=first_byte, hint=_HINT) from error
        return rows

    def _heads(self, read: ReadBytes, at: int, end_byte: int, shard: str) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield the first byte of each piece, and its rows and sizes."""
        before: int | None = None
        while at < end_byte:
            try:
                row, end_row = np.frombuffer(read(at, min(at + _ROWS_BYTES, end_byte)), "<i8").tolist()
                after = at + _ROWS_BYTES + 8 * self.num_parts(row, end_row)
                if not 0 <= row < end_row or before not in (None, row) or after > end_byte:
                    raise ValueError(f"rows [{row}, {end_row}) after row {before}")
                head = np.frombuffer(read(at, after), "<i8").astype(np.int64)
                if min(sizes := head[2:].tolist(), default=0) < 0 or after + sum(sizes) > end_byte:
                    raise ValueError(f"its parts would end at byte {after + sum(sizes)} of {end_byte}")
            except ValueError as error:
                raise ShardError(f"no piece begins here: {error}", shard=shard, byte=at, hint=_HINT) from None
            yield at, head
            before, at = end_row, after + sum(sizes)


def _crcs(heads: Sequence[tuple[int, NDArray[np.int64]]]) -> NDArray[np.uint32]:
    return np.array([crc32(head.astype("<i8").tobytes()) for _, head in heads], np.uint32)

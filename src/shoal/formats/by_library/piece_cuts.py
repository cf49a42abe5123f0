"""Pieces of shards whose fields are stored apart: the finest ranges of bytes that hold all fields of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.compressed.packed_heads import packed, unpacked, unusable
from shoal.formats.shard_format import Span

_NO_BYTES = np.iinfo(np.int64).max


class StoredRows(NamedTuple):
    """Places of the rows of a field: ``borders`` are the first rows of its parts, ascending from 0, shape (n,).

    ``parts`` has a row (first row, first byte, end byte) for each stored part; several parts may have the same rows,
    and rows may have no part. int64.

    Examples
    --------
    >>> images = shoal.formats.StoredRows(np.array([0, 2]), np.array([[0, 100, 180], [2, 200, 280]]))
    >>> shoal.formats.PieceCuts.between([images], num_rows=4, num_bytes=300).num_samples
    array([2, 2])
    """

    borders: NDArray[np.int64]
    parts: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PieceCuts:
    """The pieces of a shard: piece ``i`` begins at byte ``first_bytes[i]`` and row ``first_rows[i]``.

    Both have shape (num_pieces + 1,), int64, and end with the ends of the last piece.

    Examples
    --------
    >>> images = shoal.formats.StoredRows(np.array([0, 2]), np.array([[0, 100, 180], [2, 200, 280]]))
    >>> labels = shoal.formats.StoredRows(np.array([0, 1, 2]), np.array([[0, 180, 190], [1, 190, 200], [2, 280, 290]]))
    >>> shoal.formats.PieceCuts.between([images, labels], num_rows=4, num_bytes=300)
    PieceCuts(first_bytes=array([100, 200, 290]), first_rows=array([0, 2, 4]))
    """

    first_bytes: NDArray[np.int64]
    first_rows: NDArray[np.int64]

    @classmethod
    def between(cls, fields: Sequence[StoredRows | None], *, num_rows: int, num_bytes: int) -> PieceCuts:
        """Return the finest pieces whose bytes follow one another; the whole shard if a field is None, or has no parts.

        O(parts). Raises ValueError if a part ends after byte ``num_bytes``.
        """
        known = [field for field in fields if field is not None]
        if not num_rows:
            return cls(np.zeros(1, np.int64), np.zeros(1, np.int64))
        if len(known) < len(fields) or not any(len(field.parts) for field in known):
            return cls(np.array([0, num_bytes]), np.array([0, num_rows]))
        rows = reduce(np.intersect1d, [field.borders for field in known])
        low, high = np.full(len(rows), _NO_BYTES), np.zeros(len(rows), np.int64)
        for _, parts in known:
            segments = np.searchsorted(rows, parts[:, 0], "right") - 1
            np.minimum.at(low, segments, parts[:, 1])
            np.maximum.at(high, segments, parts[:, 2])
        before, after = np.maximum.accumulate(high), np.minimum.accumulate(low[::-1])[::-1]
        if before[-1] > num_bytes:
            raise ValueError(f"there are rows up to byte {before[-1]} of {num_bytes}")
        # Rows without bytes join the piece before them, or the first piece.
        is_cut = (before[:-1] > 0) & (before[:-1] <= after[1:]) & (low[1:] < _NO_BYTES)
        first = np.append(0, np.flatnonzero(is_cut) + 1)
        first_bytes = np.append(np.minimum.reduceat(low, first), before[-1])
        return cls(first_bytes.astype(np.int64), np.append(rows[first], num_rows).astype(np.int64))

    def packed(self) -> str:
        """Return the pieces as text for the head of a shard."""
        return packed(np.array([self.first_bytes, self.first_rows], "<i8").tobytes())

    @classmethod
    def kept(cls, head: Mapping[str, Any], name: str, *, shard: str) -> PieceCuts:
        """Return the pieces that a head keeps under a name; raises `ShardError` if the head is damaged."""
        data = unpacked(head, name, shard=shard)
        if not data or len(data) % 16:
            raise unusable(name, f"it has {len(data)} bytes", shard=shard)
        first_bytes, first_rows = np.frombuffer(data, "<i8").reshape(2, -1)
        return cls(first_bytes, first_rows)

    @property
    def num_samples(self) -> NDArray[np.int64]:
        """The number of rows of each piece: `ShardScan.piece_samples`."""
        return np.diff(self.first_rows)

    def crcs(self) -> NDArray[np.uint32]:
        """Return the CRC of the place of each piece: `ShardScan.layout_crcs`."""
        cuts = np.array([self.first_bytes, self.first_rows], "<i8")
        pieces = np.concatenate([cuts[:, :-1], cuts[:, 1:]]).T.copy()
        return np.array([crc32(piece.tobytes()) for piece in pieces], np.uint32)

    def rows_in(self, span: Span, num_bytes: int) -> tuple[slice, slice]:
        """Return the pieces and the rows of a span; raises `ShardError` if the shard has no such pieces."""
        end_byte = span.first_byte + num_bytes
        first, end = np.searchsorted(self.first_bytes, [span.first_byte, end_byte]).tolist()
        if end < len(self.first_rows):
            rows = slice(*self.first_rows[[first, end]].tolist())
            borders = self.first_bytes[[first, end]].tolist()
            if borders == [span.first_byte, end_byte] and rows.stop - rows.start == span.num_samples:
                return slice(first, end), rows
        msg = f"bytes [{span.first_byte}, {end_byte}) are not the pieces of {span.num_samples} rows in the index"
        raise ShardError(msg, shard=span.shard, byte=span.first_byte, hint="index the shard again")

"""Matching the keys of two datasets by hashes of 128 bits, in bounded memory.

Both sides are written to files without names, in buckets by the first bits of the hash: equal keys are in buckets of
the same number. Each pair of buckets is sorted and matched in memory, and the matches are written in blocks of left
samples. Then each block is put in order. So every byte is written once and read once, whatever the order of the keys.

Different keys share a hash of 128 bits with a probability of about n**2 / 2**129 for n keys: 10**-20 for 10**9. A
merge sort of runs would write the same bytes, and needs a merge in Python; a table of keys in memory takes some hundred
bytes a key.

References
----------
M. Kitsuregawa, H. Tanaka, T. Moto-Oka, "Application of hash to data base machine and its architecture", New Generation
Computing 1(1), 1983.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.indexing.alignment.alignment import NO_PARTNER
from shoal.storage.files.scratch_file import ScratchFile

MEMORY_BYTES = 256 << 20
"""Memory of a matching, by default."""

_ROW = np.dtype([("high", "<u8"), ("low", "<u8"), ("id", "<i8")])
_MATCH = np.dtype([("id", "<i8"), ("partner", "<i8")])
_TIMES_A_BUCKET = 6  # a bucket, its sorted copy, and the temporaries of sorting, in sizes of the bucket
_TIMES_A_BLOCK = 16  # a block, its matches, and the temporaries of its runs
_FAST_ROWS = 1 << 17  # of both sides of a bucket: sorted in the cache of the processor
_MOST_FAST_PARTS, _MOST_PARTS = 1 << 11, 1 << 14  # more parts are read in smaller pieces
_LEAST_CHUNK, _MOST_CHUNK = 1 << 10, 1 << 19
_MOST_EXAMPLES = 3


class HashedKeys(NamedTuple):
    """The hashes of the keys of some samples, with their ids; all of shape (num_keys,)."""

    ids: NDArray[np.int64]
    high: NDArray[np.uint64]
    low: NDArray[np.uint64]


class MatchCounts(NamedTuple):
    """The result of a matching in numbers.

    Attributes
    ----------
    num_samples
        Samples of the left side.
    num_matched
        Of these, the samples with a partner.
    num_unused
        Samples of the right side whose key no sample of the left side has.
    num_doubles
        Samples of the right side whose key an earlier sample has; they are no partners.
    """

    num_samples: int
    num_matched: int
    num_unused: int
    num_doubles: int


class MatchedKeys:
    """The matches of two datasets, in files without names; `blocks` puts them in the order of the left samples.

    ``doubles`` are the first examples of right samples with one key: the ids of the first and of the later sample.
    ``most_partners`` is above all ids of partners.
    """

    def __init__(
        self,
        left: Iterable[HashedKeys],
        right: Iterable[HashedKeys],
        *,
        num_left: int,
        num_right: int,
        directory: str,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._num_left = num_left
        self._block = max(1, min(num_left, memory_bytes // (_TIMES_A_BLOCK * 8)))
        num_keys = num_left + num_right
        needed = num_keys * _ROW.itemsize * _TIMES_A_BUCKET // memory_bytes
        bits = min(_MOST_PARTS - 1, max(needed, min(num_keys // _FAST_ROWS, _MOST_FAST_PARTS - 1))).bit_length()
        chunk = min(_MOST_CHUNK, max(_LEAST_CHUNK, memory_bytes // (_ROW.itemsize * _TIMES_A_BUCKET)))
        self._matches = _PartedRows(_MATCH, -(-num_left // self._block), directory)
        self.doubles: list[tuple[int, int]] = []
        num_matched = num_unused = num_doubles = 0
        sides = [_PartedRows(_ROW, 1 << bits, directory) for _ in range(2)]
        try:
            for side, keys in zip(sides, (left, right), strict=True):
                for rows in _rows_of(keys, chunk):
                    side.add(rows, (rows["high"] >> np.uint64(64 - bits)) if bits else np.zeros(len(rows), np.int64))
            for bucket in range(1 << bits):
                of_left, of_right = (side.rows(bucket) for side in sides)
                ordered, again = _sorted_distinct(of_right)
                num_doubles += len(again)
                self.doubles = _first_examples(self.doubles, again)
                places = _places_of(of_left, ordered)
                has, is_used = places >= 0, np.zeros(len(ordered), dtype=np.bool_)
                is_used[places[has]] = True
                num_matched += int(np.count_nonzero(has))
                num_unused += len(ordered) - int(np.count_nonzero(is_used))
                matches = np.empty(len(of_left), _MATCH)
                matches["id"], matches["partner"] = of_left["id"], NO_PARTNER
                matches["partner"][has] = ordered["id"][places[has]]
                self._matches.add(matches, matches["id"] // self._block)
        except BaseException:
            self.close()
            raise
        finally:
            for side in sides:
                side.close()
        self.counts = MatchCounts(num_left, num_matched, num_unused, num_doubles)
        self.most_partners = num_right

    def blocks(self) -> Iterator[NDArray[np.int64]]:
        """Yield the partners of all left samples by id, block after block; `NO_PARTNER` for samples without one."""
        for number, first in enumerate(range(0, self._num_left, self._block)):
            partners = np.full(min(self._block, self._num_left - first), NO_PARTNER, dtype=np.int64)
            matches = self._matches.rows(number)
            partners[matches["id"] - first] = matches["partner"]
            yield partners

    def close(self) -> None:
        """Give the room of the files back."""
        self._matches.close()


class _PartedRows:
    """Rows in numbered parts, appended to a scratch file chunk by chunk: each chunk is sorted by part."""

    def __init__(self, row: np.dtype[Any], num_parts: int, directory: str) -> None:
        self._row, self._num_parts, self._file = row, num_parts, ScratchFile(directory)
        self._first_row = 0
        # Of each chunk: its first row, and the first row of each part in it, then the end; 4 bytes a part.
        self._chunks: list[tuple[int, NDArray[np.uint32]]] = []

    def add(self, rows: NDArray[Any], parts: NDArray[Any]) -> None:
        """Append rows, given the part of each."""
        parts = parts.astype(np.uint16)  # numpy sorts 16 bits in linear time
        counts = np.bincount(parts, minlength=self._num_parts)
        if self._num_parts > 1:
            rows = rows.take(np.argsort(parts, kind="stable"))  # six times as fast as an index, for rows
        self._chunks.append((self._first_row, np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)))
        self._first_row += len(rows)
        self._file.append(np.ascontiguousarray(rows).view(np.uint8).data)

    def rows(self, part: int) -> NDArray[Any]:
        """Return the rows of a part, in the order in which they were added."""
        spans = [(first + int(borders[part]), first + int(borders[part + 1])) for first, borders in self._chunks]
        rows, at = np.empty(sum(end - begin for begin, end in spans), self._row), 0
        for begin, end in spans:
            if end > begin:
                chunk = rows[at : at + end - begin]
                self._file.read_into(begin * self._row.itemsize, chunk.view(np.uint8).data)
                at += len(chunk)
        return rows

    def close(self) -> None:
        self._file.close()


def _rows_of(keys: Iterable[HashedKeys], most_rows: int) -> Iterator[NDArray[Any]]:
    """Yield the keys as rows, in chunks of about ``most_rows``; small parts are collected, large parts are cut."""
    waiting: list[NDArray[Any]] = []
    num_waiting = 0
    for part in keys:
        for first in range(0, len(part.ids), most_rows):
            piece = slice(first, first + most_rows)
            rows = np.empty(len(part.ids[piece]), _ROW)
            rows["high"], rows["low"], rows["id"] = part.high[piece], part.low[piece], part.ids[piece]
            waiting.append(rows)
            num_waiting += len(rows)
            if num_waiting >= most_rows:
                yield np.concatenate(waiting)
                waiting, num_waiting = [], 0
    if waiting:
        yield np.concatenate(waiting)


def _sorted_distinct(rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Sort rows by hash, and keep the first of equal hashes; return the ids of the kept and of each dropped row, too.

    Rows come in the order of their ids. The second result has the shape (num_dropped, 2).
    """
    ordered = rows.take(np.argsort(rows["high"], kind="stable"))
    same_high = ordered["high"][1:] == ordered["high"][:-1]
    if (same_high & (ordered["low"][1:] != ordered["low"][:-1])).any():  # two keys share 64 bits
        ordered = rows.take(np.lexsort((rows["id"], rows["low"], rows["high"])))
        same_high = ordered["high"][1:] == ordered["high"][:-1]
    is_again = np.concatenate([[False], same_high & (ordered["low"][1:] == ordered["low"][:-1])])[: len(ordered)]
    dropped = np.flatnonzero(is_again)
    firsts = np.maximum.accumulate(np.where(is_again, 0, np.arange(len(ordered))))[dropped]
    return ordered.compress(~is_again), np.stack([ordered["id"][firsts], ordered["id"][dropped]], axis=1)


def _first_examples(doubles: list[tuple[int, int]], again: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return a few pairs of ids with one key: the pairs with the earliest later samples."""
    first = again[np.argsort(again[:, 1])[:_MOST_EXAMPLES]].tolist()
    return sorted([*doubles, *map(tuple, first)], key=lambda pair: pair[1])[:_MOST_EXAMPLES]


def _places_of(rows: NDArray[Any], ordered: NDArray[Any]) -> NDArray[np.int64]:
    """Return the place of the row with the same hash among distinct rows sorted by hash; -1 for rows without one."""
    places = np.full(len(rows), -1, dtype=np.int64)
    high, low = np.ascontiguousarray(ordered["high"]), ordered["low"]
    at = np.searchsorted(high, rows["high"])
    left = np.arange(len(rows))
    while len(left := left[at[left] < len(ordered)]):
        left = left[high[at[left]] == rows["high"][left]]
        hits = low[at[left]] == rows["low"][left]
        places[left[hits]] = at[left[hits]]
        left = left[~hits]  # another key shares its first 64 bits
        at[left] += 1
    return places

"""Strategies that pack the documents of a block into sequences: concatenation, first fit and best fit.

Best-fit decreasing takes the documents from the longest to the shortest, and puts each document into the sequence with
the least sufficient room. Documents of equal length are interchangeable, and so are sequences with documents of the
same lengths. So the algorithm runs on counts: the number of documents of a length, the number of sequences with a
*pattern* of lengths. One step moves as many sequences of a pattern as there are documents for them. The time depends on
the number of different lengths and patterns, not on the number of documents.

References
----------
M. M. Krell, M. Kosec, S. P. Perez, A. Fitzgibbon, "Efficient Sequence Packing without Cross-contamination: Accelerating
Large Language Models without Impacting Performance", 2021 (longest-pack-first histogram packing).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class PackedBlock:
    """Sequences of up to ``length`` tokens, made of pieces of documents.

    Attributes
    ----------
    length
        Tokens that fit into a sequence; 0 if the length varies.
    first_piece
        First piece of each sequence, then the number of pieces; shape (num_sequences + 1,).
    document
        Document of each piece, numbered in the block; shape (num_pieces,).
    start, stop
        Tokens of the piece in the document, half-open.
    """

    length: int
    first_piece: NDArray[np.int64]
    document: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.first_piece) - 1

    @property
    def num_tokens(self) -> int:
        """Tokens of all pieces."""
        return int((self.stop - self.start).sum())

    @property
    def fill(self) -> float:
        """Share of tokens in all sequences that are not padding; 1.0 without sequences."""
        return self.num_tokens / (self.length * self.num_sequences) if self.num_sequences else 1.0


def with_full_sequences(
    lengths: NDArray[np.int64], length: int, document: NDArray[np.int64], sequence: NDArray[np.int64]
) -> PackedBlock:
    """Return the sequences filled by a single long document, then the sequences with the rests of all documents.

    ``document`` and ``sequence``, both of shape (num_rests,), give the sequence of the rest of each document: its last
    ``lengths % length`` tokens. Sequences are numbered from 0; rests in a sequence have the order of ``document``.
    """
    num_full = lengths // length
    full = np.repeat(np.arange(len(lengths)), num_full)
    full_starts = (np.arange(len(full)) - np.repeat(np.cumsum(num_full) - num_full, num_full)) * length
    by_sequence = np.argsort(sequence, kind="stable")
    ends = np.cumsum(np.bincount(sequence, minlength=1)) if len(sequence) else np.zeros(0, np.int64)
    rests = document[by_sequence]
    starts = num_full[rests] * length
    return PackedBlock(
        length,
        np.concatenate([np.arange(len(full) + 1), len(full) + ends]),
        np.concatenate([full, rests]),
        np.concatenate([full_starts, starts]),
        np.concatenate([full_starts + length, lengths[rests]]),
    )


def concatenated(lengths: NDArray[np.int64], length: int) -> PackedBlock:
    """Pack documents in their order, without gaps; only the last sequence may be padded.

    A document that does not fit into the rest of a sequence continues in the next sequence. 30 ns per document.

    Parameters
    ----------
    lengths
        Tokens of each document, shape (num_documents,); empty documents have no piece.
    length
        Tokens of a sequence.

    Examples
    --------
    >>> packed = concatenated(np.array([3, 0, 7]), 4)
    >>> packed.document.tolist(), packed.start.tolist(), packed.stop.tolist(), packed.first_piece.tolist()
    ([0, 2, 2, 2], [0, 0, 1, 5], [3, 1, 5, 7], [0, 2, 3, 4])
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.union1d(ends, np.arange(0, total, length))
    cuts = cuts[(cuts > 0) & (cuts < total)]
    begins = np.concatenate([np.zeros(min(total, 1), np.int64), cuts])
    stops = np.concatenate([cuts, np.full(min(total, 1), total, np.int64)])
    document = np.searchsorted(ends, begins, side="right")
    offset = (ends - lengths)[document]
    first = np.searchsorted(begins, np.arange(0, total, length))
    first = np.append(first, len(begins))
    return PackedBlock(length, first, document, begins - offset, stops - offset)


def first_fit(lengths: NDArray[np.int64], length: int) -> PackedBlock:
    """Pack whole documents in their order, each into the first sequence with enough room; 2 us per document.

    Only documents of more than ``length`` tokens are cut, as by `best_fit`. A tree over the sequences stores the most
    room below each node, so placing a document takes O(log num_sequences).

    Parameters
    ----------
    lengths
        Tokens of each document, shape (num_documents,); empty documents have no piece.
    length
        Tokens of a sequence.

    Examples
    --------
    >>> packed = first_fit(np.array([3, 6, 5, 2]), 8)
    >>> [packed.document[start:stop].tolist() for start, stop in zip(packed.first_piece, packed.first_piece[1:])]
    [[0, 2], [1, 3]]
    """
    rest = lengths % length
    documents = np.flatnonzero(rest)
    leaves = 1 << max(0, len(documents) - 1).bit_length()
    rooms = [length] * (2 * leaves)
    sequence = []
    for size in rest[documents].tolist():
        node = 1
        while node < leaves:
            node *= 2
            node += rooms[node] < size
        sequence.append(node - leaves)
        rooms[node] -= size
        while node := node // 2:
            room = max(rooms[2 * node], rooms[2 * node + 1])
            if rooms[node] == room:
                break
            rooms[node] = room
    return with_full_sequences(lengths, length, documents, np.array(sequence, dtype=np.int64))


def best_fit(lengths: NDArray[np.int64], length: int) -> PackedBlock:
    """Pack whole documents by best-fit decreasing; only documents of more than ``length`` tokens are cut.

    A longer document fills whole sequences, and its rest is packed with other documents. Documents of equal length
    are taken in their order, so the result is a function of the arguments alone. 0.1 to 1 us per document.

    Parameters
    ----------
    lengths
        Tokens of each document, shape (num_documents,); empty documents have no piece.
    length
        Tokens of a sequence.

    Examples
    --------
    >>> packed = best_fit(np.array([3, 5, 2, 9]), 8)
    >>> [packed.document[start:stop].tolist() for start, stop in zip(packed.first_piece, packed.first_piece[1:])]
    [[3], [0, 1], [3, 2]]
    """
    rest = lengths % length
    patterns = _Patterns(length)
    for value, count in _descending(rest):
        patterns.put(value, count)
    of_sequence, first, pattern_lengths = patterns.sequences()
    counts = np.diff(first)[of_sequence]
    sequence = np.repeat(np.arange(len(of_sequence)), counts)
    within = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)
    piece_lengths = pattern_lengths[np.repeat(first[:-1][of_sequence], counts) + within]
    # Pieces have the lengths of the documents, in another order: the n-th piece of a length is the n-th such document.
    document = np.empty(len(sequence), dtype=np.int64)
    with_rest = np.flatnonzero(rest)
    document[np.argsort(piece_lengths, kind="stable")] = with_rest[np.argsort(rest[with_rest], kind="stable")]
    return with_full_sequences(lengths, length, document, sequence)


def _descending(rest: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the lengths above 0 with the number of documents of each length, from the longest down."""
    counts = np.bincount(rest, minlength=1)
    values = np.flatnonzero(counts[1:])[::-1] + 1
    return list(zip(values.tolist(), counts[values].tolist(), strict=True))


class _Patterns:
    """Sequences by pattern of lengths; a pattern extends another pattern by a length and its repeats."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._links: list[tuple[int, int, int]] = []  # pattern before (-1 for none), length, times
        self._open: dict[int, deque[tuple[int, int]]] = {}  # by room: sequences and their pattern, oldest first
        self._rooms = 0  # bit r is set if a sequence has room for r more tokens

    def put(self, value: int, count: int) -> None:
        """Put ``count`` documents of a length into sequences, each into the sequence with the least sufficient room."""
        while count:
            fitting = self._rooms >> value
            if not fitting:
                self._extend(-1, self._length, value, count, most=count)
                return
            room = value + (fitting & -fitting).bit_length() - 1
            waiting = self._open[room]
            most, pattern = waiting.popleft()
            used, sequences = self._extend(pattern, room, value, count, most=most)
            count -= used
            if sequences < most:
                waiting.appendleft((most - sequences, pattern))
            if not waiting:
                del self._open[room]
                self._rooms &= ~(1 << room)

    def _extend(self, pattern: int, room: int, value: int, count: int, *, most: int) -> tuple[int, int]:
        """Put documents into up to ``most`` sequences of a pattern; return the numbers of documents and sequences used.

        Best fit fills a sequence before the next sequence: after each document, this sequence has the least sufficient
        room.
        """
        fitting = room // value
        whole = min(most, count // fitting)
        used = whole * fitting
        if whole:
            self._add(pattern, room, value, fitting, whole)
        if whole < most and used < count:
            self._add(pattern, room, value, count - used, 1)
            return count, whole + 1
        return used, whole

    def _add(self, pattern: int, room: int, value: int, times: int, sequences: int) -> None:
        self._links.append((pattern, value, times))
        left = room - value * times
        self._open.setdefault(left, deque()).append((sequences, len(self._links) - 1))
        self._rooms |= 1 << left

    def sequences(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the pattern of each sequence, the first length of each pattern, and all lengths."""
        lengths: list[int] = []
        first, counts = [0], []
        for waiting in self._open.values():
            for count, last in waiting:
                counts.append(count)
                pattern = last
                while pattern >= 0:
                    pattern, value, times = self._links[pattern]
                    lengths += [value] * times
                first.append(len(lengths))
        of_sequence = np.repeat(np.arange(len(counts)), np.array(counts, dtype=np.int64))
        return of_sequence, np.array(first, dtype=np.int64), np.array(lengths, dtype=np.int64)

"""The order of an epoch of sequences: documents of fixed blocks of positions, packed block by block.

A position of this order is a sequence. Documents are in the same order as without packing. A *block* is a fixed range
of document positions, and the documents of each canonical node in a block are packed separately: so a chunk stays with
one rank, as without packing, and a sequence is a function of seed, epoch and block alone. Inside a block the sequences
of a node come in random order, and the nodes take turns. A block ends at a change of documents (`Changing`).

A padded batch of documents of similar length is a sequence, too (`LengthBatches`). Such batches come in runs, at
multiples of ``alike`` positions: nodes take turns from the longest batches to the shortest, this list is cut into runs,
and the runs of a block come in random order. So ranks that share a run have batches of similar length.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.arrays.permutation import permute
from shoal.order.protocol import BoundOrder, Changing
from shoal.order.seeds import key
from shoal.order.sequences.groupings import Grouping
from shoal.order.sequences.numbered_groups import NumberedGroups
from shoal.order.sequences.packing_strategies import PackedBlock

_KEPT_BLOCKS = 4
_TIME_BITS = 40
MAX_SEQUENCES = 1 << 62
"""A number of sequences larger than any epoch."""


class Pieces(NamedTuple):
    """The pieces of documents in some sequences; sequence ``i`` has the pieces ``[first[i], first[i + 1])``.

    Piece ``j`` holds tokens ``[starts[j], stops[j])`` of document ``ids[j]``; positions and chunks belong to the
    document in the order of documents. All arrays but ``first`` have shape (num_pieces,).
    """

    first: NDArray[np.int64]
    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    chunks: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    def chosen(self, sequences: NDArray[np.int64]) -> Pieces:
        """Return the pieces of some sequences, in their order."""
        counts = np.diff(self.first)[sequences]
        first = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        rows = np.arange(first[-1]) + np.repeat(self.first[sequences] - first[:-1], counts)
        return Pieces(first, *(column[rows] for column in self[1:]))


_NO_PIECES = Pieces(np.zeros(1, dtype=np.int64), *[np.zeros(0, dtype=np.int64)] * 5)


class Rests(NamedTuple):
    """The rest of some documents: tokens ``[starts[i], stops[i])`` of document ``ids[i]``; see `Pieces`."""

    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    chunks: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]


_NO_RESTS = Rests(*[np.zeros(0, dtype=np.int64)] * 5)


class OpenBlock(NamedTuple):
    """A block cut after some sequences: its documents are ``[start, start + len(is_used))``.

    ``is_used`` marks the documents with tokens in these sequences, and empty documents.
    """

    start: int
    is_used: NDArray[np.bool_]
    rests: Rests

    @property
    def stop(self) -> int:
        """Start plus the number of used documents."""
        return self.start + int(self.is_used.sum())


class _Stretch(NamedTuple):
    """The documents of a block: positions ``[start, stop)``, after rests of earlier documents.

    Only the first ``limit`` sequences are used; None for all.
    """

    documents: BoundOrder
    start: int
    stop: int
    rests: Rests = _NO_RESTS
    limit: int | None = None


class _Block(NamedTuple):
    """The sequences of a block, in their order: the node, weight and pieces of each.

    ``rows`` has the document of each piece: its number in the block; rests are numbered after the block's documents.
    """

    nodes: NDArray[np.int64]
    weights: NDArray[np.int64]
    pieces: Pieces
    rows: NDArray[np.int64]


class OrderOfPieces(BoundOrder, Protocol):
    """An order with positions that hold several samples each: sequences of documents, or batches."""

    def pieces(self, ids: NDArray[np.int64]) -> Pieces:
        """Return the pieces of documents in these sequences."""

    def documents_before(self, number: int) -> int:
        """Return the number of documents that determine the first ``number`` sequences, counted by position."""

    def sequences_with(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ascending numbers of the sequences with a piece of a document at one of these positions."""


class PackedOrder(NumberedGroups):
    """The order of sequences of one epoch.

    Parameters
    ----------
    documents
        The order of the documents of the epoch.
    lengths
        Tokens of each document, by its id; shape (number of ids,).
    packing
        Grouping of documents into sequences.
    seed, epoch
        Seed and epoch of the order.
    """

    def __init__(
        self, documents: BoundOrder, lengths: NDArray[np.integer[Any]], packing: Grouping, *, seed: int, epoch: int
    ) -> None:
        self.documents, self.packing = documents, packing
        self._lengths, self._seed, self._epoch = lengths, seed, epoch
        self._blocks: dict[int, _Block] = {}
        self._stretches = _stretches(documents, 0, packing.block)
        self._borders = [0]  # the first sequence of each packed block, and the end of the last block

    @cached_property
    def _first(self) -> NDArray[np.int64]:
        """First sequence of each block, then the number of sequences; shape (num_blocks + 1,)."""
        self.has(MAX_SEQUENCES)
        return np.array(self._borders, dtype=np.int64)

    def has(self, number: int) -> bool:
        """Return True if the epoch has a sequence with this number; packs all blocks up to this sequence."""
        borders = self._borders
        while borders[-1] <= number and len(borders) <= len(self._stretches):
            borders.append(borders[-1] + len(self._block(len(borders) - 1).nodes))
        return borders[-1] > number

    def opened(self, number: int) -> OpenBlock:
        """Return the block of a sequence of the epoch, and the pieces of its documents that are unused so far."""
        if not self.has(number):
            raise UsageError(f"sequence {number} does not exist; the epoch has {self.num_samples} sequences")
        block = bisect_right(self._borders, number) - 1
        stretch, limit = self._stretches[block], number - self._borders[block]
        num_documents = stretch.stop - stretch.start
        if not limit:
            return OpenBlock(stretch.start, np.zeros(num_documents, dtype=bool), stretch.rests)
        pieces, rows = self._block(block)[2:]
        taken = int(pieces.first[limit])
        is_used = np.ones(num_documents + len(stretch.rests.ids), dtype=bool)
        is_used[rows[taken:]] = False
        is_used[rows[:taken]] = True
        is_used[num_documents:] = True
        left = taken + np.flatnonzero(is_used[rows[taken:]])
        left = left[np.lexsort((pieces.starts[left], rows[left]))]
        starts, stops = pieces.starts[left], pieces.stops[left]
        # Neighbouring pieces of a document are joined again.
        goes_on = (rows[left][1:] == rows[left][:-1]) & (starts[1:] == stops[:-1])
        begins, ends = left[np.append(True, ~goes_on)[: len(left)]], left[np.append(~goes_on, True)[: len(left)]]
        columns = (pieces.ids[begins], pieces.positions[begins], pieces.chunks[begins])
        rests = Rests(*columns, pieces.starts[begins], pieces.stops[ends])
        return OpenBlock(stretch.start, is_used[:num_documents], rests)

    def changed(self, number: int, opened: OpenBlock, documents: BoundOrder) -> PackedOrder:
        """Return the order with other documents from a sequence on, for orders of one node.

        ``opened`` is the block of this sequence. ``documents`` may differ only after `OpenBlock.stop`. Unused
        pieces of earlier documents come in the first block after the change.
        """
        block = bisect_right(self._borders, number) - 1
        stretch, limit = self._stretches[block], number - self._borders[block]
        order = PackedOrder(documents, self._lengths, self.packing, seed=self._seed, epoch=self._epoch)
        before = self._stretches[:block] + ([stretch._replace(limit=limit)] if limit else [])
        order._stretches = before + _stretches(documents, opened.stop, self.packing.block, opened.rests)
        order._borders = self._borders[: block + 1] + ([number] if limit else [])
        order._blocks = {kept: packed for kept, packed in self._blocks.items() if kept < block}
        return order

    @property
    def num_samples(self) -> int:
        """Number of sequences in the epoch."""
        return int(self._first[-1])

    @property
    def span(self) -> int:
        """Approximate number of sequences of a block."""
        return max(1, self.num_samples // max(1, len(self._first) - 1))

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Parameters of the order of the documents, and of the packing."""
        return {**self.documents.parameters, **self.packing.to_dict()}

    def documents_before(self, number: int) -> int:
        """Return the number of documents that determine the first ``number`` sequences, counted by position.

        A block that ends at a change would be longer without the change.
        """
        if not number or not self.has(number - 1):
            return self.documents.num_samples if number else 0
        start = self._stretches[bisect_right(self._borders, number - 1) - 1].start
        return min(start + self.packing.block, self.documents.num_samples)

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the numbers of the sequences at positions ``[start, stop)``, and the canonical node of each."""
        ids = self.ids(start, stop)
        nodes = [self._block(block).nodes[low:high] for block, low, high in self._parts(ids)]
        return ids, np.concatenate([np.zeros(0, np.int64), *nodes])

    def weights(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sum of the squared lengths of the pieces of each sequence: the cost of attention."""
        weights = np.empty_like(positions)
        blocks = np.searchsorted(self._first, positions, side="right") - 1
        for number in np.unique(blocks).tolist():
            in_block = blocks == number
            weights[in_block] = self._block(number).weights[positions[in_block] - self._first[number]]
        return weights

    def pieces(self, ids: NDArray[np.int64]) -> Pieces:
        """Return the document pieces of these sequences; O(blocks) on first use, then O(pieces)."""
        sequences, rows = np.unique(ids, return_inverse=True)
        blocks = np.searchsorted(self._first, sequences, side="right") - 1
        inside = ((number, sequences[blocks == number] - self._first[number]) for number in np.unique(blocks).tolist())
        parts = [_NO_PIECES, *(self._block(number).pieces.chosen(chosen) for number, chosen in inside)]
        counts = [np.zeros(1, np.int64), *(np.diff(part.first) for part in parts)]
        columns = (np.concatenate(column) for column in zip(*(part[1:] for part in parts), strict=True))
        return Pieces(np.cumsum(np.concatenate(counts)), *columns).chosen(rows)

    def sequences_with(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ascending numbers of the sequences with a piece of a document at one of these positions."""
        sequences = [np.zeros(0, np.int64)]
        starts = np.array([stretch.start for stretch in self._stretches], dtype=np.int64)
        numbers = {*(np.searchsorted(starts, positions, side="right") - 1).tolist()}
        numbers |= {number for number, stretch in enumerate(self._stretches) if len(stretch.rests.ids)}
        for number in sorted(numbers):
            pieces = self._block(number).pieces
            rows = np.flatnonzero(np.isin(pieces.positions, positions))
            sequences.append(self._first[number] + np.unique(np.searchsorted(pieces.first, rows, side="right") - 1))
        return np.concatenate(sequences)

    def _parts(self, ids: NDArray[np.int64]) -> list[tuple[int, int, int]]:
        """Cut a span of sequences at the borders of blocks; return the block of each part, and the range in it."""
        if not len(ids):
            return []
        low, high = int(ids[0]), int(ids[-1]) + 1
        first, last = (int(np.searchsorted(self._first, at, side="right")) - 1 for at in (low, high - 1))
        starts = self._first[first : last + 1]
        return [
            (block, max(low - start, 0), min(high, int(self._first[block + 1])) - start)
            for block, start in zip(range(first, last + 1), starts.tolist(), strict=True)
        ]

    def _block(self, number: int) -> _Block:
        block = self._blocks.get(number)
        if block is None:
            block = self._packed(number)
            while len(self._blocks) >= _KEPT_BLOCKS:
                self._blocks.pop(next(iter(self._blocks)), None)
            self._blocks[number] = block
        return block

    def _packed(self, number: int) -> _Block:
        """Pack a block; 0.3 to 1 us per document."""
        documents, start, stop, rests, limit = self._stretches[number]
        ids, chunks = documents.locate(start, stop)
        lengths = self._lengths[ids].astype(np.int64, copy=False)
        positions, begins = np.arange(start, stop), np.zeros(stop - start, dtype=np.int64)
        if len(rests.ids):
            pairs = zip((ids, positions, chunks, begins), rests[:4], strict=True)
            ids, positions, chunks, begins = (np.concatenate(pair) for pair in pairs)
            lengths = np.concatenate([lengths, rests.stops - rests.starts])
        num_nodes = self.num_canonical_nodes
        packed: list[PackedBlock] = []
        rows, order = [], []
        for node in range(num_nodes):
            node_rows = np.arange((node - start) % num_nodes, len(ids), num_nodes)
            of_node = self.packing.packed(lengths[node_rows])
            numbers = np.arange(of_node.num_sequences)
            if len(numbers) and not self.packing.alike:
                numbers = permute(numbers, len(numbers), key(self._seed, self._epoch, "sequences", number, node))
            order.append(numbers + sum(block.num_sequences for block in packed))
            packed.append(of_node)
            rows.append(node_rows[of_node.document])
        nodes, turns = _in_turns([block.num_sequences for block in packed])
        if self.packing.alike and len(turns):
            runs = self._in_runs(number, len(turns))
            nodes, turns = nodes[runs], turns[runs]
        counts = np.concatenate([np.zeros(1, np.int64), *(np.diff(block.first_piece) for block in packed)])
        row = np.concatenate(rows)
        starts, stops = (np.concatenate([getattr(block, name) for block in packed]) for name in ("start", "stop"))
        begin = begins[row]
        columns = (ids[row], positions[row], chunks[row], begin + starts, begin + stops)
        sequences = np.concatenate(order)[turns][:limit]
        chosen = Pieces(np.cumsum(counts), *columns).chosen(sequences)
        of_rows = Pieces(np.cumsum(counts), *[row] * 5).chosen(sequences).ids
        squares = np.concatenate([np.zeros(1, np.int64), np.cumsum((chosen.stops - chosen.starts) ** 2)])
        return _Block(nodes[:limit], np.diff(squares[chosen.first]), chosen, of_rows)

    def _in_runs(self, number: int, num_sequences: int) -> NDArray[np.int64]:
        """Return the sorted sequences of a block in runs; runs end at multiples of ``alike`` positions."""
        runs = (self._borders[number] + np.arange(num_sequences)) // self.packing.alike
        runs -= runs[0]
        num_runs = int(runs[-1]) + 1
        turn = permute(np.arange(num_runs), num_runs, key(self._seed, self._epoch, "runs of batches", number))
        order = np.empty(num_sequences, dtype=np.int64)
        order[np.argsort(turn[runs], kind="stable")] = np.arange(num_sequences)
        return order


def _stretches(documents: BoundOrder, start: int, block: int, rests: Rests = _NO_RESTS) -> list[_Stretch]:
    """Return the documents of each block from a position on; the first block also has the ``rests``."""
    changes = documents.changes if isinstance(documents, Changing) else ()
    borders = [start, *(change for change in changes if change > start), documents.num_samples]
    spans = [(low, min(low + block, end)) for begin, end in pairwise(borders) for low in range(begin, end, block)]
    if len(rests.ids):
        spans = spans or [(start, start)]
    return [_Stretch(documents, *span, _NO_RESTS if place else rests) for place, span in enumerate(spans)]


def _in_turns(counts: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the node and the number of each sequence, with nodes taking turns evenly."""
    nodes = np.repeat(np.arange(len(counts)), counts)
    within = np.concatenate([np.zeros(0, np.int64), *(np.arange(count) for count in counts)])
    times = ((2 * within + 1) << _TIME_BITS) // (2 * np.array(counts, dtype=np.int64)[nodes])
    order = np.argsort(times, kind="stable")
    return nodes[order], order

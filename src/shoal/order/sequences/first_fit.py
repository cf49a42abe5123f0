"""Whole documents in the order in which they come, each in the first sequence that has room for it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.order.sequences.packed_block import PackedBlock, with_full_sequences


def first_fit(lengths: NDArray[np.int64], length: int) -> PackedBlock:
    """Pack whole documents in their order; only those of more than ``length`` tokens are cut, as by `best_fit`.

    A tree over the sequences holds the most room below each node, so that a document takes the logarithm of their
    number: 2 us each.

    Parameters
    ----------
    lengths
        Tokens of each document, shape (num_documents,); those without tokens have no piece.
    length
        Tokens of a sequence.

    Examples
    --------
    >>> found = first_fit(np.array([3, 6, 5, 2]), 8)
    >>> [found.document[start:stop].tolist() for start, stop in zip(found.first_piece, found.first_piece[1:])]
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

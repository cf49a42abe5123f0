"""Shards cut into as many equal parts as there are canonical nodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.order.protocol import chunk_starts


class Pieces(NamedTuple):
    """Pieces of shards, in order, by part.

    Piece ``i`` holds the samples ``[begins[i], begins[i] + sizes[i])``; part ``k`` has the pieces from
    ``part_first[k]`` to ``part_first[k + 1]``.
    """

    begins: NDArray[np.int64]
    sizes: NDArray[np.int64]
    part_first: NDArray[np.int64]

    def shuffled_in_parts(self, rng: np.random.Generator) -> Pieces:
        """Return the pieces of each part in random order, drawn part after part."""
        order = np.arange(len(self.begins))
        for first, stop in zip(self.part_first[:-1].tolist(), self.part_first[1:].tolist(), strict=True):
            rng.shuffle(order[first:stop])
        return Pieces(self.begins[order], self.sizes[order], self.part_first)


def cut_shards(shard_samples: NDArray[np.int64], order: NDArray[np.int64], num_parts: int) -> Pieces:
    """Return the shards in this order, cut where part ``k`` of ``num_parts`` ends: after ``N * (k + 1) // num_parts``.

    The samples of a shard are numbered in storage order. O(num_shards + num_parts).

    >>> cut_shards(np.array([4, 2]), np.array([1, 0]), 2)
    Pieces(begins=array([4, 0, 1]), sizes=array([2, 1, 3]), part_first=array([0, 2, 3]))
    """
    starts = chunk_starts(shard_samples[order])
    num_samples = int(starts[-1])
    ends = part_starts(num_samples, num_parts)[1:]
    # A part that ends inside a shard cuts it; no cut is a start of a shard, so that empty shards stay where they are.
    cuts = np.unique(ends[~np.isin(ends, starts)])
    shard = np.searchsorted(starts, cuts, side="right") - 1
    piece_shards = np.insert(np.arange(len(order)), shard + 1, shard)
    piece_starts = np.insert(starts[:-1], shard + 1, cuts)
    sizes = np.diff(piece_starts, append=num_samples)
    begins = chunk_starts(shard_samples)[:-1][order][piece_shards] + piece_starts - starts[piece_shards]
    # An empty piece at the border of two parts belongs to the first.
    parts = np.where(
        sizes > 0, np.searchsorted(ends, piece_starts, side="right"), np.searchsorted(ends, piece_starts, side="left")
    )
    return Pieces(begins, sizes, np.searchsorted(parts, np.arange(num_parts + 1)))


def part_starts(num_samples: int, num_parts: int) -> NDArray[np.int64]:
    """Return the first sample of each part, then the number of samples; shape (num_parts + 1,)."""
    return np.array([num_samples * part // num_parts for part in range(num_parts + 1)], dtype=np.int64)

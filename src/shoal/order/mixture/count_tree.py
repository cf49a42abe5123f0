"""Counts of each source before any position: a tree in which every node divides its samples between two children.

A node that has dealt ``n`` samples has given ``round(n * left / (left + right))`` of them to its left child, and
the rest to the right one. So counts at a position follow from the position alone, add up to it, and never fall.

The error of a child's count is its share of the parent's error, plus at most a half. In Huffman's tree only leaves have
more than two thirds of their parent: so the errors of far ancestors vanish, and no source is off by two. Earlier
excesses and shortages of sources (``owed``) move the rounding of each node from the nearest whole number to the next
number up or down: so errors do not add up if weights change often.

`CountTree.error_bounds` returns the bound of each source: 1.02 at most for 64 sources with weights by Zipf, 1.05 for
a weight of .9 beside 63 small weights, 1.11 for 40 Fibonacci numbers, and 1.5 for the worst of 20,000 random lists of 2
to 12 Fibonacci numbers. Errors at 15,000 positions of the first three lists were at most 1.00.

References
----------
D. A. Huffman, "A method for the construction of minimum-redundancy codes", Proc. IRE 40(9), 1952.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

MOST_SPREAD = 1 << 21
"""Maximum spread of positions in a call of `CountTree.beyond`: times 2^40, the spread fits into 64 bits."""


OWED_UNIT = 1 << 32
"""The unit of ``owed`` of `CountTree`, in parts of a sample; integers are equal on every machine."""


@dataclass(frozen=True, slots=True)
class _Split:
    """A node with its children, the weights of the left child and of both, and the addend before rounding down.

    The addend is half the weight, or from 0 to less than the weight if the children are owed unequal parts.
    """

    node: int
    left: int
    right: int
    left_weight: int
    weight: int
    rounding: int


class CountTree:
    """Counts of sources with integer weights; the sum of weights is at most 2^40.

    The number of a source breaks ties between equal weights, so the number should not depend on the user's listing.
    ``owed`` is the earlier shortage of each source, in samples times `OWED_UNIT`.
    """

    def __init__(self, weights: Sequence[int], owed: Sequence[int] | None = None) -> None:
        self.num_sources = len(weights)
        self._root, self._splits = _huffman(weights, [0] * len(weights) if owed is None else owed)

    def at(self, position: int) -> NDArray[np.int64]:
        """Count the samples of each source before a position; shape (num_sources,); O(num_sources)."""
        return self.beyond(position, np.zeros(1, dtype=np.int64))[:, 0]

    def beyond(self, first: int, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the samples of each source before positions ``first + offsets``; shape (num_sources, len(offsets)).

        Offsets must be from 0 to less than `MOST_SPREAD`. About 3 ns for each source and position.
        """
        # The count of each node: a Python integer for the first position, plus 64-bit integers.
        begins, beyond = {self._root: first}, {self._root: offsets}
        counts = np.zeros((self.num_sources, len(offsets)), dtype=np.int64)
        for split in self._splits:
            begin, more = begins.pop(split.node), beyond.pop(split.node)
            left, rest = divmod(begin * split.left_weight + split.rounding, split.weight)
            more_left = (more * split.left_weight + rest) // split.weight
            begins[split.left], beyond[split.left] = left, more_left
            begins[split.right], beyond[split.right] = begin - left, more - more_left
        for source, begin in begins.items():
            counts[source] = beyond[source] + begin
        return counts

    def unit_of(self, source: int, number: int) -> int:
        """Return the position of sample ``number`` of a source; O(depth)."""
        for split in reversed(self._splits):
            if source not in (split.left, split.right):
                continue
            # The least count n of the node with number + 1 samples for the child; the sample is the last of these.
            if source == split.left:
                count = -((split.rounding - (number + 1) * split.weight) // split.left_weight)
            else:
                right = split.weight - split.left_weight
                count = (number * split.weight + split.rounding) // right + 1
            number, source = count - 1, split.node
        return number

    @property
    def error_bounds(self) -> list[float]:
        """Largest difference of each source's count from its weight times the position, if no samples are owed."""
        bounds = {self._root: Fraction(0)}
        for split in self._splits:
            above = bounds.pop(split.node)
            for child, weight in ((split.left, split.left_weight), (split.right, split.weight - split.left_weight)):
                bounds[child] = Fraction(1, 2) + above * weight / split.weight
        return [float(bounds.get(source, 0)) for source in range(self.num_sources)]


def _huffman(weights: Sequence[int], owed: Sequence[int]) -> tuple[int, list[_Split]]:
    """Return the root and the splits from the root down; nodes are numbered after the sources."""
    heap = [(weight, source) for source, weight in enumerate(weights) if weight]
    heapq.heapify(heap)
    splits, node, owed_to = [], len(weights), list(owed)
    while len(heap) > 1:
        (right_weight, right), (left_weight, left) = heapq.heappop(heap), heapq.heappop(heap)
        weight = left_weight + right_weight
        owed_to.append(owed_to[left] + owed_to[right])
        # The left child gets its debt beyond its share of the debt to both children; it cannot begin with more than 0.
        extra = (owed_to[left] * weight - owed_to[node] * left_weight) // OWED_UNIT
        rounding = min(max(weight // 2 + extra, 0), weight - 1)
        splits.append(_Split(node, left, right, left_weight, weight, rounding))
        heapq.heappush(heap, (weight, node))
        node += 1
    return heap[0][1], splits[::-1]

"""The number of copies of each sample in an epoch: systematic draws, exact in integers.

A sample with the expectation ``e`` appears floor(e) or ceil(e) times in an epoch, and the total of an epoch is exact.
Independent draws (torch's `WeightedRandomSampler`) have the same expectation, but miss a sample with expectation 1 in
37 % of the epochs. An epoch continues at the end of the last epoch, so counts stay even over any number of epochs, too.

*Classes.* The samples of a class stand in a random circle, and an epoch takes the next samples. If earlier epochs took
``A`` of the ``n`` samples of a class, and this epoch takes ``T``, the sample at place ``r`` has

    count(r) = T // n + ((r - A) mod n < T mod n)

So any number of epochs together take each sample of a class floor or ceil of its share.

*Weights.* Samples stand in a line; the length of a sample is its weight ``w``. The line is cut into ``T`` equal parts
from a random start ``U``, and the cuts are counted: with ``V`` the end of a sample, and ``W`` the sum of all weights,

    count = floor((V T + U) / W) - floor(((V - w) T + U) / W).

The line is in random order inside blocks of 2^18 stored samples, which is enough to separate neighbours. In storage
order, samples of a regular pattern would be taken together or not at all: with pairs, an epoch would take only the
first sample of each pair. ``U`` advances by the golden ratio of ``W`` each epoch: its multiples are the most even.

References
----------
W. G. Madow, "On the theory of systematic sampling, II", Annals of Mathematical Statistics 20, 1949, for lines of
unequal weights; R. G. Brewer, M. Hanif, "Sampling with unequal probabilities", 1983, for its random order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.order.arrays.permutation import permute_each
from shoal.order.seeds import draws, key, keys

_BLOCK_BITS = 18
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio


def class_counts(
    classes: NDArray[Any], sizes: NDArray[np.int64], totals: NDArray[np.int64], taken: NDArray[np.int64], *, seed: int
) -> NDArray[Any]:
    """Return the copies of each sample if an epoch takes ``totals`` samples of each class.

    Parameters
    ----------
    classes
        Class of each sample, from 0; shape (num_samples,).
    sizes, totals, taken
        Samples of each class: stored, taken by this epoch, and taken by earlier epochs modulo the size; shape
        (num_classes,).
    """
    whole, more = np.divmod(totals, sizes)
    counts = np.empty(len(classes), dtype=holding(int((whole + (more > 0)).max(initial=0))))
    circles = keys(key(seed, 0, "sample"), np.arange(len(sizes)))
    before = np.zeros(len(sizes), dtype=np.int64)
    for first in range(0, len(classes), 1 << _BLOCK_BITS):
        part = classes[first : first + (1 << _BLOCK_BITS)]
        by_class = np.argsort(part, kind="stable")
        part_sizes = np.bincount(part, minlength=len(sizes))
        of_class = part[by_class]
        ranks = np.arange(len(part)) + (before - (np.cumsum(part_sizes) - part_sizes))[of_class]
        places = permute_each(ranks, sizes[of_class], circles[of_class]).astype(np.int64)
        is_extra = is_next(places, taken[of_class], sizes[of_class], more[of_class])
        counts[first + by_class] = whole[of_class] + is_extra
        before += part_sizes
    return counts


def weighted_counts(weights: NDArray[np.uint32], weight_sum: int, total: int, *, seed: int, epoch: int) -> NDArray[Any]:
    """Return the copies of each sample if an epoch takes ``total`` samples in proportion to these weights.

    ``weight_sum`` is below 2**61, and ``total`` below 2**48.
    """
    largest = int(weights.max(initial=0))
    counts = np.empty(len(weights), dtype=holding(-(-largest * total // weight_sum)))
    begin = key(seed, 0, "sample start") * weight_sum >> 64
    start = (begin + (_GOLDEN * weight_sum >> 64) * epoch) % weight_sum
    mask, line = np.uint64((1 << _BLOCK_BITS) - 1), key(seed, 0, "sample")
    passed = reached = 0
    for first in range(0, len(weights), 1 << _BLOCK_BITS):
        part = weights[first : first + (1 << _BLOCK_BITS)]
        words = draws(line, np.arange(first, first + len(part)))
        words &= ~mask
        words |= np.arange(len(part), dtype=np.uint64)
        words.sort()
        places = (words & mask).astype(np.int64)
        ends = np.cumsum(part[places], dtype=np.uint64)
        ends += np.uint64(passed)
        cuts = _cuts_before(ends, total, start, weight_sum)
        counts[first + places] = np.diff(cuts, prepend=reached)
        passed, reached = int(ends[-1]), int(cuts[-1])
    return counts


def is_next(places: NDArray[np.int64], taken: Any, size: Any, more: Any) -> NDArray[np.bool_]:
    """Return True for the ``more`` places from place ``taken`` on, in a circle of ``size``; ``taken < size``."""
    ahead = places - taken
    ahead += np.where(ahead < 0, size, 0)
    follows: NDArray[np.bool_] = ahead < more
    return follows


def _cuts_before(ends: NDArray[np.uint64], total: int, start: int, weight_sum: int) -> NDArray[np.int64]:
    """Return the exact ``floor((ends * total + start) / weight_sum)``, even if the product has 109 bits.

    The floating-point quotient is off by less than one, and the remainder modulo 2**64 corrects the quotient. IEEE 754
    defines all operations to the bit, so the result is equal on every machine.
    """
    quotient = ends.astype(np.float64)
    quotient *= total / weight_sum
    quotient += start / weight_sum
    cuts = quotient.astype(np.int64)
    remainder = ends * np.uint64(total)
    remainder += np.uint64(start)
    remainder -= cuts.view(np.uint64) * np.uint64(weight_sum)
    signed = remainder.view(np.int64)
    cuts += signed >= weight_sum
    cuts -= signed < 0
    return cuts


def holding(largest: int) -> type[np.unsignedinteger[Any]]:
    """Return the smallest unsigned type that holds this number."""
    types: tuple[type[np.unsignedinteger[Any]], ...] = (np.uint8, np.uint16, np.uint32, np.uint64)
    return next(kind for kind in types if largest <= np.iinfo(kind).max)

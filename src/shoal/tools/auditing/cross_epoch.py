"""Test whether two epochs or runs are related.

A seed that misses a part of a loader, ``seed + epoch`` as a seed, or an epoch that the dataset never gets make two
orders agree more than chance allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shoal.tools.auditing.statistical_tests import Outcome, correlation, normal_tail, poisson_tail

_SHIFTS = 8


def comparison_tests(
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    codes: tuple[NDArray[np.int64], NDArray[np.int64]],
    *,
    names: tuple[str, str],
    batch: int,
) -> Iterator[Outcome]:
    """Run all tests on two streams of ids, up to the length of the shorter stream.

    ``codes`` has the labels of each stream, numbered from 0. ``names`` are "epoch 0" and "epoch 1", for example.
    Neighbours are samples of one ``batch``.
    """
    size = min(len(first), len(second))
    first, second, pair = first[:size], second[:size], " and ".join(names)
    yield from _equal(first, second, pair)
    yield from _shifted(first, second, pair)
    yield _in_step(first, second, pair)
    if (outcome := _labels_agree(codes[0][:size], codes[1][:size], pair)) is not None:
        yield outcome
    share, expected, pairs = remet_neighbours(first, second, batch)
    if pairs:
        text = (
            f"of all pairs of samples that share a batch of {batch} in {names[0]}, {share:.3%} share one in {names[1]} "
            f"again, and {expected:.3%} after a perfect shuffle"
        )
        rare, serious = poisson_tail(round(share * pairs), expected * pairs), share >= 2 * expected + 0.01
        yield Outcome("neighbours met again", share, expected, rare, serious, share - expected, text)


def remet_neighbours(first: NDArray[np.int64], second: NDArray[np.int64], batch: int) -> tuple[float, float, int]:
    """Return the share of pairs of one batch that share a batch again, its expectation, and the number of pairs.

    Counts samples of both epochs; 0 pairs if a sample comes twice. O(N log N).
    """
    _, at, other = np.intersect1d(first, second, return_indices=True)
    whole = len(np.unique(first)) == len(first) and len(np.unique(second)) == len(second)
    if not whole or len(at) < 2 * batch:
        return 0.0, 0.0, 0
    batches, later = np.unique(at // batch, return_inverse=True)[1], np.unique(other // batch, return_inverse=True)[1]
    before, after = np.bincount(batches).astype(np.float64), np.bincount(later).astype(np.float64)
    pairs = float(before @ (before - 1)) / 2
    if not pairs:
        return 0.0, 0.0, 0
    _, together = np.unique(batches * len(after) + later, return_counts=True)
    again = float(together.astype(np.float64) @ (together - 1.0)) / 2
    size = len(at)
    return again / pairs, float(after @ (after - 1)) / (size * (size - 1.0)), int(pairs)


def _equal(first: NDArray[np.int64], second: NDArray[np.int64], pair: str) -> Iterator[Outcome]:
    size = len(first)
    same = int(np.count_nonzero(first == second))
    text = f"{pair} have the same sample at {same:,} of {size:,} positions"
    if same == size:
        text = f"{pair} have the same order"
    yield _sameness(same, size, text)


def _shifted(first: NDArray[np.int64], second: NDArray[np.int64], pair: str) -> Iterator[Outcome]:
    """Test for equal orders with different starts."""
    size = len(first)
    shifts = set()
    for position in range(0, size, max(1, size // _SHIFTS)):
        equal = np.flatnonzero(second == first[position])
        if len(equal) and (shift := int(equal[0]) - position) and shift not in shifts:
            shifts.add(shift)
            same = int(np.count_nonzero(first == np.roll(second, -shift)))
            text = f"{pair} have the same order, shifted by {shift:,}, at {same:,} of {size:,} positions"
            # The shift makes one position equal.
            yield _sameness(same - 1, size, text)


def _sameness(same: int, size: int, text: str) -> Outcome:
    """Judge equal positions: many mean equal orders, a few the same part of the dataset."""
    serious = same >= 0.001 * size
    name = "same order" if serious else "in step"
    return Outcome(name, same, 1.0, poisson_tail(same, 1.0), serious, same / size, text)


def _in_step(first: NDArray[np.int64], second: NDArray[np.int64], pair: str) -> Outcome:
    """Test whether both are in the same part of the dataset at the same time."""
    size, agreement = len(first), correlation(first, second)
    text = (
        f"{pair} are in the same parts of the dataset at the same time: the correlation is {agreement:.3f}, and 0 "
        f"give or take {1 / math.sqrt(size):.3f} for unrelated orders"
    )
    rare = normal_tail(agreement * math.sqrt(size - 1.0))
    return Outcome("in step", agreement, 0.0, rare, abs(agreement) >= 0.05, abs(agreement), text)


def _labels_agree(first: NDArray[np.int64], second: NDArray[np.int64], pair: str) -> Outcome | None:
    """Test whether labels come in the same order, even if samples do not."""
    size = len(first)
    num_labels = int(max(first.max(initial=0), second.max(initial=0))) + 1
    counts, others = (np.bincount(codes, minlength=num_labels).astype(np.float64) for codes in (first, second))
    # Exact moments of the agreements of two sequences in random order (a sum over a random permutation).
    pairs = float(counts @ others)
    mean = pairs / size
    squares = pairs - float(counts @ others**2) / size - float(others @ counts**2) / size + pairs**2 / size**2
    if squares <= 0.0 or mean < 50.0:
        return None
    same = int(np.count_nonzero(first == second))
    score = (same - mean) / math.sqrt(squares / (size - 1.0))
    text = (
        f"{pair} have samples of the same kind, or part of the dataset, at {same / size:.1%} of all positions; "
        f"unrelated orders at {mean / size:.1%}"
    )
    more = (same - mean) / size
    return Outcome("in step", same / size, mean / size, normal_tail(score), more >= 0.05, abs(more), text)

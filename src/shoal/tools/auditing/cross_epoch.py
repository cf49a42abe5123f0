"""Tests for a relation between two orders: epochs of one run, or two runs that should be unrelated.

A seed that does not reach some part of a loader, ``seed + epoch`` used as a seed, or an epoch that is never passed to
the dataset show as two orders that agree more than chance allows.
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
    """Run all tests on two streams, position by position.

    Parameters
    ----------
    first, second
        Ids, or numbers from 0, in the order of delivery; compared over the shorter one's length.
    codes
        The label of each sample of both, as codes from 0; same lengths as the ids.
    names
        Names of the two: "epoch 0", "epoch 1".
    batch
        Samples of the batches in which neighbours are searched.
    """
    size = min(len(first), len(second))
    first, second, pair = first[:size], second[:size], " and ".join(names)
    yield from _equal(first, second, pair)
    yield from _shifted(first, second, pair)
    yield _in_step(first, second, pair)
    if (outcome := _labels_agree(codes[0][:size], codes[1][:size], pair)) is not None:
        yield outcome
    found, expected, pairs = remet_neighbours(first, second, batch)
    if pairs:
        text = (
            f"of all pairs of samples that share a batch of {batch} in {names[0]}, {found:.3%} share one in {names[1]} "
            f"again, and {expected:.3%} after a perfect shuffle"
        )
        rare = poisson_tail(round(found * pairs), expected * pairs)
        yield Outcome(
            "neighbours met again", found, expected, rare, found >= 2 * expected + 0.01, found - expected, text
        )


def remet_neighbours(first: NDArray[np.int64], second: NDArray[np.int64], batch: int) -> tuple[float, float, int]:
    """Return the share of the pairs of samples in one batch that share a batch again.

    Returns
    -------
    tuple
        The share, the one expected of a perfect shuffle, and the number of pairs (0 if there are none, or if samples
        come more than once), over the samples that both epochs hold. O(N log N).
    """
    _, at, other = np.intersect1d(first, second, return_indices=True)
    whole = len(np.unique(first)) == len(first) and len(np.unique(second)) == len(second)
    if not whole or len(at) < 2 * batch:
        return 0.0, 0.0, 0
    mine, theirs = np.unique(at // batch, return_inverse=True)[1], np.unique(other // batch, return_inverse=True)[1]
    before, after = np.bincount(mine).astype(np.float64), np.bincount(theirs).astype(np.float64)
    pairs = float(before @ (before - 1)) / 2
    if not pairs:
        return 0.0, 0.0, 0
    _, together = np.unique(mine * len(after) + theirs, return_counts=True)
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
    """Test for equal orders that start at different positions."""
    size = len(first)
    tried = set()
    for position in range(0, size, max(1, size // _SHIFTS)):
        found = np.flatnonzero(second == first[position])
        if len(found) and (shift := int(found[0]) - position) and shift not in tried:
            tried.add(shift)
            same = int(np.count_nonzero(first == np.roll(second, -shift)))
            text = f"{pair} have the same order, shifted by {shift:,}, at {same:,} of {size:,} positions"
            # One position is equal by choice of the shift.
            yield _sameness(same - 1, size, text)


def _sameness(same: int, size: int, text: str) -> Outcome:
    """Judge equal positions: a few come from being in the same part of the dataset, many from equal orders."""
    serious = same >= 0.001 * size
    return Outcome(
        "same order" if serious else "in step", same, 1.0, poisson_tail(same, 1.0), serious, same / size, text
    )


def _in_step(first: NDArray[np.int64], second: NDArray[np.int64], pair: str) -> Outcome:
    """Test if both are in the same part of the dataset at the same time."""
    size, found = len(first), correlation(first, second)
    text = (
        f"{pair} are in the same parts of the dataset at the same time: the correlation is {found:.3f}, and 0 "
        f"give or take {1 / math.sqrt(size):.3f} for unrelated orders"
    )
    rare = normal_tail(found * math.sqrt(size - 1.0))
    return Outcome("in step", found, 0.0, rare, abs(found) >= 0.05, abs(found), text)


def _labels_agree(first: NDArray[np.int64], second: NDArray[np.int64], pair: str) -> Outcome | None:
    """Test if labels (sources, files, parts of the dataset) come in the same order, even if samples do not."""
    size = len(first)
    num_labels = int(max(first.max(initial=0), second.max(initial=0))) + 1
    mine, theirs = (np.bincount(codes, minlength=num_labels).astype(np.float64) for codes in (first, second))
    # Exact moments of the number of agreements of two randomly ordered sequences (a sum over a random permutation).
    pairs = float(mine @ theirs)
    mean = pairs / size
    squares = pairs - float(mine @ theirs**2) / size - float(theirs @ mine**2) / size + pairs**2 / size**2
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

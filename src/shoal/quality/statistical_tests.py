"""Statistical tests of an order for traces that a perfect shuffle does not leave.

Each test compares one number with its expectation for a perfect shuffle of the ids that are present, and computes the
probability of such a deviation by chance. So the ids may be those of a part of a dataset, or contain repeats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.quality.p_values import normal_tail, poisson_tail

_LAGS = (*range(1, 33), 64, 100, 128, 256, 512, 1000, 1024, 2048, 4096, 1 << 13, 1 << 14, 1 << 15, 1 << 16)
_MOST_BITS = 16
_LEAST_OF_EACH_BIT = 50


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one test: a number, its expectation, and its probability.

    Parameters
    ----------
    name
        Name of the test; several tests (for example at many lags) share a name.
    found, expected
        Measured number, and its mean for a perfect shuffle.
    probability
        Probability that a perfect shuffle deviates as much or more.
    is_serious
        True if the deviation is likely to matter; judged by size, not rarity.
    size
        Magnitude: 0 is a perfect shuffle, 1 the worst possible.
    text
        Description of the result.
    """

    name: str
    found: float
    expected: float
    probability: float
    is_serious: bool
    size: float
    text: str


def permutation_looks(ids: NDArray[np.int64], ranks: NDArray[np.int64], *, batch: int) -> Iterator[Look]:
    """Run all tests on the ids of one epoch in the order of delivery.

    Parameters
    ----------
    ids
        Sample ids, shape (N,), N at least 200.
    ranks
        The ids numbered from 0 without gaps and repeats, in the same order; shape (num_distinct,).
    batch
        Further lag to test, beside the usual ones.
    """
    yield from _echoes(ids, batch)
    yield from _bits(ids)
    yield from _differences(ranks)
    yield from _runs(ranks)


def _echoes(ids: NDArray[np.int64], batch: int) -> Iterator[Look]:
    """Test the correlation of the storage positions of samples at several lags."""
    size = len(ids)
    centred = ids - ids.mean()
    power = float(centred @ centred)
    for lag in sorted({*_LAGS, batch}):
        if power > 0.0 and lag < size // 8:
            # For a given set in random order the mean is not 0: each sample is slightly unlike the rest.
            mean = -(size - lag) / (size * (size - 1.0))
            found = float(centred[lag:] @ centred[:-lag]) / power
            score = (found - mean) * size / math.sqrt(size - lag)
            correlation = found * size / (size - lag)
            text = (
                f"samples {lag} step{'s' if lag > 1 else ''} apart are stored near each other or far apart: their "
                f"correlation is {correlation:.3f}, and 0 give or take {1 / math.sqrt(size):.3f} in a perfect shuffle"
            )
            # Samples farther apart than a batch are seldom in the same one.
            serious = abs(correlation) >= 0.05 and lag < batch
            yield Look("echo", correlation, 0.0, normal_tail(score), serious, abs(correlation), text)


def _bits(ids: NDArray[np.int64]) -> Iterator[Look]:
    """Test runs of equal low bits (A. Wald and J. Wolfowitz, 1940): even and odd ids, pairs, fours ..."""
    size = len(ids)
    for bit in range(min(_MOST_BITS, int(ids.max(initial=0)).bit_length())):
        bits = ids >> bit & 1
        ones = int(bits.sum())
        if min(ones, size - ones) < _LEAST_OF_EACH_BIT:
            continue
        runs = 1 + int(np.count_nonzero(bits[1:] != bits[:-1]))
        mean = 2.0 * ones * (size - ones) / size + 1.0
        score = (runs - mean) / math.sqrt((mean - 1.0) * (mean - 2.0) / (size - 1.0))
        what = "even and odd ids" if bit == 0 else f"ids with bit {bit} on and off"
        share, usual = (runs - 1) / (size - 1), (mean - 1) / (size - 1)
        text = f"{what} take turns in {share:.1%} of all steps, and in {usual:.1%} in a perfect shuffle"
        serious = not 0.9 <= runs / mean <= 1.1
        yield Look("parity", runs / mean, 1.0, normal_tail(score), serious, abs(runs / mean - 1), text)


def _differences(ranks: NDArray[np.int64]) -> Iterator[Look]:
    """Test steps from one sample to the next, which seldom repeat in a random permutation."""
    size = len(ranks)
    steps = np.diff(ranks)
    steps %= size
    counts = np.bincount(steps, minlength=size)
    distinct = int(np.count_nonzero(counts))
    mean = size * (1.0 - math.exp(-1.0))  # balls in bins: the differences are even over 1 .. size - 1
    score = (distinct - mean) / math.sqrt(size * (math.exp(-1.0) - 2.0 * math.exp(-2.0)))
    text = f"{distinct:,} different steps lead from a sample to the next, and about {mean:,.0f} in a perfect shuffle"
    fewer = abs(distinct / mean - 1)
    yield Look("steps", distinct / mean, 1.0, normal_tail(score), fewer >= 0.05, fewer, text)
    most = int(counts.max())
    text = f"one step between ids, {int(counts.argmax()):,}, is taken {most:,} times"
    often = size * poisson_tail(most, 1.0)
    yield Look("steps", most, 1.0, min(1.0, often), most >= 0.01 * size, most / size, text)
    for lag in (1, 2, 3, 7):
        again = int(np.count_nonzero(steps[lag:] == steps[:-lag]))
        text = f"the step between ids is the same as {lag} before {again:,} times, and about once in a perfect shuffle"
        yield Look("steps", again, 1.0, poisson_tail(again, 1.0), again >= 0.01 * size, again / size, text)
    del steps, counts
    nearby = np.abs(np.diff(ranks))
    for part in (1024, 64):
        reach = size // part
        if reach >= 8:
            pairs = 2.0 * reach * size - reach * (reach + 1.0)  # ordered pairs of ranks at most `reach` apart
            share = pairs / (size * (size - 1.0))
            close = int(np.count_nonzero(nearby <= reach))
            score = (close - (size - 1) * share) / math.sqrt((size - 1) * share * (1 - share))
            found = close / (size - 1)
            text = (
                f"in {found:.2%} of all steps the next sample is stored within {1 / part:.2%} of the dataset "
                f"from the last one, and in {share:.2%} in a perfect shuffle"
            )
            rare = poisson_tail(close, (size - 1) * share) if close > share * size else normal_tail(score)
            yield Look("locality", found, share, rare, abs(found - share) >= 0.05, abs(found - share), text)


def _runs(ranks: NDArray[np.int64]) -> Iterator[Look]:
    """Test spans in storage order, and the longest monotonic runs."""
    size = len(ranks)
    steps = np.diff(ranks)
    kept = int(np.count_nonzero((steps == 1) | (steps == -1)))
    length, first = _longest(steps == 1)
    text = (
        f"{kept:,} of {size:,} samples are delivered beside a neighbour of storage, and about 2 in a perfect shuffle; "
        f"the longest span in storage order has {length + 1:,} samples, from position {first:,}"
    )
    yield Look("storage order", kept, 2.0, poisson_tail(kept, 2.0), kept >= 0.001 * size, kept / size, text)
    for name, going in (("up", steps > 0), ("down", steps < 0)):
        longest = _longest(going)[0] + 1
        # A run of this length begins at each of `size` places with probability 1 / longest!.
        often = size * math.exp(-math.lgamma(longest + 1.0))
        text = f"{longest:,} samples in a row have ids that only go {name}"
        yield Look("runs", longest, _usual_run(size), min(1.0, often), longest >= 64, longest / size, text)


def _usual_run(size: int) -> int:
    """Return the length of the longest run that is expected about once."""
    longest = 1
    while size > math.exp(math.lgamma(longest + 2.0)):
        longest += 1
    return longest


def _longest(true: NDArray[np.bool_]) -> tuple[int, int]:
    """Return the length of the longest span of true values, and its start."""
    breaks = np.flatnonzero(~np.concatenate([[False], true, [False]]))
    lengths = np.diff(breaks)
    at = int(lengths.argmax())
    return int(lengths[at]) - 1, int(breaks[at])

"""What an auditor looks for in a permutation: each look gives a z-score, or a count turned into one.

`worst_look` is what tests compare with a bound; a random permutation gives about 4 over some hundred looks.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

LAGS = (*range(1, 33), 64, 128, 256, 512, 1000, 1024, 4096, 1 << 15)


def looks(permuted: NDArray[np.int64]) -> dict[str, float]:
    """A z-score for each look at a permutation of ``range(len(permuted))``, listed in order."""
    size = len(permuted)
    centred = permuted - (size - 1) / 2
    variance = (size * size - 1) / 12
    found = {}
    for lag in LAGS:
        if lag < size // 8:
            mean = float((centred[lag:] * centred[:-lag]).mean())
            found[f"autocorrelation at lag {lag}"] = (mean / variance + 1 / size) * math.sqrt(size - lag)
    for bit in range(min(12, (size - 1).bit_length())):
        found[f"runs of bit {bit}"] = _runs_score(permuted >> bit & 1)
    differences = np.diff(permuted) % size
    # Balls in bins: the bins left empty by differences that are even over 1..size-1.
    distinct = len(np.unique(differences))
    found["distinct differences"] = (distinct - size * (1 - math.exp(-1))) / math.sqrt(
        size * (math.exp(-1) - 2 * math.exp(-2))
    )
    counts = np.bincount(differences, minlength=size)
    most = int(counts.max())
    found["most frequent difference"] = _surprise(size / math.factorial(most))
    for lag in (1, 2, 3, 7):
        again = int(np.count_nonzero(differences[lag:] == differences[:-lag]))
        found[f"difference again after {lag}"] = _surprise(1 / math.factorial(again))
    neighbours = int(np.count_nonzero((differences == 1) | (differences == size - 1)))
    found["neighbours kept"] = _surprise(2**neighbours / math.factorial(neighbours))
    for name, steps in (("ascent", np.diff(permuted) > 0), ("descent", np.diff(permuted) < 0)):
        longest = _longest_run(steps) + 1
        found[f"longest {name}"] = _surprise(size / math.factorial(longest))
    return found


def worst_look(permuted: NDArray[np.int64]) -> tuple[float, str]:
    """The largest absolute z-score and which look it is."""
    return max((abs(score), name) for name, score in looks(permuted).items())


def _runs_score(bits: NDArray[np.int64]) -> float:
    """Wald and Wolfowitz: how far the number of runs of equal bits is from that of bits in random order."""
    ones, size = int(bits.sum()), len(bits)
    runs = 1 + int(np.count_nonzero(np.diff(bits)))
    mean = 2 * ones * (size - ones) / size + 1
    return (runs - mean) / math.sqrt((mean - 1) * (mean - 2) / (size - 1))


def _surprise(expected: float) -> float:
    """The z-score as rare as something expected so often, 0 where it is usual; good enough for a bound."""
    return math.sqrt(max(0.0, -2 * math.log(max(expected, 1e-300))))


def _longest_run(steps: NDArray[np.bool_]) -> int:
    breaks = np.flatnonzero(~np.concatenate([[False], steps, [False]]))
    return int(np.diff(breaks).max()) - 1

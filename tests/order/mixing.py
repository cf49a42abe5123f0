"""How well an order mixes, as expectations over labels: exact, with no noise but the order's own.

Labels are random values, one for each class (a chunk, or a run of chunks), independent and centred over the dataset.
What the mean of a batch varies by depends only on how many samples of each class are in it, so the expectation over
labels is arithmetic.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def batch_variances(classes: NDArray[np.int64], batch: int) -> NDArray[np.float64]:
    """The variance of the mean of each whole batch, against the mean one of a perfect shuffle; shape (num_batches,)."""
    size = len(classes)
    totals = np.bincount(classes).astype(float)
    num_batches = size // batch
    words = np.repeat(np.arange(num_batches), batch) * len(totals) + classes[: num_batches * batch]
    found, counts = np.unique(words, return_counts=True)
    batches, which = found // len(totals), found % len(totals)
    # Class c has value v_c - (sum of totals * v) / size: the variance of a sum over n_c samples of each class c.
    squares = np.bincount(batches, counts.astype(float) ** 2, num_batches)
    crossed = np.bincount(batches, counts * totals[which], num_batches)
    spread = (totals**2).sum()
    variances = squares - 2 * batch / size * crossed + (batch / size) ** 2 * spread
    perfect = batch * (1 - spread / size**2) * (size - batch) / (size - 1)
    return variances / perfect


def variance_ratio(classes: NDArray[np.int64], batch: int) -> float:
    """VR: how much more the means of batches vary than under a perfect shuffle, for which it is 1."""
    return float(batch_variances(classes, batch).mean())


def autocorrelations(classes: NDArray[np.int64], lags: NDArray[np.int64]) -> NDArray[np.float64]:
    """The correlation of the labels of samples so many positions apart; shape (num_lags,)."""
    totals = np.bincount(classes).astype(float)
    by_chance = ((totals / len(classes)) ** 2).sum()
    same = np.array([np.count_nonzero(classes[lag:] == classes[:-lag]) / (len(classes) - lag) for lag in lags])
    return (same - by_chance) / (1 - by_chance)


def alive(chunks: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many chunks have begun and not ended at each position, that position's included."""
    numbers = np.arange(len(chunks))
    first = np.full(int(chunks.max()) + 1, -1)
    last = first.copy()
    first[chunks[::-1]], last[chunks] = numbers[::-1], numbers
    used = first >= 0
    change = np.bincount(first[used], minlength=len(chunks) + 1) - np.bincount(
        last[used] + 1, minlength=len(chunks) + 1
    )
    return np.cumsum(change)[:-1]

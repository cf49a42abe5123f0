"""Variance ratios over many batch sizes at once: b, 2b, 4b ... up to half an epoch.

A curve costs one sort of the labels (none for numbers) and then one pass per size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEAR_BATCHES = 4
"""Successive batches: the variance of their mean predicts the loss of a model (bench/mixing_law.py)."""
MOST_NEAR_RATIO = 1.5
"""VR of the mean of `NEAR_BATCHES` batches up to which a loss stayed within 0.2 % of a full permutation's."""


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """The keys of samples in the order of delivery, ready to be cut into batches of any size.

    Parameters
    ----------
    values
        Centred numbers, or codes of labels from 0; shape (N,).
    shares
        Share of each label in the dataset, shape (num_labels,); None if keys are numbers.
    variance
        Variance of the numbers; for labels ``1 - sum p_c^2``.
    """

    values: NDArray[np.float64] | NDArray[np.integer[Any]]
    shares: NDArray[np.float64] | None
    variance: float

    @property
    def spread(self) -> float:
        """Inverse of the independent numbers in the key: 1 for a number, 1 / (labels - 1) for even labels.

        The mean square of ``1[x = y] - p_x - p_y + sum p^2`` for two independent samples, over ``variance^2``: the
        part of the variance of a mean square that the set of samples does not fix.
        """
        if self.shares is None or self.variance <= 0.0:
            return 1.0
        squares = float(self.shares @ self.shares)
        return (squares - 2.0 * float(self.shares @ self.shares**2) + squares**2) / self.variance**2


@dataclass(frozen=True, slots=True, eq=False)
class VarianceCurve:
    """Variance ratios by batch size, and their spread by chance in a perfect shuffle; shape (num_sizes,) each.

    ``freedom`` holds the degrees of freedom of each ratio: in a perfect shuffle a ratio is distributed like chi-square
    over its degrees of freedom, so its standard deviation is ``sqrt(2 / freedom)``. ``distinct`` is the mean number of
    distinct labels in a batch, or 0 if keys are numbers.
    """

    sizes: NDArray[np.int64]
    ratios: NDArray[np.float64]
    freedom: NDArray[np.float64]
    distinct: NDArray[np.float64]


def batch_sizes(batch: int, num_samples: int) -> list[int]:
    """Return ``batch`` and its doublings, up to half of the samples.

    >>> batch_sizes(64, 1000)
    [64, 128, 256]
    """
    sizes = []
    while 2 <= 2 * batch <= num_samples:
        sizes.append(batch)
        batch *= 2
    return sizes


def near_variance_ratio(ratios: Mapping[int, float], batch: int) -> float:
    """Return VR of the mean of `NEAR_BATCHES` successive batches, or of the most batches ``ratios`` has, if fewer.

    >>> near_variance_ratio({64: 1.0, 128: 1.0, 256: 2.0, 512: 4.0}, 64)
    2.0
    """
    return ratios[max(size for size in ratios if size <= NEAR_BATCHES * batch)]


def variance_curve(keys: Keys, sizes: list[int], *, population: int | None = None) -> VarianceCurve:
    """Compute variance ratios (`shoal.quality.metrics.variance_ratio`) for many batch sizes.

    Parameters
    ----------
    keys
        Keys in the order of delivery.
    sizes
        Batch sizes, each at most half of the samples.
    population
        Samples of the epoch if the keys are only a part of it; default: the number of keys.

    Returns
    -------
    VarianceCurve
        Takes O(N log N) for labels, O(N) for numbers; 25 bytes per sample.
    """
    whole = population is None
    total = len(keys.values) if population is None else population
    by_label: NDArray[np.integer[Any]] | None = None
    if keys.shares is not None:
        by_label = np.argsort(keys.values, kind="stable")
        if len(by_label) < 2**31:  # half the memory; there are several more such arrays below
            by_label = by_label.astype(np.int32)
    ratios, freedom, distinct = [], [], []
    for size in sizes:
        num_batches = len(keys.values) // size
        if by_label is None:
            sums = keys.values[: num_batches * size].reshape(num_batches, size).sum(axis=1)
            square, labels = float(sums @ sums) / num_batches / size**2, 0.0
        else:
            square, labels = _of_labels(keys, by_label, size, num_batches)
        scale = size * (total - 1.0) / (total - size)
        # Equal keys have labels to count, but no variance.
        ratios.append(max(0.0, square) * scale / keys.variance if keys.variance > 0.0 else np.nan)
        # All batches of an epoch together have the mean of the dataset, so one of them is not free.
        free = num_batches - 1.0 if whole else float(num_batches)
        freedom.append(free / keys.spread / max(1e-9, 1.0 - 1.0 / size))
        distinct.append(labels)
    return VarianceCurve(np.array(sizes, dtype=np.int64), np.array(ratios), np.array(freedom), np.array(distinct))


def _of_labels(keys: Keys, by_label: NDArray[np.integer[Any]], size: int, num_batches: int) -> tuple[float, float]:
    """Return the mean over batches of ``sum_c (share_c - p_c)^2``, and the mean number of labels in a batch."""
    assert keys.shares is not None  # noqa: S101  # the caller has looked
    positions = by_label[by_label < num_batches * size]
    # Sorted by label, then by position: the samples of a label in one batch are adjacent.
    batches, codes = positions // size, keys.values[positions]
    first = np.flatnonzero(np.concatenate([[True], (batches[1:] != batches[:-1]) | (codes[1:] != codes[:-1])]))
    counts = np.diff(first, append=len(positions)).astype(np.float64)
    inside = float(counts @ counts) / size**2 / num_batches
    crossed = float(keys.shares[codes].sum()) / size / num_batches
    return inside - 2.0 * crossed + float(keys.shares @ keys.shares), len(first) / num_batches

"""What an order says before anybody trains: each predictor is computed from the positions of the rows alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FARTHEST = 256  # rows of storage: correlation at larger distances is left out


def similarity(rows: NDArray[np.uint16], vocabulary: int, farthest: int = FARTHEST) -> NDArray[np.float64]:
    """Return the mean similarity of rows by their distance in storage, 0 for rows at random; shape (farthest,).

    The cosine of counts of tokens, less the mean over all pairs; distance 0 comes first and is 1.
    """
    counts = np.zeros((len(rows), vocabulary), dtype=np.float32)
    np.add.at(counts, (np.arange(len(rows))[:, None], rows.astype(np.int64)), 1)
    counts = np.sqrt(counts)
    counts -= counts.mean(axis=0)
    counts /= np.linalg.norm(counts, axis=1, keepdims=True)
    return np.array([float(np.einsum("ij,ij->i", counts[: len(rows) - d], counts[d:]).mean()) for d in range(farthest)])


def excess(ids: NDArray[np.int64], similar: NDArray[np.float64], memory: float) -> float:
    """Return how much of what came in the last ``memory`` positions is like the row that comes now.

    The sum, over all other rows within ``len(similar)`` of a row in storage, of their similarity times
    ``exp(-|lag| / memory)``, averaged over rows. For a moving average of gradients with this memory it is what the
    variance ratio exceeds 1 by.
    """
    positions = np.empty(len(ids), dtype=np.float64)
    positions[ids] = np.arange(len(ids))
    total = 0.0
    for distance in range(1, len(similar)):
        lags = np.abs(positions[distance:] - positions[:-distance])
        total += 2 * float(np.exp(-lags / memory).sum()) * similar[distance]
    return total / len(ids)


def distinct_chunks(ids: NDArray[np.int64], chunk_rows: int, memory: int) -> float:
    """Return ``memory`` rows over the number of distinct chunks among them, averaged over the epoch."""
    chunks = ids // chunk_rows
    parts = [chunks[first : first + memory] for first in range(0, len(chunks) - memory + 1, memory)]
    return float(np.mean([memory / len(np.unique(part)) for part in parts]))


def variance_ratio(ids: NDArray[np.int64], labels: NDArray[np.int64], span: int) -> float:
    """Return the variance of label shares over spans of rows, over that of spans drawn at random."""
    num_spans = len(ids) // span
    one_hot = np.eye(int(labels.max()) + 1)[labels[ids[: num_spans * span]]]
    shares = one_hot.reshape(num_spans, span, -1).mean(axis=1)
    expected = one_hot.mean(axis=0)
    variance = (expected * (1 - expected)).sum() / span * (len(ids) - span) / (len(ids) - 1)
    return float(((shares - expected) ** 2).sum(axis=1).mean() / variance)

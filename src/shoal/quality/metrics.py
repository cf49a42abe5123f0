"""Metrics of mixing from sample ids, or from a key of each sample, in the order of delivery; pure functions.

Every metric is measured against a perfect shuffle of the same samples. Batches are cut one after another and never
across the end of an epoch; several epochs are the rows of one array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.errors import UsageError


def variance_ratio(keys: ArrayLike, batch: int) -> float:
    """Compute VR: the variance of batch content relative to a perfect shuffle, which has 1.0.

    For float keys, this is the variance of a batch's mean around the mean of the dataset, divided by that of batches
    drawn without replacement, ``s2 / b * (N - b) / (N - 1)`` with ``s2`` the variance of the dataset. All other keys
    are labels: the share of a label in a batch is the mean of its indicator, and the ratios are averaged with the
    variances ``p * (1 - p)`` as weights, so that

        VR = mean over batches of sum_c (share_c - p_c)^2  /  ( sum_c p_c (1 - p_c) / b * (N - b) / (N - 1) )

    The mean of the dataset is known and not estimated, so both have the expectation 1 for a perfect shuffle of any
    size. A last batch that is not full is left out.

    Parameters
    ----------
    keys
        The key of every sample in the order of delivery, shape (N,) or (num_epochs, N).
    batch
        Samples of a batch, ``b``; less than N.

    Returns
    -------
    float
        From 0 (every batch is the dataset in small) to about ``b`` (every batch holds one label). O(N log N).

    Raises `UsageError` if the batch does not fit, or all keys are equal.

    Examples
    --------
    >>> round(variance_ratio([0] * 500 + [1] * 500, 10), 2)  # sorted: each batch holds one label
    10.09
    >>> variance_ratio([0, 1] * 500, 10)  # striped: each batch holds both alike
    0.0

    References
    ----------
    W. G. Cochran, "Sampling Techniques", 3rd edition, 1977, sections 2.5 and 2.6 (the variance of a sample mean without
    replacement). L. Kish, "Survey Sampling", 1965, section 5.4: the ratio is his *design effect*; batches cut from
    chunks are cluster samples, and it is ``1 + (m - 1) rho`` for whole clusters of m with correlation rho inside.
    """
    epochs = _epochs(keys)
    num_samples = int(epochs.shape[1])
    check_batch(batch, num_samples)
    scale = batch * (num_samples - 1) / (num_samples - batch)
    if epochs.dtype.kind == "f":
        mean, variance = float(epochs[0].mean()), float(epochs[0].var())
        squares = float(np.mean((_batches(epochs, batch).mean(axis=1) - mean) ** 2))
    else:
        labels, codes = _codes(epochs)
        shares = np.bincount(codes[0], minlength=labels) / num_samples
        variance = 1.0 - float(shares @ shares)
        _, code, count = _label_counts(_batches(codes, batch), labels)
        num_batches = len(epochs) * (num_samples // batch)
        inside = count / batch
        # The sum of (share - p)^2 over all labels, including labels that the batch lacks.
        squares = float(inside @ inside - 2.0 * (inside @ shares[code])) / num_batches + float(shares @ shares)
    if variance <= 0.0:
        msg = f"all {num_samples} keys are equal: no batch can differ from another"
        raise UsageError(msg, hint="measure a key that differs between samples")
    return max(0.0, squares) * scale / variance


def distinct_per_batch(labels: ArrayLike, batch: int) -> float:
    """Return the mean number of distinct labels in a batch, over full batches.

    ``labels`` holds the label of every sample in the order of delivery, shape (N,) or (num_epochs, N). O(N log N).

    >>> distinct_per_batch([0, 0, 1, 1, 2, 2], 2), distinct_per_batch([0, 1, 2, 0, 1, 2], 2)
    (1.0, 2.0)
    """
    epochs = _epochs(labels)
    num_samples = int(epochs.shape[1])
    check_batch(batch, num_samples)
    num_labels, codes = _codes(epochs)
    number, _, _ = _label_counts(_batches(codes, batch), num_labels)
    return len(number) / (len(epochs) * (num_samples // batch))


def expected_distinct(labels: ArrayLike, batch: int) -> float:
    """Return the exact expected number of distinct labels in a batch of a perfect shuffle.

    A label that ``n`` of ``N`` samples carry is missing from a batch with the hypergeometric probability
    ``C(N - n, b) / C(N, b)``, the product of ``1 - n / (N - i)`` for i from 0 to b - 1. ``labels`` has shape (N,),
    in any order. O(N log N + b * distinct sizes of labels).

    >>> round(expected_distinct([0, 0, 1, 1], 2), 4)  # 4 of 6 pairs hold both labels
    1.6667
    """
    return expected_distinct_of(np.unique(_epochs(labels)[0], return_counts=True)[1], batch)


def expected_distinct_of(counts: ArrayLike, batch: int) -> float:
    """`expected_distinct` from the number of samples with each label, shape (num_labels,).

    >>> round(expected_distinct_of([2, 2], 2), 4)
    1.6667
    """
    num_samples = int(np.sum(counts))
    check_batch(batch, num_samples, whole=True)
    sizes, times = np.unique(counts, return_counts=True)
    left = num_samples - np.arange(batch, dtype=np.int64)
    # max: the product is 0, and stays 0, when fewer samples are left than carry the label.
    missing = [float(np.prod(np.maximum(0.0, 1.0 - size / left))) for size in sizes.tolist()]
    return float(np.sum(times * (1.0 - np.array(missing))))


def chunk_correlation(keys: ArrayLike, chunk_samples: ArrayLike) -> float:
    """Compute rho, the correlation of two different samples of one chunk.

    It is 1 if every chunk holds one label, 0 if samples of a chunk are no more alike than any, and slightly negative if
    each chunk is the dataset in small. Floats are numbers and all other keys labels, as in `variance_ratio`; for labels
    it is ``(P(same label in one chunk) - sum p_c^2) / (1 - sum p_c^2)``.

    Parameters
    ----------
    keys
        The key of every sample by id, shape (N,): storage order.
    chunk_samples
        Samples of each chunk, shape (num_chunks,); their sum is N. O(N log N).

    Raises `UsageError` if the chunks do not add up to the keys, no chunk holds two samples, or all keys are equal.

    Examples
    --------
    >>> chunk_correlation(["a", "a", "b", "b"], [2, 2]), chunk_correlation(["a", "b", "a", "b"], [2, 2])
    (1.0, -1.0)
    """
    array, samples = _epochs(keys)[0], np.asarray(chunk_samples, dtype=np.int64)
    if samples.ndim != 1 or int(samples.sum()) != len(array):
        msg = f"{samples.sum()} samples in {samples.size} chunks cannot have {len(array)} keys"
        raise UsageError(msg, hint="one key for each sample of the dataset, by id")
    pairs = float(samples.astype(np.float64) @ (samples - 1.0))
    chunks = np.repeat(np.arange(len(samples)), samples)
    if array.dtype.kind == "f":
        centred = array - array.mean()
        variance = float(centred @ centred) / len(array)
        sums = np.bincount(chunks, centred, len(samples))
        together = float(sums @ sums) - float(centred @ centred)
    else:
        labels, codes = np.unique(array, return_inverse=True)
        shares = np.bincount(codes, minlength=len(labels)) / len(array)
        variance = 1.0 - float(shares @ shares)
        _, counts = np.unique(chunks * len(labels) + codes.reshape(-1), return_counts=True)
        together = float(counts.astype(np.float64) @ (counts - 1.0)) - pairs * float(shares @ shares)
    if variance <= 0.0 or pairs <= 0.0:
        msg = f"{len(array)} keys in {samples.size} chunks: all keys are equal, or no chunk holds two samples"
        raise UsageError(msg, hint="measure a key that differs between samples, and larger chunks")
    # Pairs weight large chunks more than samples do: with uneven chunks the ratio can slightly exceed its bounds.
    return min(1.0, max(-1.0, together / pairs / variance))


def check_correlation(rho: Any) -> None:
    """Raise `UsageError` unless this is a correlation."""
    if not isinstance(rho, float | int | np.number) or not -1.0 <= rho <= 1.0:
        raise UsageError(f"rho is the correlation of two samples of one chunk, from -1 to 1; got {rho!r:.80}")


def position_correlation(ids: ArrayLike) -> float:
    """Correlate the order of delivery with the order of storage: 1 for storage order, about 0 for a shuffle.

    Pearson's correlation of sample id and position in one epoch; ``ids`` has shape (N,). For a perfect shuffle its mean
    is 0 and its standard deviation ``1 / sqrt(N - 1)``. O(N).

    >>> position_correlation([0, 1, 2, 3]), position_correlation([3, 2, 1, 0])
    (1.0, -1.0)
    """
    array = np.asarray(ids, dtype=np.float64)
    if array.ndim != 1 or len(array) < 2 or np.ptp(array) == 0:
        msg = f"the ids of an epoch must have shape (N,) and two different values; got shape {array.shape}"
        raise UsageError(msg)
    source = array - array.mean()
    output = np.arange(len(array), dtype=np.float64)
    output -= output.mean()
    return float(source @ output) / float(np.sqrt((source @ source) * (output @ output)))


def _epochs(keys: ArrayLike) -> NDArray[Any]:
    """Return the keys with one epoch per row."""
    array = np.asarray(keys)
    if array.ndim not in {1, 2} or not array.size:
        raise UsageError(f"keys have the shape (N,), or (num_epochs, N); got {array.shape}")
    return np.atleast_2d(array)


def check_batch(batch: int, num_samples: int, *, whole: bool = False) -> None:
    """Raise `UsageError` unless the samples have batches of this size; a ``whole`` batch may hold all samples."""
    if not 1 <= batch < num_samples + whole:
        msg = f"batches of {batch} cannot be cut from {num_samples} samples and compared"
        raise UsageError(msg, hint=f"a batch of 1 to {num_samples - 1 + whole} samples")


def _codes(epochs: NDArray[Any]) -> tuple[int, NDArray[np.int64]]:
    """Return the number of labels, and the code of each sample's label in the same shape."""
    labels, codes = np.unique(epochs, return_inverse=True)
    return len(labels), codes.reshape(epochs.shape).astype(np.int64, copy=False)


def _batches(epochs: NDArray[Any], batch: int) -> NDArray[Any]:
    """Return the full batches of all epochs, shape (num_batches, batch)."""
    full = epochs.shape[1] // batch
    return epochs[:, : full * batch].reshape(-1, batch)


def _label_counts(
    batches: NDArray[np.int64], num_labels: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return batch number, label and count for each label in each batch."""
    # Sorted pairs, not a table of batches by labels, which would not fit with a million labels.
    pairs = np.arange(len(batches), dtype=np.int64)[:, None] * num_labels + batches
    distinct, counts = np.unique(pairs, return_counts=True)
    return distinct // num_labels, distinct % num_labels, counts.astype(np.int64, copy=False)

"""Predicted variance ratios, from the order's parameters and the sizes of the chunks alone.

Batches are cluster samples: they vary more than in a perfect shuffle because samples of one chunk meet in one batch.
Let the *companions* of a sample, ``s``, be the mean number of other samples of its own chunk in its batch. If the
chunks are in random order, with the correlation ``rho`` between two samples of one chunk,

    VR(b) = (1 + rho s + rho' (b - 1 - s)) / (1 - (b - 1) / (N - 1))

is exact. ``rho'`` is the small negative correlation that remains between samples of different chunks, because all of
them together have the mean of the dataset. So ``s`` as a function of the batch size describes an order; `companions`
computes it for each of shoal's orders.

References
----------
L. Kish, "Survey Sampling", 1965, section 5.4, for the design effect ``1 + (m - 1) rho`` of whole clusters of ``m``.
W. G. Cochran, "Sampling Techniques", 3rd edition, 1977, section 8.3, for systematic samples, such as a window's.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.errors import UsageError
from shoal.order.orders_without_window import Block, Buffer, Full, Sequential
from shoal.order.protocol import Order
from shoal.order.window.order import Window
from shoal.order.window.timeline_slabs import slab_samples
from shoal.quality.metrics import check_batch, check_correlation

_MOST_BORDERS = 1 << 20
_MOST_SIZES = 64  # of chunks: more distinct sizes are grouped
_MOST_SORTED = _TILE = 1 << 16
_SLAB_POINTS = 32
_END_POINTS = 4  # lives of chunks at the ends of an epoch
_QUADRATURE = 512


@dataclass(frozen=True, slots=True, eq=False)
class ChunkLayout:
    """The sizes of a dataset's chunks, summarised once for many predictions.

    Parameters
    ----------
    samples
        Samples of each non-empty chunk, shape (num_chunks,).
    num_samples
        Samples of all chunks.
    num_pairs
        Number of ordered pairs of different samples of one chunk.
    sizes, counts
        Sizes of chunks and the number of chunks of about each size; at most 64.
    """

    samples: NDArray[np.int64]
    num_samples: float
    num_pairs: float
    sizes: NDArray[np.float64]
    counts: NDArray[np.float64]

    @staticmethod
    def of(chunk_samples: ArrayLike | ChunkLayout) -> ChunkLayout:
        """Return the layout of chunks with these numbers of samples; 3 ns per chunk."""
        if isinstance(chunk_samples, ChunkLayout):
            return chunk_samples
        samples = np.asarray(chunk_samples, dtype=np.int64)
        samples = samples if samples.min(initial=1) > 0 else samples[samples > 0]
        if samples.ndim != 1 or not len(samples):
            msg = f"chunk_samples holds the samples of each chunk, shape (num_chunks,); got {np.shape(chunk_samples)}"
            raise UsageError(msg)
        some = samples[:: -(-len(samples) // _MOST_SORTED)]  # sorting all would take a second for 10^7
        sizes, counts = np.unique(some, return_counts=True)
        if len(sizes) > _MOST_SIZES:
            parts = np.array_split(np.sort(some), _MOST_SIZES)
            sizes, counts = np.array([part.mean() for part in parts]), np.array([len(part) for part in parts])
        weights = np.asarray(counts, dtype=np.float64) * (len(samples) / len(some))
        total = pairs = 0.0
        # By tiles, since whole columns of 10^7 floats take 240 MB; without BLAS, whose threads wait for busy cores.
        for begin in range(0, len(samples), _TILE):
            tile = samples[begin : begin + _TILE].astype(np.float64)
            total += float(tile.sum())
            tile *= tile - 1.0
            pairs += float(tile.sum())
        return ChunkLayout(samples, total, pairs, sizes.astype(np.float64), weights)


def predicted_variance_ratio(
    order: Order, chunk_samples: ArrayLike | ChunkLayout, batch: int, *, rho: float = 1.0
) -> float:
    """Predict VR(b) of an order on a dataset cut into these chunks; 1.0 is a perfect shuffle.

    Within 10 % of simulated orders for windows of at least 8 chunks in each canonical node, and buffers of at most an
    eighth of the dataset. `Sequential` does not reorder chunks: the formula assumes stored chunks in random order, and
    sorted data are worse. A `Buffer` keeps runs of like samples inside of chunks together, so its ``chunk_samples``
    should be the sizes of these runs. Measure both instead (`shoal.quality.metrics.variance_ratio`).

    Parameters
    ----------
    order
        `Window`, `Full`, `Block`, `Buffer` or `Sequential`.
    chunk_samples
        Samples of each chunk, shape (num_chunks,), or their `ChunkLayout`.
    batch
        Samples of a global batch, ``b``; less than all.
    rho
        Correlation inside chunks (`shoal.quality.metrics.chunk_correlation`); 1 is the worst case, equal samples.

    Returns
    -------
    float
        Takes O(num_chunks), and O(b / chunks) for a window.

    Raises `UsageError` if the batch does not fit, or the order is of another kind.

    Examples
    --------
    >>> chunks = [64] * 4096
    >>> round(predicted_variance_ratio(Window(chunks=64), chunks, 256), 1)
    3.9
    >>> round(predicted_variance_ratio(Window(chunks=64), chunks, 256, rho=0.01), 2)
    1.03
    >>> predicted_variance_ratio(Full(), chunks, 256)
    1.0
    """
    layout = ChunkLayout.of(chunk_samples)
    return variance_ratio_of(companions(order, layout, batch), layout, batch, rho=rho)


def variance_ratio_of(
    companions: float, chunk_samples: ArrayLike | ChunkLayout, batch: int, *, rho: float = 1.0
) -> float:
    """Compute the exact VR(b) of an order from the mean number of companions of a sample.

    >>> round(variance_ratio_of(63, [64] * 4096, 256, rho=0.5), 2)  # whole chunks in every batch
    32.51
    """
    layout = ChunkLayout.of(chunk_samples)
    check_correlation(rho)
    total, pairs = layout.num_samples, layout.num_pairs
    check_batch(batch, int(total))
    if pairs >= total * (total - 1.0):  # one chunk: any random order inside it is perfect
        return 1.0
    apart = -(total + rho * pairs) / (total * (total - 1.0) - pairs)
    ratio = (1.0 + rho * companions + apart * (batch - 1.0 - companions)) / (1.0 - (batch - 1.0) / (total - 1.0))
    return max(0.0, round(ratio, 12))


def has_formula(order: Order) -> bool:
    """Return True if a formula predicts the quality of an order that mixes; storage order mixes nothing."""
    return isinstance(order, (Full, Block, Buffer, Window))


def effective_chunks(order: Order, chunk_samples: ArrayLike | ChunkLayout, batch: int) -> float:
    """Return the number of independently drawn chunks that vary as much as a batch.

    >>> round(effective_chunks(Window(chunks=64), [64] * 4096, 1024))
    69
    """
    return batch / (1.0 + companions(order, chunk_samples, batch))


def companions(order: Order, chunk_samples: ArrayLike | ChunkLayout, batch: int) -> float:
    """Return the mean number of samples in a batch that share the chunk of a given sample, over an epoch.

    ``batch - 1`` if batches are cut from single chunks, and ``(batch - 1) (m - 1) / (N - 1)`` in a perfect shuffle of N
    samples in chunks of m.
    """
    layout = ChunkLayout.of(chunk_samples)
    samples, total = layout.samples, layout.num_samples
    check_batch(batch, int(total))
    perfect = (batch - 1.0) * layout.num_pairs / total / max(1.0, total - 1.0)
    if isinstance(order, Full):
        return perfect
    if isinstance(order, Sequential):  # batches are cut from chunks one after another
        lengths = _overlaps(_chunk_borders(samples), batch)
        return float(lengths @ (lengths - 1.0)) / float(lengths.sum())
    if isinstance(order, Block):
        return _in_blocks(layout, batch, order.chunks)
    if isinstance(order, Buffer):
        return perfect if order.samples >= total else max(perfect, _in_buffer(layout, batch, order.samples))
    if isinstance(order, Window):
        return perfect if order.chunks >= len(samples) else _in_window(layout, batch, order)
    msg = f"there is no formula for the order {order.name!r}"
    raise UsageError(msg, hint="measure it: shoal.measure.audit(ds.ids())")


def _in_blocks(layout: ChunkLayout, batch: int, chunks: int) -> float:
    """Return the companions for permuted blocks: any two samples of a block share a chunk with equal probability."""
    samples, inside = layout.samples, layout.num_pairs / layout.num_samples
    mean = layout.num_samples / len(samples)
    if (samples != samples[0]).any():  # blocks then end anywhere in a batch
        size = chunks * mean
        overlap = batch * (1 - batch / size / 3) if batch <= size else size * (1 - size / batch / 3)
        return max(0.0, overlap - 1.0) * min(1.0, inside / max(1.0, size - 1.0))
    counts = np.full(-(-len(samples) // chunks), chunks)
    counts[-1] -= len(counts) * chunks - len(samples)
    borders = _chunk_borders(counts * mean)
    lengths = _overlaps(borders, batch)
    # The block of each part matters, because the last block is smaller and its chunks meet more often.
    block = np.minimum(np.searchsorted(borders[1:], np.cumsum(lengths)), len(counts) - 1)
    together = np.minimum(1.0, inside / np.maximum(1.0, counts[block] * mean - 1.0))
    return float((lengths * (lengths - 1.0)) @ together) / float(lengths.sum())


def _in_buffer(layout: ChunkLayout, batch: int, slots: int) -> float:
    """Return the companions for a reservoir, where a sample stays for ``slots`` steps on average.

    So the distance between the departures of two samples that came together has a Laplace distribution.
    """
    total, met = layout.num_samples, 0.0
    for size, count in zip(layout.sizes.tolist(), layout.counts.tolist(), strict=True):
        # Two samples of a chunk arrive `apart` steps apart, up to its size; the distribution is triangular.
        edges = np.linspace(0.0, size, min(_QUADRATURE, int(size)) + 1)
        apart = (edges[1:] + edges[:-1]) / 2
        weight = (size - apart) * np.diff(edges) * 2 / size
        weight *= (size - 1.0) / weight.sum()  # so that a chunk of one sample has none
        met += count * size * float(weight @ _same_batch_after_buffer(apart, batch, slots))
    # At the end the slots are emptied at random, in half the time that samples stay otherwise.
    return met / total * (1.0 + slots / (2.0 * total))


def _same_batch_after_buffer(apart: NDArray[np.float64], batch: int, slots: int) -> NDArray[np.float64]:
    """Return the probability that two samples leave a reservoir in one batch, by their distance at arrival."""

    def twice_integrated(steps: NDArray[np.float64]) -> NDArray[np.float64]:
        return slots / 2.0 * np.expm1(-np.abs(steps) / slots) + np.abs(steps) / 2.0

    around = twice_integrated(apart - batch) - 2 * twice_integrated(apart) + twice_integrated(apart + batch)
    # Subtract the sample itself: no two samples leave at one step.
    return np.maximum(0.0, around / batch - np.exp(-apart / slots) / (2.0 * slots))


def _in_window(layout: ChunkLayout, batch: int, order: Window) -> float:
    """Return the companions for a window: a chunk's samples, evenly spaced, jittered by the random order in a slab.

    `shoal.order.window.timeline_slabs` describes lives, spacing and slabs. At both ends of an epoch lives range from
    half a window to one and a half, so a batch gets more samples of some chunks than of others.
    """
    total, num_chunks, nodes = layout.num_samples, len(layout.samples), order.resolved_nodes
    inside = layout.num_pairs / total
    width, node_batch = order.chunks // nodes, batch / nodes
    if width * nodes >= num_chunks:  # every node is permuted as a whole
        return max(0.0, node_batch - 1.0) * inside / max(1.0, total / nodes - 1.0)
    slab = float(slab_samples(width))
    points = np.arange(1 - slab, slab) if slab <= _SLAB_POINTS else np.linspace(-slab, slab, 2 * _SLAB_POINTS + 1)
    weight = slab - np.abs(points)
    weight /= weight.sum()
    of_node, met = (num_chunks + nodes - 1) / nodes, 0.0  # a chunk on the border of two nodes is in both
    at_end = min(width, of_node - width)
    # Lives of chunks: length, number of chunks, and number of their ends inside of a batch; a batch begins at 0.
    is_long = of_node >= 2 * width
    lives = [(width if is_long else of_node, of_node - 2 * at_end, 2 if is_long else 0)]
    ends = width / 2 + at_end * (np.arange(_END_POINTS) + 0.5) / _END_POINTS
    lives += [(life, 2 * at_end / _END_POINTS, 1) for life in ends.tolist()]
    sizes = zip(layout.sizes.tolist(), layout.counts.tolist(), strict=True)
    for (size, count), (life, chunks, num_cut) in itertools.product(sizes, lives):
        gap = life * total / (of_node * nodes) / size  # the node's samples between two samples of a chunk
        steps = np.arange(1.0, min(size - 1.0, (node_batch + 2 * slab) / gap + 2.0) + 1.0)
        whole = np.floor(steps * gap / slab)
        part = steps * gap / slab - whole
        near, far = (
            np.maximum(0.0, 1.0 - np.abs((whole + more)[:, None] * slab + points) / node_batch) @ weight
            for more in (0.0, 1.0)
        )
        met += count * chunks / of_node * 2 * float((size - steps * num_cut / 2) @ ((1 - part) * near + part * far))
    return min(inside, met / total)


def _chunk_borders(chunk_samples: NDArray[Any]) -> NDArray[np.float64]:
    """Return the number of samples before each chunk, then the total; shape (num_chunks + 1,)."""
    return np.concatenate([[0.0], np.cumsum(chunk_samples, dtype=np.float64)])


def _overlaps(borders: NDArray[np.float64], batch: int) -> NDArray[np.float64]:
    """Return the lengths between the borders of batches and chunks, of an epoch or of a part of a long one."""
    end = min(float(borders[-1]), float(_MOST_BORDERS) * batch)
    end = min(end, float(borders[min(len(borders) - 1, _MOST_BORDERS)]))
    end -= end % batch  # full batches only
    cuts = np.union1d(borders[borders < end], np.arange(0.0, end + batch / 2, batch))
    return np.diff(cuts)

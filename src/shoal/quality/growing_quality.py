"""Predicted shuffle quality over the first epoch of the growing order, from the sizes of a listing alone.

A segment mixes only its own shards, and early segments have few shards. So a batch varies more than in a perfect
shuffle of the dataset for two reasons: the batch has several samples of one chunk, as in any window, and its other
samples come from the shards of one segment. If a sample's batch holds on average ``s_c`` companions of its own chunk,
and ``s_s`` of other chunks of its shard,

    VR(b) = (1 + rho_c s_c + rho_s s_s + rho' (b - 1 - s_c - s_s)) / (1 - (b - 1) / (N - 1))

is exact on average over seeds. ``rho_c`` is the correlation of two samples of one chunk, ``rho_s`` the correlation of
samples of two chunks of one shard, and ``rho'`` the remaining correlation between shards. In a window over the whole
dataset, as in `shoal.quality.prediction`, chunks of one shard meet no more often than others, so that ``rho_s`` makes
no difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.figures import parse_bytes
from shoal.index.cutting import usual_extent_bytes
from shoal.order.growing_segments import cut_segments, permuted_shards
from shoal.order.protocol import Order
from shoal.order.window.sizing_by_bytes import DEFAULT_WINDOW_BYTES, resolve_window
from shoal.quality.expected_quality import GrowingQuality, SegmentQuality
from shoal.quality.metrics import check_batch, check_correlation, chunk_correlation
from shoal.quality.prediction import ChunkLayout, companions, predicted_variance_ratio

_ALL_PREDICTED = 32  # segments at the beginning, and as many over the epoch: segments in its middle are alike
_MOST_CHUNKS = 1 << 20  # more would change nothing but the time
_LEAST_SHARDS = 1.5
_LEAST_SHARDS_OF_SIZES, _LEAST_SAMPLES_OF_SIZES = 4, 16  # of each shard: fewer may differ by chance


@dataclass(frozen=True, slots=True, eq=False)
class SegmentSizes:
    """The order of a segment, and the samples of its chunks and of its shards."""

    order: Order
    chunk_samples: NDArray[np.int64]
    shard_samples: NDArray[np.int64]


class ListedSizes(NamedTuple):
    """The segments of shards with known sizes, and the dataset as a single segment."""

    segments: list[SegmentSizes]
    whole: SegmentSizes


def listed_sizes(
    shard_bytes: ArrayLike,
    *,
    sample_bytes: float,
    seed: int | None = 0,
    window: Any = None,
    chunk: Any = None,
    num_canonical_nodes: int | None = None,
    extent_bytes: int | None = None,
) -> ListedSizes:
    """Estimate the samples of shards and of the chunks that an index will cut them into; see `growing_quality`."""
    sizes = np.asarray(shard_bytes, dtype=np.int64)
    sizes = sizes if seed is None else sizes[permuted_shards(len(sizes), seed=seed)]
    window_bytes = parse_bytes(DEFAULT_WINDOW_BYTES if window is None else window, "window")
    shard_samples = np.maximum(np.rint(sizes / sample_bytes).astype(np.int64), sizes > 0)
    if extent_bytes is None:
        extent_bytes = usual_extent_bytes(int(sizes.sum()))
    extents = -(-shard_samples // max(1, round(extent_bytes / sample_bytes)))

    def part(first: int, stop: int) -> SegmentSizes:
        resolved = resolve_window(
            extents[first:stop],
            int(sizes[first:stop].sum()),
            window=window_bytes,
            chunk=chunk,
            num_canonical_nodes=num_canonical_nodes,
            at_least_two=True,
            fits_nodes=True,
        )
        num_chunks = int((-(-extents[first:stop] // resolved.extents_per_chunk)).sum())
        num_samples = int(shard_samples[first:stop].sum())
        even = np.diff(np.arange(num_chunks + 1) * num_samples // max(1, num_chunks))
        return SegmentSizes(resolved.order, even, shard_samples[first:stop])

    cuts = cut_segments(sizes, window_bytes=window_bytes)
    return ListedSizes([part(first, stop) for first, stop in itertools.pairwise(cuts)], part(0, len(sizes)))


def growing_quality(
    shard_bytes: ArrayLike,
    batch: int,
    *,
    rho: float | None = None,
    shard_rho: float | None = None,
    **listed: Any,
) -> GrowingQuality:
    """Predict the mixing of each segment of the first epoch from the sizes of shards.

    Parameters
    ----------
    shard_bytes
        Bytes of each shard, in the order of the listing, or permuted if ``seed`` is None; shape (num_shards,).
    batch
        Samples of a global batch.
    rho, shard_rho
        See `segments_quality`.
    listed
        ``sample_bytes``, the mean bytes of a sample, measured or estimated; ``seed``, ``window``, ``chunk`` and
        ``num_canonical_nodes`` as in `shoal.Dataset.shuffle`; ``extent_bytes`` of the index.

    Examples
    --------
    >>> for segment in growing_quality([2**24] * 1000, 256, sample_bytes=2**16).segments[:4]:
    ...     print(segment.num_shards, segment.window_chunks, round(segment.vr, 1))
    4 128 64.4
    8 256 32.6
    16 512 16.7
    32 1024 8.7
    >>> growing_quality([2**24] * 1000, 256, sample_bytes=2**16, rho=0.02, shard_rho=0.0).segments[0].vr < 1.1
    True
    """
    segments, whole = listed_sizes(shard_bytes, **listed)
    return segments_quality(segments, whole.order, batch, rho=rho, shard_rho=shard_rho)


def segments_quality(
    segments: Sequence[SegmentSizes],
    later: Order,
    batch: int,
    *,
    rho: float | None = None,
    shard_rho: float | None = None,
) -> GrowingQuality:
    """Predict the mixing of each segment; in a long epoch, segments between its ends are interpolated.

    Parameters
    ----------
    segments
        The segments in turn.
    later
        The order of later epochs, over all chunks.
    batch
        Samples of a global batch; less than all.
    rho
        Correlation of two samples of one chunk (`first_correlations`). Default: 1, the worst case.
    shard_rho
        Correlation of samples of two chunks of one shard; 0 if similar samples are not in the same shard. Default: the
        correlation in one chunk, the worst case.

    Raises `UsageError` if the batch does not fit, or a correlation is out of its range.
    """
    is_assumed = rho is None and shard_rho is None
    rho = 1.0 if rho is None else rho
    shard_rho = rho if shard_rho is None else shard_rho
    for correlation in (rho, shard_rho):
        check_correlation(correlation)
    filled = [segment for segment in segments if segment.shard_samples.any()]
    layouts = [ChunkLayout.of(segment.chunk_samples) for segment in filled]
    total = sum(layout.num_samples for layout in layouts)
    check_batch(batch, int(total))
    in_chunks = sum(layout.num_pairs for layout in layouts)
    pairs = zip(filled, layouts, strict=True)
    beside = [max(0.0, _pairs(segment.shard_samples) - layout.num_pairs) for segment, layout in pairs]
    correlations = _correlations(total, in_chunks, sum(beside), rho, shard_rho)
    numbers = np.arange(len(filled))
    spread = np.linspace(0, max(0, len(filled) - 2), _ALL_PREDICTED).astype(np.int64)  # the last one may be larger
    chosen = np.unique(np.concatenate([numbers[:_ALL_PREDICTED], spread, numbers[-1:]]))
    ratios = [
        _ratio(filled[number].order, layouts[number], beside[number], batch, total, correlations)
        for number in chosen.tolist()
    ]
    chunk_samples = np.concatenate([layout.samples for layout in layouts])
    some = chunk_samples[:: -(-len(chunk_samples) // _MOST_CHUNKS)]
    later_vr = predicted_variance_ratio(later, some, batch, rho=rho)
    rows = zip(filled, layouts, np.interp(numbers, chosen, ratios).tolist(), strict=True)
    return GrowingQuality(
        batch,
        rho,
        shard_rho,
        tuple(
            SegmentQuality(
                layout.num_samples / total,
                int(np.count_nonzero(segment.shard_samples)),
                len(layout.samples),
                min(segment.order.parameters.get("chunks", len(layout.samples)), len(layout.samples)),
                ratio,
            )
            for segment, layout, ratio in rows
        ),
        later_vr,
        is_assumed,
    )


def size_correlation(sample_bytes: ArrayLike, shard_samples: ArrayLike) -> float:
    """Return the correlation of the sizes of samples of one shard; a sign of sorted data that needs no key.

    The correlation of the logarithms of two sizes; 0 for fewer than four shards, for samples of one size, and for
    shards of a few samples. O(num_samples).

    Examples
    --------
    >>> size_correlation([10, 11, 12, 13] * 20, [20] * 4), size_correlation(np.repeat([10, 50, 90, 400], 20), [20] * 4)
    (0.0, 1.0)
    """
    samples, num_shards = np.asarray(shard_samples, dtype=np.float64), _num_even(shard_samples)
    logs = np.log(np.maximum(np.asarray(sample_bytes, dtype=np.float64), 1.0))
    is_little = num_shards < _LEAST_SHARDS_OF_SIZES or samples.sum() < _LEAST_SAMPLES_OF_SIZES * num_shards
    if is_little or (logs == logs[0]).all():
        return 0.0
    return max(0.0, first_correlations(logs, shard_samples, shard_samples)[0])


def first_correlations(keys: ArrayLike, chunk_samples: ArrayLike, shard_samples: ArrayLike) -> tuple[float, float]:
    """Estimate ``rho`` and ``shard_rho`` of a dataset from a key of the samples of its first segments.

    Keys are compared with their own mean, and its variance with few shards is corrected. (1, 1), the worst case, for
    one shard or equal keys.

    Parameters
    ----------
    keys
        Key of every sample of these segments, by id; floats are numbers, other keys labels.
    chunk_samples, shard_samples
        Samples of each of their chunks and shards.

    Examples
    --------
    >>> first_correlations(["a"] * 4 + ["b"] * 4 + ["c"] * 4, [2] * 6, [4] * 3)
    (1.0, 1.0)
    """
    num_shards, array = _num_even(shard_samples), np.asarray(keys)
    if num_shards < _LEAST_SHARDS or (array == array[0]).all():
        return 1.0, 1.0
    of_shards = chunk_correlation(array, shard_samples)
    of_chunks = chunk_correlation(array, chunk_samples) if int(np.max(chunk_samples)) > 1 else of_shards
    mean_varies = max(0.0, of_shards) / (num_shards - 1.0)
    of_chunks, of_shards = ((rho + mean_varies) / (1.0 + mean_varies) for rho in (of_chunks, of_shards))
    in_chunks, in_shards = _pairs(np.asarray(chunk_samples)), _pairs(np.asarray(shard_samples))
    beside = in_shards - in_chunks
    between = (of_shards * in_shards - of_chunks * in_chunks) / beside if beside > 0.0 else of_chunks
    return min(1.0, round(of_chunks, 12)), min(1.0, max(-1.0, round(between, 12)))


def _correlations(
    total: float, in_chunks: float, beside: float, rho: float, shard_rho: float
) -> tuple[float, float, float]:
    """Return the correlation of two samples of one chunk, of two chunks of one shard, and of two shards.

    The third correlation makes the sum over all pairs zero, including pairs of a sample with itself. ``in_chunks`` and
    ``beside`` are the numbers of ordered pairs of the first two kinds.
    """
    apart = total * (total - 1.0) - in_chunks - beside
    if apart > 0.0:
        return rho, shard_rho, -(total + rho * in_chunks + shard_rho * beside) / apart
    return rho, -(total + rho * in_chunks) / beside if beside else 0.0, 0.0  # a single shard


def _ratio(
    order: Order,
    layout: ChunkLayout,
    beside: float,
    batch: int,
    total: float,
    correlations: tuple[float, float, float],
) -> float:
    samples, pairs = layout.num_samples, layout.num_pairs
    inside = min(float(batch), samples)  # the rest of a larger batch comes from other segments
    of_chunk = companions(order, layout, batch) if batch < samples else pairs / samples
    others = samples * (samples - 1.0) - pairs
    of_shard = (inside - 1.0 - of_chunk) * beside / others if others > 0.0 else 0.0
    met = (of_chunk, of_shard, batch - 1.0 - of_chunk - of_shard)
    varies = 1.0 + sum(rho * number for rho, number in zip(correlations, met, strict=True))
    return max(0.0, round(varies / (1.0 - (batch - 1.0) / (total - 1.0)), 12))


def _pairs(samples: NDArray[np.int64]) -> float:
    """Count the ordered pairs of different samples in one chunk or shard."""
    sizes = samples.astype(np.float64)
    return float(sizes @ (sizes - 1.0))


def _num_even(samples: ArrayLike) -> float:
    """Return the number of even shards that vary as much as shards with these numbers of samples."""
    sizes = np.asarray(samples, dtype=np.float64)
    return float(sizes.sum()) ** 2 / max(1.0, float(sizes @ sizes))

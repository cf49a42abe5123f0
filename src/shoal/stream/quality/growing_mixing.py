"""Shuffle quality in the growing order, from the finished indexes and the sizes of the other shards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.index.joined_index import JoinedIndex
from shoal.index.table import Index
from shoal.order.protocol import chunk_starts
from shoal.quality.curves import batch_sizes
from shoal.quality.expected_quality import ShuffleQuality
from shoal.quality.growing_quality import (
    ListedSizes,
    SegmentSizes,
    first_correlations,
    listed_sizes,
    segments_quality,
    size_correlation,
)
from shoal.quality.metrics import expected_distinct_of
from shoal.quality.prediction import ChunkLayout, predicted_variance_ratio
from shoal.reading.growing.pieces_once_indexed import FirstSegments
from shoal.reading.growing.resolved_growing import ResolvedGrowing
from shoal.stream.choosing.index_columns import key_column
from shoal.stream.quality.shuffle_quality import check_batch, mean_distinct, name_of, quality_of, quality_with

_SORTED = 0.1  # correlation of the sizes of samples of a shard


def quality_of_growing(
    resolved: ResolvedGrowing, batch: int, *, key: Any = None, rho: float | None = None
) -> ShuffleQuality:
    """Wait for the first segment; return the shuffle quality from shard sizes and the keys of indexed shards."""
    if resolved.delivered is not None or resolved.gaps:
        return quality_of(resolved.of_epoch(1), batch, key=key, rho=rho)
    known = resolved.segments_upto(0, lambda: False)
    rho_of = (rho, None) if key is None or rho is not None else _correlations(known, key)
    if known.is_last:
        quality, later = quality_of(resolved.of_epoch(1), batch, key=key, rho=rho), resolved.of_epoch(1).order
        segments = [
            SegmentSizes(segment.order, segment.chunks.num_samples, _shard_samples(segment.index))
            for segment in known.resolved.segments
        ]
        first_epoch = segments_quality(segments, later, batch, rho=rho_of[0], shard_rho=rho_of[1])
        return replace(quality, first_epoch=first_epoch)
    growing, request, index = resolved.growing, resolved.request, known.resolved.index
    listed = listed_sizes(
        growing.shard_bytes,
        sample_bytes=float(growing.shard_bytes[: index.num_shards].sum()) / index.num_samples,
        seed=None,
        window=growing.window_bytes,
        chunk=request.chunk,
        num_canonical_nodes=request.num_canonical_nodes,
    )
    return _of_listing(resolved, listed, batch, key, rho_of)


def sorting_of_first(index: Index | JoinedIndex) -> str:
    """Return a warning if the first shards look sorted by the sizes of samples; else ""."""
    if isinstance(index, JoinedIndex) or index.sample_bytes is None:
        return ""
    alike = size_correlation(index.sample_bytes, _shard_samples(index))
    if alike < _SORTED:
        return ""
    return (
        f"the first {index.num_shards} shards look sorted: sample sizes inside a shard have a correlation of "
        f"{alike:.2f}. While shards are indexed, a batch has samples of few shards, so it may have few classes. "
        'ds.quality(batch, key=...) predicts the effect, and index="wait" mixes all shards from the start '
        "(docs/guides/first-batch.md)"
    )


def _of_listing(
    resolved: ResolvedGrowing, listed: ListedSizes, batch: int, key: Any, rho_of: tuple[float | None, float | None]
) -> ShuffleQuality:
    """Return the quality of later epochs, and of the segments of the first epoch, from shard sizes."""
    whole = listed.whole
    num_samples = int(whole.shard_samples.sum())
    check_batch(batch, num_samples, about="about ")
    first = segments_quality(listed.segments, whole.order, batch, rho=rho_of[0], shard_rho=rho_of[1])
    layout, sizes = ChunkLayout.of(whole.chunk_samples), batch_sizes(batch, num_samples)
    vr = {size: predicted_variance_ratio(whole.order, layout, size, rho=first.rho) for size in sizes}
    bound = whole.order.bind(whole.chunk_samples, seed=resolved.seed)
    chunks, shards = (
        (mean_distinct(bound, batch, chunk_starts(counts)), expected_distinct_of(counts[counts > 0], batch))
        for counts in (whole.chunk_samples, whole.shard_samples)
    )
    return quality_with(
        vr,
        order=str(resolved),
        batch=batch,
        key=name_of(key, order=whole.order),
        rho=first.rho,
        chunks=chunks,
        shards=shards,
        first_epoch=first,
    )


def _correlations(known: FirstSegments, key: Any) -> tuple[float, float]:
    """Measure the correlation of a key inside chunks, and between chunks of a shard, on the indexed shards."""
    index = known.resolved.index
    keys = key_column(index, key) if isinstance(key, str) else np.asarray(key)[: index.num_samples]
    if len(keys) < index.num_samples:
        msg = f"key must have a label for each of {index.num_samples} indexed samples by id; got {len(keys)}"
        raise UsageError(msg, hint="ids count samples shard by shard, in the order of shards for this seed")
    return first_correlations(keys, known.resolved.chunks.num_samples, _shard_samples(index))


def _shard_samples(index: Index) -> NDArray[np.int64]:
    return np.diff(index.extent_first_sample[index.shard_first_extent])

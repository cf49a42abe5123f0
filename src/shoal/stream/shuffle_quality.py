"""Shuffle quality of a dataset in numbers: predicted if there is a formula, else measured."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.block_and_buffer import Buffer
from shoal.order.sequential_and_full import Sequential
from shoal.quality.curves import batch_sizes
from shoal.quality.metrics import (
    check_correlation,
    chunk_correlation,
    distinct_per_batch,
    expected_distinct_of,
    variance_ratio,
)
from shoal.quality.prediction import ChunkLayout, ShuffleQuality, predicted_variance_ratio
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.index_columns import key_column

_MOST_MEASURED = 1 << 24
_MOST_COUNTED = 1 << 20


def quality_of(resolved: ResolvedOrder, batch: int, *, key: Any = None, rho: float | None = None) -> ShuffleQuality:
    """Return the shuffle quality of an order's batches; see `shoal.Dataset.quality`."""
    num_samples = resolved.num_stored
    if not 1 <= batch <= num_samples // 2:
        msg = f"batches of {batch} cannot be compared: at least two of them must be cut from {num_samples} samples"
        raise UsageError(msg, hint=f"a batch of 1 to {num_samples // 2} samples")
    borders = resolved.order_borders
    stored = resolved.stored
    chunk_samples = np.diff(borders) if stored is None else stored.count_between(borders)
    keys = _keys(resolved, key)
    correlation = _correlation(keys, chunk_samples, rho)
    order, sizes = resolved.order, batch_sizes(batch, num_samples)
    # Storage order does not shuffle chunks, and a buffer leaves similar samples of a chunk together.
    is_measured = isinstance(order, Sequential) or (isinstance(order, Buffer) and keys is not None and rho is None)
    if is_measured:
        ratios = _measured(resolved, keys, sizes)
    else:
        layout = ChunkLayout.of(chunk_samples)
        ratios = [predicted_variance_ratio(order, layout, size, rho=correlation) for size in sizes]
    chunks = _different(resolved, batch, borders)
    shards = _different(resolved, batch, resolved.index.extent_first_sample[resolved.index.shard_first_extent])
    vr = dict(zip(sizes, ratios, strict=True))
    return ShuffleQuality(
        order=str(resolved),
        batch=batch,
        key=_name_of(key, order=order),
        rho=correlation,
        is_measured=is_measured,
        vr=vr,
        effective_batch=batch / max(vr[batch], 1e-9),
        distinct_chunks=chunks[0],
        perfect_chunks=chunks[1],
        distinct_shards=shards[0],
        perfect_shards=shards[1],
    )


def _keys(resolved: ResolvedOrder, key: Any) -> NDArray[Any] | None:
    """Return the key of each sample that takes part, in storage order."""
    index = resolved.index
    if key is None:
        return None
    if isinstance(key, str):
        array = key_column(index, key)
    else:
        array = np.asarray(key)
        if array.shape != (index.num_samples,):
            msg = f"key has the label of each of {index.num_samples} samples by id; got shape {array.shape}"
            raise UsageError(msg)
    if resolved.stored is None:
        return array
    return array[resolved.stored.members(np.arange(len(resolved.stored)))]


def _correlation(keys: NDArray[Any] | None, chunk_samples: NDArray[np.int64], rho: float | None) -> float:
    if rho is not None:
        check_correlation(rho)
        return rho
    if keys is None:
        return 1.0
    return chunk_correlation(keys, chunk_samples) if int(chunk_samples.max(initial=0)) > 1 else 0.0


def _measured(resolved: ResolvedOrder, keys: NDArray[Any] | None, sizes: list[int]) -> list[float]:
    """Measure the variance ratio for each batch size on the order of epoch 0; refuse orders too long for that."""
    num_samples = resolved.num_stored
    if num_samples > _MOST_MEASURED:
        msg = f"the order {resolved.order.name!r} has no formula, and {num_samples:,} samples are many to measure"
        raise UsageError(msg, hint="shoal.measure.audit(ds.ids()) measures them")
    counts = resolved.order_borders
    chunks = np.diff(counts) if resolved.stored is None else resolved.stored.count_between(counts)
    bound = resolved.order.bind(chunks, seed=resolved.request.seed, epoch=0)
    # Without a key: the storage position of a sample, by which sorted data are sorted.
    values = np.arange(num_samples, dtype=np.float64) if keys is None else keys
    emitted = values[bound.ids(0, num_samples)]
    return [variance_ratio(emitted, size) for size in sizes]


def _different(resolved: ResolvedOrder, batch: int, borders: NDArray[np.int64]) -> tuple[float, float]:
    """Return the mean number of parts between these borders that a batch draws from, and that in a perfect shuffle."""
    order = resolved.epoch(0)
    num_batches = order.num_samples // batch
    if not num_batches:
        return float("nan"), float("nan")
    wanted = max(1, min(num_batches, _MOST_COUNTED // batch))
    # Spans of whole batches from the start, the middle and the end.
    each = -(-wanted // 4)
    firsts = sorted({number * max(0, num_batches - each) // 3 for number in range(4)})
    found = []
    for first in firsts:
        ids = resolved.stored_ids(order.ids(first * batch, min(num_batches, first + each) * batch))
        parts = np.searchsorted(borders, ids, side="right") - 1
        found.append(float(len(np.unique(parts))) if len(parts) <= batch else distinct_per_batch(parts, batch))
    stored = resolved.stored
    counts = np.diff(borders) if stored is None else stored.count_between(borders)
    return float(np.mean(found)), expected_distinct_of(counts[counts > 0], batch)


def _name_of(key: Any, *, order: Any) -> str:
    if key is None:
        return "position of storage" if isinstance(order, Sequential) else "worst case (chunks of one kind each)"
    if isinstance(key, str):
        return key
    return "numbers" if np.asarray(key).dtype.kind == "f" else "labels"

"""Shuffle quality of a dataset, predicted by formulas or measured; and warnings before a bad run."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.rows.token_files import Tokens
from shoal.order.orders_without_window import Buffer, Sequential
from shoal.order.protocol import BoundOrder, chunk_starts
from shoal.order.sampling.copies import Turns
from shoal.order.window.order import Window
from shoal.quality.curves import MOST_NEAR_RATIO, NEAR_BATCHES, batch_sizes
from shoal.quality.expected_quality import GrowingQuality, ShuffleQuality
from shoal.quality.metrics import (
    check_correlation,
    chunk_correlation,
    distinct_per_batch,
    expected_distinct_of,
    variance_ratio,
)
from shoal.quality.prediction import ChunkLayout, has_formula, predicted_variance_ratio
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.schedule.units import RecordUnits
from shoal.stream.choosing.index_columns import key_column

_MOST_MEASURED = 1 << 24
_MOST_COUNTED = 1 << 20
_MOST_VARIANCE_RATIO = 1.2
_LEAST_CHUNKS_OF_NODE = 8
_MOST_REREADS = 2.0
_LITTLE_BYTES = 1 << 20  # rereading less is not worth a warning


def quality_of(resolved: ResolvedOrder, batch: int, *, key: Any = None, rho: float | None = None) -> ShuffleQuality:
    """Return the shuffle quality of an order's batches; see `shoal.Dataset.quality`."""
    num_samples = resolved.num_ordered
    check_batch(batch, num_samples)
    index, borders = resolved.index, resolved.order_borders
    turns = resolved.turns(0)
    chunk_samples = resolved.chunk_samples if turns is None else np.diff(turns.starts)
    keys = _keys(resolved, key, turns)
    correlation = _correlation(keys, chunk_samples, rho)
    order, sizes = resolved.order, batch_sizes(batch, num_samples)
    # A buffer leaves similar samples of a chunk together.
    is_measured = not has_formula(order) or (isinstance(order, Buffer) and keys is not None and rho is None)
    if is_measured:
        ratios = _measured(resolved, chunk_samples, keys, sizes)
    else:
        layout = ChunkLayout.of(chunk_samples)
        ratios = [predicted_variance_ratio(order, layout, size, rho=correlation) for size in sizes]
    return quality_with(
        dict(zip(sizes, ratios, strict=True)),
        order=str(resolved),
        batch=batch,
        key=name_of(key, order=order),
        rho=correlation,
        is_measured=is_measured,
        chunks=_distinct(resolved, batch, borders, turns),
        shards=_distinct(resolved, batch, index.extent_first_sample[index.shard_first_extent], turns),
    )


def check_batch(batch: int, num_samples: int, *, about: str = "") -> None:
    """Raise `UsageError` if ``num_samples`` do not fill two batches; ``about`` is put before an estimated number."""
    if not 1 <= batch <= num_samples // 2:
        msg = f"batches of {batch} cannot be compared: {about}{num_samples} samples must make at least two"
        raise UsageError(msg, hint=f"a batch of 1 to {num_samples // 2} samples")


def quality_with(
    vr: dict[int, float],
    *,
    order: str,
    batch: int,
    key: str,
    rho: float,
    chunks: tuple[float, float],
    shards: tuple[float, float],
    is_measured: bool = False,
    first_epoch: GrowingQuality | None = None,
) -> ShuffleQuality:
    """Return the quality of batches with a variance ratio by batch size.

    ``chunks`` and ``shards`` are numbers of distinct chunks and shards in a batch, and in a batch of a perfect shuffle.
    """
    effective_batch = batch / max(vr[batch], 1e-9)
    return ShuffleQuality(order, batch, key, rho, is_measured, vr, effective_batch, *chunks, *shards, first_epoch)


def _keys(resolved: ResolvedOrder, key: Any, turns: Turns | None) -> NDArray[Any] | None:
    """Return the key of each ordered sample, in storage order; with ``turns``, the key of each copy."""
    index = resolved.index
    if key is None:
        return None
    if isinstance(key, str):
        array = key_column(index, key)
    else:
        array = np.asarray(key)
        if array.shape != (index.num_samples,):
            msg = f"key must have a label for each of {index.num_samples} samples by id; got shape {array.shape}"
            raise UsageError(msg)
    if resolved.stored is not None:
        array = array[resolved.stored.members(np.arange(len(resolved.stored)))]
    return array if turns is None else array[turns.all_samples()]


def _correlation(keys: NDArray[Any] | None, chunk_samples: NDArray[np.int64], rho: float | None) -> float:
    if rho is not None:
        check_correlation(rho)
        return rho
    if keys is None:
        return 1.0
    return chunk_correlation(keys, chunk_samples) if int(chunk_samples.max(initial=0)) > 1 else 0.0


def _measured(
    resolved: ResolvedOrder, chunk_samples: NDArray[np.int64], keys: NDArray[Any] | None, sizes: list[int]
) -> list[float]:
    """Measure the variance ratio for each batch size on the order of epoch 0; raise `UsageError` for long orders."""
    num_samples = resolved.num_ordered
    if num_samples > _MOST_MEASURED:
        msg = f"the order {resolved.order.name!r} has no formula, and {num_samples:,} samples are too many to measure"
        raise UsageError(msg, hint="shoal.measure.audit(ds.ids()) measures the order")
    bound = resolved.order.bind(chunk_samples, seed=resolved.request.seed, epoch=0)
    # Without a key, sorted data are assumed: the key of a sample is its storage position.
    values = np.arange(int(chunk_samples.sum()), dtype=np.float64) if keys is None else keys
    emitted = values[bound.ids(0, num_samples)]
    return [variance_ratio(emitted, size) for size in sizes]


def _distinct(
    resolved: ResolvedOrder, batch: int, borders: NDArray[np.int64], turns: Turns | None
) -> tuple[float, float]:
    """Return the mean number of distinct parts in a batch, and in a perfectly shuffled batch; ``borders`` of parts."""
    distinct = mean_distinct(resolved.epoch(0), batch, borders)
    if np.isnan(distinct):
        return distinct, distinct
    counts = resolved.stored_between(borders)
    if turns is not None:
        counts = turns.copies.count_between(chunk_starts(counts))
    if resolved.request.has_own_length:  # count each part with its repeats
        ids = resolved.untouched(0).ids(0, resolved.epoch(0).num_samples)
        counts = np.bincount(np.searchsorted(borders, ids, side="right") - 1, minlength=len(counts))
    return distinct, expected_distinct_of(counts[counts > 0], batch)


def mean_distinct(order: BoundOrder, batch: int, borders: NDArray[np.int64]) -> float:
    """Return the mean number of distinct parts in a batch; NaN without a full batch. ``borders`` separate the parts."""
    num_batches = order.num_samples // batch
    if not num_batches:
        return float("nan")
    # Four spans of whole batches, from the start to the end.
    span = -(-max(1, min(num_batches, _MOST_COUNTED // batch)) // 4)
    firsts = sorted({number * max(0, num_batches - span) // 3 for number in range(4)})
    counts = []
    for first in firsts:
        ids = order.ids(first * batch, min(num_batches, first + span) * batch)
        parts = np.searchsorted(borders, ids, side="right") - 1
        counts.append(float(len(np.unique(parts))) if len(parts) <= batch else distinct_per_batch(parts, batch))
    return float(np.mean(counts))


def name_of(key: Any, *, order: Any) -> str:
    """Return the name of a key in a `ShuffleQuality`."""
    if key is None:
        return "position of storage" if isinstance(order, Sequential) else "worst case (chunks of one kind each)"
    if isinstance(key, str):
        return key
    return "numbers" if np.asarray(key).dtype.kind == "f" else "labels"


def variance_ratio_bound(resolved: ResolvedOrder, global_batch: int) -> float | None:
    """Return the largest variance of global batch means relative to a perfect shuffle; None without a window.

    The bound is the prediction of `shoal.quality.prediction` for chunks of identical samples.
    """
    order = resolved.order
    layout = ChunkLayout.of(resolved.chunks.num_samples)
    return _worst(order, layout, global_batch) if isinstance(order, Window) else None


def warning_about(resolved: ResolvedOrder, global_batch: int, *, source: str | None = None) -> str:
    """Return the warning for this order and batch size; empty without a warning.

    For a ``source`` of a mixture, ``global_batch`` is the source's part of a batch; the warning has no window size.
    """
    factor, more_bytes = rereads(resolved)
    order, index = resolved.order, resolved.index
    if factor >= _MOST_REREADS and more_bytes >= _LITTLE_BYTES:
        piece_samples = index.num_samples / index.num_extents
        other = "" if index.format == Tokens.name else "; or write smaller row groups, or shards without compression"
        return (
            f"the order {order.name!r} reads its samples one by one, and the smallest readable piece of these "
            f"{index.format} shards has {piece_samples:.0f} samples: an epoch reads {factor:.0f} times its bytes "
            f"({more_bytes / 2**30:,.1f} GiB more). The window, .shuffle(window=...), reads each piece once{other}"
        )
    if not isinstance(order, Window) or order.chunks >= len(resolved.chunks):
        return ""
    layout = ChunkLayout.of(resolved.chunks.num_samples)
    if not _is_enough(order, layout, global_batch):
        near = _worst(order, layout, NEAR_BATCHES * global_batch)
        enough = f'window="{_size(_enough_chunks(order, layout, global_batch) * _chunk_bytes(resolved))}"'
        batches = f"global batches of {global_batch} samples"
        if source is not None:
            enough, batches = "a larger window", f"the {global_batch} samples that {source!r} has in a global batch"
        return (
            f"a window of {order.chunks} chunks is small for {batches}: where the samples of a chunk are alike, "
            f"means of {NEAR_BATCHES} successive batches vary {near:.1f} times as much as in a perfect shuffle, which "
            f"raises the loss; {enough} would do, or smaller chunks"
        )
    width = order.chunks // order.resolved_nodes
    if width < _LEAST_CHUNKS_OF_NODE and order.resolved_nodes > 1:
        enough = f'window="{_size(_LEAST_CHUNKS_OF_NODE * order.resolved_nodes * _chunk_bytes(resolved))}"'
        return (
            f"each of {order.resolved_nodes} canonical nodes mixes only {width} chunks at a time; "
            f"{enough if source is None else 'a larger window'} or fewer canonical nodes would do"
        )
    return ""


def rereads(resolved: ResolvedOrder) -> tuple[float, int]:
    """Return how often an epoch reads its bytes if samples are read one by one, and the excess in bytes.

    (1.0, 0) if single samples can be read, or if the order reads whole chunks.
    """
    index = resolved.index
    if not isinstance(resolved.units, RecordUnits) or index.sample_bytes is not None:
        return 1.0, 0
    counts = resolved.stored_between(index.extent_first_sample)
    num_bytes = (index.extent_end_byte - index.extent_first_byte).astype(np.float64)
    once = float(num_bytes[counts > 0].sum())
    by_sample = float((num_bytes * counts).sum())
    return by_sample / max(once, 1.0), int(by_sample - once)


def _worst(order: Window, layout: ChunkLayout, global_batch: int) -> float:
    """Return the ratio on sorted data; a batch of the whole dataset, or a window over it, is perfect."""
    if global_batch >= layout.num_samples or order.chunks >= len(layout.samples):
        return 1.0
    return max(1.0, predicted_variance_ratio(order, layout, global_batch))


def _is_enough(order: Window, layout: ChunkLayout, global_batch: int) -> bool:
    """Return True if neither a global batch nor `NEAR_BATCHES` of them vary much more than in a perfect shuffle."""
    return (
        _worst(order, layout, global_batch) <= _MOST_VARIANCE_RATIO
        and _worst(order, layout, NEAR_BATCHES * global_batch) <= MOST_NEAR_RATIO
    )


def _enough_chunks(order: Window, layout: ChunkLayout, global_batch: int) -> int:
    """Return the smallest window, in chunks, that mixes global batches well enough; all chunks if in doubt."""
    few, many = order.chunks, len(layout.samples)
    while many - few > 1:
        middle = (few + many) // 2
        nodes = min(order.resolved_nodes, middle // 2)
        few, many = (few, middle) if _is_enough(Window(middle, nodes), layout, global_batch) else (middle, many)
    return many


def _chunk_bytes(resolved: ResolvedOrder) -> float:
    return float((resolved.chunks.end_byte - resolved.chunks.first_byte).mean())


def _size(num_bytes: float) -> str:
    mebibytes = num_bytes / 2**20
    return f"{int(mebibytes) + 1}MiB" if mebibytes < 2**12 else f"{int(mebibytes / 2**10) + 1}GiB"

"""Warnings before a run if a window is too small for its batches, or an order reads pieces many times."""

from __future__ import annotations

import numpy as np

from shoal.order.window.order import Window
from shoal.quality.prediction import ChunkLayout, predicted_variance_ratio
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.schedule.units import RecordUnits

_MOST_VARIANCE_RATIO = 1.2
_LEAST_CHUNKS_OF_NODE = 8
_MOST_REREADS = 2.0
_LITTLE_BYTES = 1 << 20  # read again: not worth a warning


def variance_ratio_bound(resolved: ResolvedOrder, global_batch: int) -> float | None:
    """Return the variance of global batch means relative to a perfect shuffle, at most; None without a window.

    The prediction of `shoal.quality.prediction` for chunks whose samples are all alike; less if they are not.
    """
    order = resolved.order
    if not isinstance(order, Window):
        return None
    return _worst(order, ChunkLayout.of(resolved.chunks.num_samples), global_batch)


def warning_about(resolved: ResolvedOrder, global_batch: int) -> str:
    """Return the warning for this order and batch size; empty when all is well."""
    if message := _about_rereads(resolved):
        return message
    order = resolved.order
    if not isinstance(order, Window) or order.chunks >= len(resolved.chunks):
        return ""
    layout = ChunkLayout.of(resolved.chunks.num_samples)
    ratio = _worst(order, layout, global_batch)
    chunk_bytes = float((resolved.chunks.end_byte - resolved.chunks.first_byte).mean())
    if ratio > _MOST_VARIANCE_RATIO:
        enough = _round_up(_enough_chunks(order, layout, global_batch) * chunk_bytes)
        return (
            f"a window of {order.chunks} chunks is small for global batches of {global_batch} samples: where the "
            f"samples of a chunk are alike, batch means vary {ratio:.1f} times as much as in a perfect shuffle; "
            f'window="{enough}" would do, or smaller chunks'
        )
    width = order.chunks // order.resolved_nodes
    if width < _LEAST_CHUNKS_OF_NODE and order.resolved_nodes > 1:
        return (
            f"each of {order.resolved_nodes} canonical nodes mixes only {width} chunks at a time; "
            f'window="{_round_up(_LEAST_CHUNKS_OF_NODE * order.resolved_nodes * chunk_bytes)}" or fewer canonical '
            "nodes would do"
        )
    return ""


def rereads(resolved: ResolvedOrder) -> tuple[float, int]:
    """Return how many times an epoch reads its bytes if it reads samples one by one, and the excess in bytes.

    (1.0, 0) if a sample can be read alone, or whole chunks are read.
    """
    index = resolved.index
    if not isinstance(resolved.units, RecordUnits) or index.sample_bytes is not None:
        return 1.0, 0
    borders, stored = index.extent_first_sample, resolved.stored
    counts = index.extent_num_samples if stored is None else stored.count_between(borders)
    num_bytes = (index.extent_end_byte - index.extent_first_byte).astype(np.float64)
    once = float(num_bytes[counts > 0].sum())
    each = float((num_bytes * counts).sum())
    return each / max(once, 1.0), int(each - once)


def _about_rereads(resolved: ResolvedOrder) -> str:
    factor, more_bytes = rereads(resolved)
    if factor < _MOST_REREADS or more_bytes < _LITTLE_BYTES:
        return ""
    index = resolved.index
    piece_samples = index.num_samples / index.num_extents
    return (
        f"the order {resolved.order.name!r} reads its samples one by one, and of these {index.format} shards no "
        f"less than a piece of {piece_samples:.0f} samples can be read: an epoch reads {factor:.0f} times its bytes "
        f"({more_bytes / 2**30:,.1f} GiB more). The window, .shuffle(window=...), reads each piece once; or write "
        "smaller row groups, or shards without compression"
    )


def _worst(order: Window, layout: ChunkLayout, global_batch: int) -> float:
    """Return the ratio on sorted data; a batch of the whole dataset, or a window over it, is perfect."""
    if global_batch >= layout.num_samples or order.chunks >= len(layout.samples):
        return 1.0
    return max(1.0, predicted_variance_ratio(order, layout, global_batch))


def _enough_chunks(order: Window, layout: ChunkLayout, global_batch: int) -> int:
    """Return the smallest window, in chunks, that mixes global batches well enough; all chunks if in doubt."""
    few, many = order.chunks, len(layout.samples)
    while many - few > 1:
        middle = (few + many) // 2
        nodes = min(order.resolved_nodes, middle // 2)
        is_enough = _worst(Window(middle, nodes), layout, global_batch) <= _MOST_VARIANCE_RATIO
        few, many = (few, middle) if is_enough else (middle, many)
    return many


def _round_up(num_bytes: float) -> str:
    mebibytes = num_bytes / 2**20
    return f"{int(mebibytes) + 1}MiB" if mebibytes < 2**12 else f"{int(mebibytes / 2**10) + 1}GiB"

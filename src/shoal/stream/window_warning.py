"""Says before a run when a window is too small for the batches cut from it, or an order reads pieces many times."""

from __future__ import annotations

import numpy as np

from shoal.order.window.order import Window
from shoal.quality.prediction import ChunkLayout, predicted_variance_ratio
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.schedule.units import RecordUnits

__all__ = ["rereads", "variance_ratio_bound", "warning_about"]

_MOST_VARIANCE_RATIO = 1.2
_LEAST_CHUNKS_OF_NODE = 8
_MOST_REREADS = 2.0
_LITTLE_BYTES = 1 << 20  # more than once: not worth a word


def variance_ratio_bound(arrangement: ResolvedOrder, global_batch: int) -> float | None:
    """How much more than in a perfect shuffle the means of global batches may vary; None where the order is no window.

    What `shoal.quality.prediction` says where the samples of each chunk are all alike; less when they are not.
    """
    order = arrangement.order
    if not isinstance(order, Window):
        return None
    return _worst(order, ChunkLayout.of(arrangement.chunks.num_samples), global_batch)


def warning_about(arrangement: ResolvedOrder, global_batch: int) -> str:
    """What to tell the user about this order and batch size; empty when all is well."""
    if message := _about_rereads(arrangement):
        return message
    order = arrangement.order
    if not isinstance(order, Window) or order.chunks >= len(arrangement.chunks):
        return ""
    layout = ChunkLayout.of(arrangement.chunks.num_samples)
    ratio = _worst(order, layout, global_batch)
    chunk_bytes = float((arrangement.chunks.end_byte - arrangement.chunks.first_byte).mean())
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


def rereads(arrangement: ResolvedOrder) -> tuple[float, int]:
    """How many times its bytes an epoch reads where samples are read one by one, and how many bytes that is more.

    (1.0, 0) where a sample can be read alone, or chunks are read at once.
    """
    index = arrangement.index
    if not isinstance(arrangement.units, RecordUnits) or index.sample_bytes is not None:
        return 1.0, 0
    borders, stored = index.extent_first_sample, arrangement.stored
    counts = index.extent_num_samples if stored is None else stored.count_between(borders)
    num_bytes = (index.extent_end_byte - index.extent_first_byte).astype(np.float64)
    once = float(num_bytes[counts > 0].sum())
    each = float((num_bytes * counts).sum())
    return each / max(once, 1.0), int(each - once)


def _about_rereads(arrangement: ResolvedOrder) -> str:
    factor, more_bytes = rereads(arrangement)
    if factor < _MOST_REREADS or more_bytes < _LITTLE_BYTES:
        return ""
    index = arrangement.index
    piece_samples = index.num_samples / index.num_extents
    return (
        f"the order {arrangement.order.name!r} reads its samples one by one, and of these {index.format} shards no "
        f"less than a piece of {piece_samples:.0f} samples can be read: an epoch reads {factor:.0f} times its bytes "
        f"({more_bytes / 2**30:,.1f} GiB more). The window, .shuffle(window=...), reads each piece once; or write "
        "smaller row groups, or shards without compression"
    )


def _worst(order: Window, layout: ChunkLayout, global_batch: int) -> float:
    """The ratio on sorted data; a batch of the whole dataset, or a window of it, is perfect."""
    if global_batch >= layout.num_samples or order.chunks >= len(layout.samples):
        return 1.0
    return max(1.0, predicted_variance_ratio(order, layout, global_batch))


def _enough_chunks(order: Window, layout: ChunkLayout, global_batch: int) -> int:
    """The smallest window, in chunks, in which global batches are mixed well enough; all of them in doubt."""
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

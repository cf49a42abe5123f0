"""Says before a run when a window is too small for the batches cut from it."""

from __future__ import annotations

import numpy as np

from shoal.order.window import Window
from shoal.stream.arrangement import Arrangement

__all__ = ["variance_ratio_bound", "warning_about"]

_MOST_VARIANCE_RATIO = 1.2
_LEAST_CHUNKS_OF_NODE = 8


def variance_ratio_bound(arrangement: Arrangement, global_batch: int) -> float | None:
    """How much more than in a perfect shuffle the means of global batches may vary; None where the order is no window.

    The variance of the mean of a batch of ``b`` samples, against a perfect shuffle, is about ``max(1, b / K)`` for a
    window of K chunks when the samples of each chunk are all alike, and less when they are not.
    """
    order = arrangement.order
    if not isinstance(order, Window):
        return None
    if order.chunks >= len(arrangement.chunks):
        return 1.0
    samples = arrangement.chunks.num_samples
    # Uneven chunks mix less well: K counts as many equal ones.
    equal_chunks = order.chunks * float(samples.mean()) ** 2 / float(np.mean(samples.astype(np.float64) ** 2))
    return max(1.0, global_batch / equal_chunks)


def warning_about(arrangement: Arrangement, global_batch: int) -> str:
    """What to tell the user about this window and batch size; empty when all is well, or the order is no window."""
    order = arrangement.order
    if not isinstance(order, Window) or order.chunks >= len(arrangement.chunks):
        return ""
    ratio = variance_ratio_bound(arrangement, global_batch) or 1.0
    chunk_bytes = float((arrangement.chunks.end_byte - arrangement.chunks.first_byte).mean())
    if ratio > _MOST_VARIANCE_RATIO:
        wanted = order.chunks * ratio / _MOST_VARIANCE_RATIO * chunk_bytes
        # A window that holds the whole dataset is a perfect shuffle, however large the batch.
        enough = _round_up(min(wanted, chunk_bytes * len(arrangement.chunks)))
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


def _round_up(num_bytes: float) -> str:
    mebibytes = num_bytes / 2**20
    return f"{int(mebibytes) + 1}MiB" if mebibytes < 2**12 else f"{int(mebibytes / 2**10) + 1}GiB"

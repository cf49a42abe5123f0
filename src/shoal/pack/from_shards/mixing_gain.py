"""Predicted mixing quality of a shuffle of the old shards, and of the same shuffle of the new shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.index.table import Index
from shoal.reading.checks.record_checksums import RECORD_CRCS
from shoal.reading.order_request import OrderRequest
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.quality.shuffle_quality import quality_of

POSITION = "position in the source"
"""Key of a sorted dataset: the worst case for a layout."""

FEWEST_CHUNKS = 16
"""Fewest chunks for a value of rho.

With fewer chunks, rho describes the cutting more than the data: it is 1 - 1 / n^2 for n equal sorted chunks,
-1 / (N - 1) for one chunk of any N samples, and large chunks dominate a few uneven chunks."""

_MOST_SAMPLES = 1 << 27  # their keys take a gigabyte


@dataclass(frozen=True, slots=True)
class Mixedness:
    """For one key: similarity within chunks (rho; None below `FEWEST_CHUNKS`), and variance ratio of a global batch."""

    key: str
    num_chunks_before: int
    num_chunks_after: int
    rho_before: float | None
    rho_after: float | None
    vr_before: float
    vr_after: float


def mixedness(
    source: ResolvedOrder, index: Index, *, batch: int = 256, window: int | str | None = None
) -> list[Mixedness]:
    """Compare mixing before and after, for each column of the index and, first, for the position in the source.

    ``source`` has the old shards, in the order of the samples of the new ``index``. ``batch`` (samples of a global
    batch) and ``window``, as in ``shuffle(window=...)``, describe the planned training. Returns an empty list for too
    few samples to compare batches, for more than 2^27 samples (keys would take more memory than the repacking), and
    if samples were left out or repeated. O(N log N).
    """
    num_samples = index.num_samples
    if source.stored is not None or source.sampling is not None:
        return []
    if num_samples < 2 * batch or num_samples > _MOST_SAMPLES or num_samples != source.num_samples:
        return []
    request = OrderRequest(window=window)
    before, after = ResolvedOrder(source.index, request), ResolvedOrder(index, request)
    counts = [len(order.order_borders) - 1 for order in (before, after)]
    ids = source.epoch(0).ids(0, num_samples)
    keys: dict[str, NDArray[Any]] = {POSITION: ids.astype(np.float64)}
    keys |= {name: column for name, column in index.columns.items() if name != RECORD_CRCS}
    results = []
    for name, values in keys.items():
        if len(np.unique(values[:: max(1, num_samples >> 16)])) < 2:
            continue  # a constant column has nothing to mix
        old = np.empty_like(values)
        old[ids] = values
        qualities = [quality_of(order, batch, key=key) for order, key in ((before, old), (after, values))]
        rhos = [quality.rho if num >= FEWEST_CHUNKS else None for quality, num in zip(qualities, counts, strict=True)]
        results.append(Mixedness(name, *counts, *rhos, *(quality.vr[batch] for quality in qualities)))
    return results

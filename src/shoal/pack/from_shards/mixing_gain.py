"""How well samples will be mixed by a shuffle of the old shards, and by the same shuffle of the new ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.index.table import Index
from shoal.reading.checks.record_checksums import RECORD_CRCS
from shoal.reading.resolved_order import OrderRequest, ResolvedOrder
from shoal.stream.shuffle_quality import quality_of

__all__ = ["FEWEST_CHUNKS", "POSITION", "Mixedness", "mixedness"]

POSITION = "position in the source"
"""The key of a dataset that is sorted by something: the worst that a layout can be asked for."""

FEWEST_CHUNKS = 16
"""Below, rho says more of how data are cut than of them: of n equal chunks that are sorted it is 1 - 1 / n^2, of
one chunk of N samples -1 / (N - 1) whatever these are, and of a few uneven ones the large ones decide."""

_MOST_SAMPLES = 1 << 27  # of which the keys take a gigabyte


@dataclass(frozen=True, slots=True)
class Mixedness:
    """For one key: how alike the samples of a chunk are (rho), and the variance ratio predicted of a global batch.

    rho compares chunks with each other; where there are fewer than `FEWEST_CHUNKS` it is None.
    """

    key: str
    num_chunks_before: int
    num_chunks_after: int
    rho_before: float | None
    rho_after: float | None
    vr_before: float
    vr_after: float


def mixedness(
    source: ResolvedOrder, made: Index, *, batch: int = 256, window: int | str | None = None
) -> list[Mixedness]:
    """Before and after, for each column of the index, and for the position in the source.

    Parameters
    ----------
    source
        The old shards, in the order whose samples the new ones have.
    made
        The new ones.
    batch, window
        Of the training to come: samples of a global batch, and ``shuffle(window=...)``.

    Returns
    -------
    list of Mixedness
        The position first. Empty where there are too few samples to compare batches, so many (2^27) that their keys
        would take more memory than the repacking, or where some were left out. O(N log N).
    """
    num_samples = made.num_samples
    if num_samples < 2 * batch or num_samples > _MOST_SAMPLES or num_samples != source.num_samples:
        return []
    request = OrderRequest(window=window)
    before, after = ResolvedOrder(source.index, request), ResolvedOrder(made, request)
    counts = [len(one.order_borders) - 1 for one in (before, after)]
    ids = source.epoch(0).ids(0, num_samples)
    keys: dict[str, NDArray[Any]] = {POSITION: ids.astype(np.float64)}
    keys |= {name: column for name, column in made.columns.items() if name != RECORD_CRCS}
    found = []
    for name, values in keys.items():
        if len(np.unique(values[:: max(1, num_samples >> 16)])) < 2:
            continue  # of what is the same everywhere there is nothing to mix
        old = np.empty_like(values)
        old[ids] = values
        first, second = (quality_of(one, batch, key=key) for one, key in ((before, old), (after, values)))
        rho_before, rho_after = (
            one.rho if num >= FEWEST_CHUNKS else None for one, num in zip((first, second), counts, strict=True)
        )
        found.append(Mixedness(name, counts[0], counts[1], rho_before, rho_after, first.vr[batch], second.vr[batch]))
    return found

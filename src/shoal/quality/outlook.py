"""Expected quality of a shuffle, before anything is read: the result of `shoal.Dataset.quality`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """Expected mixing of batches.

    Attributes
    ----------
    order
        The order, as Python code.
    batch
        Samples of a global batch.
    key
        Key of which VR is taken: its name or kind, or "worst case" if none was given.
    rho
        Correlation of the key inside chunks: 1 if the samples of a chunk are all alike.
    is_measured
        True if ``vr`` was measured on the order and the key because no formula predicts it.
    vr
        Variance ratio by batch size, doubling from ``batch`` to half of the samples; 1 is a perfect shuffle.
    effective_batch
        ``batch / VR(batch)``: the batch size at which a perfect shuffle varies as much.
    distinct_chunks, perfect_chunks
        Distinct chunks in a batch, counted in the order of epoch 0, and in one of a perfect shuffle.
    distinct_shards, perfect_shards
        Distinct shards, likewise.
    """

    order: str
    batch: int
    key: str
    rho: float
    is_measured: bool
    vr: Mapping[int, float]
    effective_batch: float
    distinct_chunks: float
    perfect_chunks: float
    distinct_shards: float
    perfect_shards: float

    def to_dict(self) -> dict[str, Any]:
        """Return the quality as JSON types."""
        return {name: getattr(self, name) for name in self.__slots__}

    def __str__(self) -> str:
        """Return a readable summary of a few lines."""
        how = "measured" if self.is_measured else "predicted"
        curve = "   ".join(f"{size:,}: {_ratio(ratio)}" for size, ratio in self.vr.items())
        chunks = f"{self.distinct_chunks:,.1f} of {self.perfect_chunks:,.1f} in a perfect shuffle"
        shards = f"{self.distinct_shards:,.1f} of {self.perfect_shards:,.1f}"
        here = f"batches of {self.batch:,} vary {_ratio(self.vr[self.batch])} times as much as in a perfect shuffle"
        return "\n".join(
            [
                self.order,
                f"key: {self.key}, rho = {self.rho:.3g} inside chunks",
                f"{here}, as batches of {self.effective_batch:,.0f} would",
                f"chunks in a batch: {chunks}; shards: {shards}",
                f"VR by batch size, {how}: {curve}",
            ]
        )


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"

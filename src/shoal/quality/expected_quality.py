"""Expected mixing of batches, as numbers and in words, also over the first epoch of the growing order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shoal.figures import counted
from shoal.plugins.displays import as_html
from shoal.quality.curves import near_variance_ratio

_MOST_VARIANCE_RATIO = 2.0


@dataclass(frozen=True, slots=True)
class SegmentQuality:
    """Expected mixing of the batches of a segment.

    Attributes
    ----------
    share
        Share of the epoch, from 0 to 1.
    num_shards, num_chunks
        Number of its shards and chunks.
    window_chunks
        Number of its chunks that mix at a time.
    vr
        Variance of batches around the mean of the dataset; 1 is a perfect shuffle of the dataset.
    """

    share: float
    num_shards: int
    num_chunks: int
    window_chunks: int
    vr: float


@dataclass(frozen=True, slots=True)
class GrowingQuality:
    """Expected mixing of batches over the first epoch of the growing order.

    Attributes
    ----------
    batch
        Samples of a global batch.
    rho, shard_rho
        Correlation of two samples of one chunk, and of two chunks of one shard: 1 if all are alike.
    segments
        The segments in turn.
    later_vr
        Variance ratio of later epochs, whose window covers the whole dataset.
    is_assumed
        True if nothing is known of the data, so that the correlations are the worst case.
    """

    batch: int
    rho: float
    shard_rho: float
    segments: tuple[SegmentQuality, ...]
    later_vr: float
    is_assumed: bool

    @property
    def vr(self) -> float:
        """Mean variance ratio of the epoch."""
        return sum(segment.share * segment.vr for segment in self.segments)

    def share_above(self, ratio: float) -> float:
        """Return the share of the epoch whose batches have a variance ratio above this."""
        return sum(segment.share for segment in self.segments if segment.vr > ratio)

    def to_dict(self) -> dict[str, Any]:
        """Return the quality as JSON types."""
        return asdict(self)

    def __str__(self) -> str:
        """Return a line: the mixing at first, at the end and on average."""
        first, last = self.segments[0], self.segments[-1]
        begin = f"VR {first.vr:.2f} of batches of {self.batch:,} in the first {first.share:.2%}"
        return (
            f"{begin} ({counted(first.num_shards, 'shard')}), {last.vr:.2f} at its end ({last.num_shards:,}), "
            f"{self.vr:.2f} on average; {self.later_vr:.2f} in later epochs"
        )

    def warning(self) -> str:
        """Return a warning if known data vary far more at first than in later epochs; empty otherwise."""
        first, last = self.segments[0], self.segments[-1]
        most = max(_MOST_VARIANCE_RATIO, 1.5 * self.later_vr)
        if self.is_assumed or first.vr <= most:
            return ""
        alike = f"samples of a shard are alike (rho = {self.shard_rho:.2g} between its chunks)"
        shards = f"{counted(first.num_shards, 'shard')} at the start, {last.num_shards:,} at the end"
        ratios = f"{first.vr:,.1f} times as much as in a perfect shuffle, {last.vr:,.1f} times at the end of the epoch"
        return (
            f"{alike}, and the growing order mixes {shards}: batches of {self.batch:,} vary {ratios}, and more than "
            f"{most:,.1f} times in {self.share_above(most):.2%} of it. With the whole index it would be "
            f"{self.later_vr:,.1f} times, as in later epochs"
        )


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
        Key whose variance is compared: its name or kind, or "worst case" if none was given.
    rho
        Correlation of the key inside chunks: 1 if the samples of a chunk are all alike.
    is_measured
        True if ``vr`` was measured on the order and the key because no formula predicts it.
    vr
        Variance ratio by batch size, doubling from ``batch`` to half of the samples; 1 is a perfect shuffle.
    effective_batch
        ``batch / VR(batch)``: the equally varying batch size of a perfect shuffle.
    distinct_chunks, perfect_chunks
        Distinct chunks in a batch of epoch 0, and in a batch of a perfect shuffle.
    distinct_shards, perfect_shards
        Distinct shards, likewise.
    first_epoch
        Mixing of the first epoch if the order grows; the other figures are then of later epochs. Else None.

    Examples
    --------
    >>> quality = ds.shuffle(seed=0).quality(batch=16, key="cls")
    >>> quality.key, round(quality.vr[16], 1), round(quality.distinct_shards, 1)
    ('cls', 1.0, 4.0)
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
    first_epoch: GrowingQuality | None = None

    @property
    def near_vr(self) -> float:
        """VR of the mean of four successive batches, which the loss of a model follows (bench/mixing_law.py)."""
        return near_variance_ratio(self.vr, self.batch)

    def to_dict(self) -> dict[str, Any]:
        """Return the quality as JSON types."""
        first_epoch = None if self.first_epoch is None else self.first_epoch.to_dict()
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {**fields, "near_vr": self.near_vr, "first_epoch": first_epoch}

    def _repr_html_(self) -> str:
        return as_html("quality", self)

    def __str__(self) -> str:
        """Return a readable summary of a few lines."""
        how = "measured" if self.is_measured else "predicted"
        curve = "   ".join(f"{size:,}: {_ratio(ratio)}" for size, ratio in self.vr.items())
        chunks = f"{self.distinct_chunks:,.1f} of {self.perfect_chunks:,.1f} in a perfect shuffle"
        shards = f"{self.distinct_shards:,.1f} of {self.perfect_shards:,.1f}"
        here = f"batches of {self.batch:,} vary {_ratio(self.vr[self.batch])} times as much as in a perfect shuffle"
        first = []
        if self.first_epoch is not None:
            first = [f"first epoch, while shards are indexed: {self.first_epoch}", self.first_epoch.warning()]
        return "\n".join(
            [
                self.order,
                f"key: {self.key}, rho = {self.rho:.3g} inside chunks",
                f"{here}, as batches of {self.effective_batch:,.0f} would",
                f"means of four successive batches: {_ratio(self.near_vr)} times (the loss follows this one)",
                f"chunks in a batch: {chunks}; shards: {shards}",
                f"VR by batch size, {how}: {curve}",
                *filter(None, first),
            ]
        )


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"

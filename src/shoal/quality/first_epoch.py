"""Expected mixing over the first epoch of the growing order, as numbers and in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shoal.figures import counted

_MOST_VARIANCE_RATIO = 2.0


@dataclass(frozen=True, slots=True)
class SegmentQuality:
    """Expected mixing of the batches of a segment.

    Attributes
    ----------
    share
        Its part of the epoch, from 0 to 1.
    num_shards, num_chunks
        Number of shards and of chunks that it has.
    window_chunks
        Chunks of it that mix at a time.
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
        Correlation of two samples of one chunk, and of two chunks of one shard: 1 if they are all alike.
    segments
        The segments in turn.
    later_vr
        Variance ratio of later epochs, in which the window is over the whole dataset.
    is_assumed
        True if the correlations are those of the worst case, because nothing is known of the data.
    """

    batch: int
    rho: float
    shard_rho: float
    segments: tuple[SegmentQuality, ...]
    later_vr: float
    is_assumed: bool

    @property
    def vr(self) -> float:
        """The mean variance ratio of the epoch."""
        return sum(each.share * each.vr for each in self.segments)

    def share_above(self, ratio: float) -> float:
        """Return the part of the epoch whose batches vary more than this many times as in a perfect shuffle."""
        return sum(each.share for each in self.segments if each.vr > ratio)

    def to_dict(self) -> dict[str, Any]:
        """Return the quality as JSON types."""
        return asdict(self)

    def __str__(self) -> str:
        """Return the mixing at first, at the end and on average in a line."""
        first, last = self.segments[0], self.segments[-1]
        begin = f"VR {first.vr:.2f} of batches of {self.batch:,} in the first {first.share:.2%}"
        return (
            f"{begin} ({counted(first.num_shards, 'shard')}), {last.vr:.2f} at its end ({last.num_shards:,}), "
            f"{self.vr:.2f} on average; {self.later_vr:.2f} in later epochs"
        )

    def warning(self) -> str:
        """Return a warning if the data are known to vary far more at first than in later epochs; empty otherwise."""
        first, last = self.segments[0], self.segments[-1]
        most = max(_MOST_VARIANCE_RATIO, 1.5 * self.later_vr)
        if self.is_assumed or first.vr <= most:
            return ""
        alike = f"samples of a shard are alike (rho = {self.shard_rho:.2g} between its chunks)"
        shards = f"{counted(first.num_shards, 'shard')} at first, {last.num_shards:,} at last"
        ratios = f"{first.vr:,.1f} times as much as in a perfect shuffle, {last.vr:,.1f} times at the end of the epoch"
        return (
            f"{alike}, and the growing order mixes {shards}: batches of {self.batch:,} vary {ratios}, and more than "
            f"{most:,.1f} times in {self.share_above(most):.2%} of it. With the whole index it would be "
            f"{self.later_vr:,.1f} times, as in later epochs"
        )

"""Epochs of Streaming's streams: the copies of each sample, drawn per epoch, and shuffled together or batched.

References
----------
``streaming/base/sampling.py`` and ``StreamingDataset.resample_streams`` of mosaicml-streaming 0.13.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.protocol import chunk_starts
from shoal.peers.streaming.stream_batches import BatchShape, batched_ids, num_batched
from shoal.peers.streaming.stream_weights import Amounts, StreamShare, amounts_of, shards_of
from shoal.peers.streaming.streaming_shuffles import Ids


class StreamEpochs:
    """The streams of a dataset.

    Raises `UsageError` if streams do not have every shard of the dataset once, or if a stream has no samples.
    """

    def __init__(
        self,
        shard_samples: NDArray[np.int64],
        shares: Sequence[StreamShare],
        *,
        epoch_size: int | None,
        granularity: int,
        is_fixed: bool,
        batching: str,
        seed: int,
    ) -> None:
        # Shards without samples are left out.
        self._shards = [shards[shard_samples[shards] > 0] for shards in shards_of(shares, len(shard_samples))]
        self._sizes, self._starts = shard_samples, chunk_starts(shard_samples)[:-1]
        samples = np.array([int(shard_samples[shards].sum()) for shards in self._shards])
        if not samples.all():
            raise UsageError(f"stream {int(np.argmin(samples))} has no samples")
        self._shares, self._samples, self._epoch_size = tuple(shares), samples, epoch_size
        self._granularity, self._is_fixed, self._batching, self._seed = granularity, is_fixed, batching, seed

    @cached_property
    def amounts(self) -> Amounts:
        """Samples of each stream in an epoch."""
        return amounts_of(self._shares, self._samples, self._epoch_size, self._seed)

    def num_batched(self, shape: BatchShape) -> int:
        """Return the samples of an epoch of batches."""
        return num_batched(self._batching, shape, *self.amounts)

    def joined(self, epoch: int) -> tuple[NDArray[np.int64], Ids]:
        """Return the units of all streams in an epoch, and the ids of the units."""
        sampling = self._sampling(epoch)
        rng = sampling.generator()
        drawn = [self._drawn(stream, sampling, rng) for stream in range(len(self._shards))]
        return np.concatenate([units for units, _ in drawn]), np.concatenate([ids for _, ids in drawn])

    def each(self, epoch: int) -> list[tuple[NDArray[np.int64], Ids]]:
        """Draw the units of each stream separately; return the units and their ids, by stream."""
        sampling = self._sampling(epoch)
        return [self._drawn(stream, sampling, sampling.generator()) for stream in range(len(self._shards))]

    def batched(self, shape: BatchShape, shuffled: Sequence[Ids], epoch: int) -> Ids:
        """Return the ids of batches of streams, given the shuffled ids of each stream."""
        return batched_ids(self._batching, shape, shuffled, self.amounts.proportions, self._sampling(epoch).generator())

    def _sampling(self, epoch: int) -> ShardSampling:
        return ShardSampling(self._granularity, self._seed, epoch, self._is_fixed)

    def _drawn(self, stream: int, sampling: ShardSampling, rng: Any) -> tuple[NDArray[np.int64], Ids]:
        shards = self._shards[stream]
        counts = sampling.counts(self._sizes[shards], int(self.amounts.choose[stream]))
        units, ids = sampling.units(self._sizes[shards], self._starts[shards], counts, rng)
        return units, ids.astype(np.int32) if int(self._sizes.sum()) < 2**31 else ids


@dataclass(frozen=True, slots=True)
class ShardSampling:
    """Sampling of shards, ``granularity`` samples at a time, by a fixed seed or a seed per epoch."""

    granularity: int
    seed: int
    epoch: int
    is_fixed: bool

    def generator(self) -> np.random.Generator:
        """Return a new generator for the epoch."""
        return np.random.default_rng(self.seed if self.is_fixed else self.seed + self.epoch)

    def counts(self, shard_samples: NDArray[np.int64], choose: int) -> NDArray[np.int64]:
        """Return the samples of each shard in a choice of ``choose`` samples; O(samples / granularity)."""
        num_samples = int(shard_samples.sum())
        whole, part = divmod(choose, num_samples)
        counts = shard_samples * whole
        if not part:
            return counts
        picks = -(-shard_samples // self.granularity)
        shard_of_pick = np.repeat(np.arange(len(shard_samples)), picks)
        sizes = np.full(len(shard_of_pick), self.granularity)
        sizes[np.cumsum(picks) - 1] = shard_samples - (picks - 1) * self.granularity
        order = self.generator().permutation(len(sizes))
        taken = np.diff(np.minimum(np.cumsum(sizes[order]), part), prepend=0)
        np.add.at(counts, shard_of_pick[order], taken)
        return counts

    def units(
        self, shard_samples: NDArray[np.int64], first_ids: NDArray[np.int64], counts: NDArray[np.int64], rng: Any
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sizes of the units to shuffle instead of shards, and their ids, unit after unit.

        A shard makes one unit per complete copy; the rest of the shard, drawn from ``rng``, is another unit.
        """
        sizes: list[int] = []
        ids: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)]
        for samples, first, count in zip(shard_samples.tolist(), first_ids.tolist(), counts.tolist(), strict=True):
            whole, rest = divmod(count, samples)
            sizes += [samples] * whole
            ids += [np.arange(first, first + samples)] * whole
            if rest:
                sizes.append(rest)
                ids.append(first + np.sort(rng.choice(samples, rest, replace=False)))
        return np.array(sizes, dtype=np.int64), np.concatenate(ids)

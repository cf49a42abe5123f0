"""Samples of each shard that take part in an epoch of Streaming, and how often.

References
----------
``streaming/base/sampling.py`` and ``StreamingDataset.resample_streams`` of mosaicml-streaming 0.13.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ShardSampling:
    """A way of sampling shards: ``granularity`` samples at a time, by a seed that stays or that changes with epochs."""

    granularity: int
    seed: int
    epoch: int
    is_fixed: bool

    def generator(self) -> np.random.Generator:
        """Return a generator for an epoch, always from the beginning."""
        return np.random.default_rng(self.seed if self.is_fixed else self.seed + self.epoch)

    def counts(self, shard_samples: NDArray[np.int64], choose: int) -> NDArray[np.int64]:
        """Return how many samples of each shard take part so that there are ``choose``; O(samples / granularity)."""
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
        """Return the sizes of the units that are shuffled in place of shards, and the ids in them, unit after unit.

        A shard is a unit each time that all of its samples come, and one more with the rest, drawn from ``rng``.
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

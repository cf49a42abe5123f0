"""A global shuffle of samples of which only a part fits into memory.

The shuffle is a seekable permutation of all samples, so it needs no memory of its own, and every process that asks gets
the same answer. Two ways to carry it out:

* *Inputs that can be read in any order* (small files, indexed shards) are read in the order of the positions:
  `Mix.samples` says which sample stands where.
* *Inputs that only come one after the other* are dealt into buckets by where they go, and each bucket is then read
  back whole and written in order: `Mix.buckets`, `Mix.bucket_positions`. A bucket is a stretch of positions, so that
  buckets follow each other in the result, and several processes can take one each.

Both give the same order: that of the permutation, whatever the memory, the buckets and the processes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.permute import permute, unpermute
from shoal.order.seeds import check_seed, key

__all__ = ["MOST_BUCKETS", "Mix", "mix"]

MOST_BUCKETS = 1024
"""Each bucket is an open file while inputs are dealt out, and systems allow a process about as many."""

_FULL_SHARE = 0.5  # of the memory that an average bucket fills: others are larger, and records grow when written


@dataclass(frozen=True, slots=True)
class Mix:
    """A global shuffle, and the buckets by which it can be made.

    Parameters
    ----------
    num_samples
        Of all that is shuffled.
    seed
        Equal seeds give equal shuffles.
    num_buckets
        Stretches of positions of about equal length, the first ones longer by one where they differ.

    Examples
    --------
    >>> plan = Mix(10, seed=1, num_buckets=3)
    >>> plan.samples(0, 10).tolist()
    [4, 3, 5, 7, 6, 2, 9, 1, 8, 0]
    >>> [plan.bucket_positions(bucket) for bucket in range(3)]
    [(0, 4), (4, 7), (7, 10)]
    >>> plan.buckets(np.array([4, 2, 0])).tolist()
    [0, 1, 2]
    """

    num_samples: int
    seed: int
    num_buckets: int = 1

    def samples(self, start: int, stop: int) -> NDArray[np.int64]:
        """Which samples stand at the positions ``[start, stop)``; shape (stop - start,), 50 ns each."""
        if not 0 <= start <= stop <= self.num_samples:
            msg = f"positions [{start}, {stop}) are not among the {self.num_samples} of the shuffle"
            raise UsageError(msg)
        return unpermute(np.arange(start, stop), self.num_samples, self._key)

    def positions(self, samples: NDArray[Any]) -> NDArray[np.int64]:
        """Where these samples go; the inverse of `samples`."""
        return permute(samples, self.num_samples, self._key)

    def buckets(self, samples: NDArray[Any]) -> NDArray[np.int64]:
        """The bucket into which each of these samples goes."""
        ends = [self.bucket_positions(bucket)[1] for bucket in range(self.num_buckets)]
        return np.searchsorted(ends, self.positions(samples), side="right").astype(np.int64)

    def bucket_positions(self, bucket: int) -> tuple[int, int]:
        """The positions ``[start, stop)`` of a bucket."""
        if not 0 <= bucket < self.num_buckets:
            msg = f"there is no bucket {bucket}: there are {self.num_buckets}"
            raise UsageError(msg)
        each, over = divmod(self.num_samples, self.num_buckets)
        start = bucket * each + min(bucket, over)
        return start, start + each + (bucket < over)

    @property
    def _key(self) -> int:
        return key(self.seed, 0, "pack-mix")


def mix(num_samples: int, *, num_bytes: int, memory_bytes: int, seed: int = 0) -> Mix:
    """The shuffle of so many samples, in buckets of which one fits into the memory.

    Parameters
    ----------
    num_samples, num_bytes
        Of all that is shuffled.
    memory_bytes
        For the records of a bucket. An average bucket fills half of it.
    seed
        Equal seeds give equal shuffles, whatever the memory.

    Raises
    ------
    UsageError
        There would be more than 1024 buckets.

    Examples
    --------
    >>> mix(10**6, num_bytes=20 << 30, memory_bytes=1 << 30).num_buckets
    40
    """
    if num_samples < 0 or num_bytes < 0 or memory_bytes < 1:
        msg = f"cannot shuffle {num_samples} samples of {num_bytes} bytes in {memory_bytes} bytes of memory"
        raise UsageError(msg)
    num_buckets = max(1, min(num_samples, math.ceil(num_bytes / (memory_bytes * _FULL_SHARE))))
    if num_buckets > MOST_BUCKETS:
        least = math.ceil(num_bytes / (MOST_BUCKETS * _FULL_SHARE))
        msg = (
            f"shuffling {num_bytes} bytes in {memory_bytes} bytes of memory takes {num_buckets} temporary files at one "
            f"time, and {MOST_BUCKETS} are the most"
        )
        raise UsageError(msg, hint=f"allow {math.ceil(least / (1 << 20))} MiB of memory")
    return Mix(num_samples, check_seed(seed), num_buckets)

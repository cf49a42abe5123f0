"""The plan of a packing: inputs of each shard in order, fixed before any is read, for any number of processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.arrays.permutation import unpermute
from shoal.order.seeds import check_seed, key
from shoal.pack.inputs.repeats import Repeats

_AT_A_TIME = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class PackPlan:
    """The shards of a packing: shard ``i`` holds the positions ``[cuts[i], cuts[i + 1])``, shape (num_shards + 1,)."""

    num_inputs: int
    cuts: NDArray[np.int64]
    shard_record_bytes: NDArray[np.int64]
    repeats: Repeats | None = None
    mix: Mix | None = None

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return len(self.cuts) - 1

    def inputs(self, shard: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the inputs of a shard in order, and the copy number of each."""
        return _inputs_at(self, int(self.cuts[shard]), int(self.cuts[shard + 1]))


def plan_shards(
    record_bytes: NDArray[np.int64], *, shard_bytes: int, repeats: Repeats | None = None, mix: Mix | None = None
) -> PackPlan:
    """Cut the inputs, repeated and mixed, into the fewest shards of equal bytes, each at most ``shard_bytes``.

    ``record_bytes``, shape (num_inputs,), is the size of each in a shard. A shard ends with the record that reaches
    its share, so that shards differ by at most a record or two. O(samples), 2^20 at a time.
    """
    num_samples = len(record_bytes) if repeats is None else repeats.num_samples
    total = int(record_bytes.sum() if repeats is None else (record_bytes * repeats.times).sum())
    num_shards = max(1, min(num_samples, -(-total // shard_bytes)))
    plan = PackPlan(len(record_bytes), np.array([0, num_samples]), np.zeros(1, np.int64), repeats, mix)
    borders = total * np.arange(1, num_shards, dtype=object) // num_shards
    cuts = [0]
    before = 0
    for start, sizes in _sizes(plan, record_bytes, num_samples):
        ends = before + np.cumsum(sizes)
        inside = [border for border in borders if before < border <= int(ends[-1])]
        # A record that a border cuts through stays in the earlier shard.
        cuts += [start + int(np.searchsorted(ends, border)) + 1 for border in inside]
        before = int(ends[-1])
    found = np.unique(np.array([*cuts, num_samples], dtype=np.int64))
    shard_bytes_found = np.zeros(len(found) - 1, dtype=np.int64)
    for start, sizes in _sizes(plan, record_bytes, num_samples):
        shards = np.searchsorted(found, np.arange(start, start + len(sizes)), side="right") - 1
        np.add.at(shard_bytes_found, shards, sizes)
    return PackPlan(len(record_bytes), found, shard_bytes_found, repeats, mix)


def _sizes(
    plan: PackPlan, record_bytes: NDArray[np.int64], num_samples: int
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    for start in range(0, num_samples, _AT_A_TIME):
        inputs, _ = _inputs_at(plan, start, min(num_samples, start + _AT_A_TIME))
        yield start, record_bytes[inputs]


def _inputs_at(plan: PackPlan, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    samples = np.arange(start, stop, dtype=np.int64) if plan.mix is None else plan.mix.samples(start, stop)
    if plan.repeats is None:
        return samples, np.zeros(len(samples), dtype=np.int64)
    return plan.repeats.inputs_of(samples), plan.repeats.copies_of(samples)


@dataclass(frozen=True, slots=True)
class Mix:
    """A global shuffle.

    Parameters
    ----------
    num_samples
        Number of samples that are shuffled.
    seed
        Equal seeds give equal shuffles.

    Raises
    ------
    UsageError
        The seed is not valid.

    Examples
    --------
    >>> mix = Mix(10, seed=1)
    >>> mix.samples(0, 10).tolist()
    [4, 3, 5, 7, 6, 2, 9, 1, 8, 0]
    >>> mix.samples(4, 7).tolist()
    [6, 2, 9]
    """

    num_samples: int
    seed: int

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def samples(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the samples at the positions ``[start, stop)``; shape (stop - start,), 50 ns each."""
        if not 0 <= start <= stop <= self.num_samples:
            msg = f"positions [{start}, {stop}) are not among the {self.num_samples} of the shuffle"
            raise UsageError(msg)
        return unpermute(np.arange(start, stop), self.num_samples, key(self.seed, 0, "pack-mix"))

"""The plan of a packing: inputs of each shard in order, fixed before any input is read, for any number of processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.arrays.permutation import unpermute
from shoal.order.seeds import check_seed, key
from shoal.pack.inputs.repeats import Repeats

_AT_ONCE = 1 << 20  # samples with their order in memory


@dataclass(frozen=True, slots=True)
class Mix:
    """A global shuffle of more samples than fit into memory: a seekable permutation, the same in every process.

    >>> mix = Mix(10, seed=1)
    >>> mix.samples(0, 10).tolist(), mix.samples(4, 7).tolist()
    ([4, 3, 5, 7, 6, 2, 9, 1, 8, 0], [6, 2, 9])
    """

    num_samples: int
    seed: int

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def samples(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the samples at the positions ``[start, stop)``; shape (stop - start,), 50 ns each."""
        if not 0 <= start <= stop <= self.num_samples:
            raise UsageError(f"positions [{start}, {stop}) are not among the {self.num_samples} of the shuffle")
        return unpermute(np.arange(start, stop), self.num_samples, key(self.seed, 0, "pack-mix"))


@dataclass(frozen=True, slots=True, eq=False)
class PackPlan:
    """The shards of a packing: shard ``i`` holds the positions ``[cuts[i], cuts[i + 1])``, shape (num_shards + 1,)."""

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
        return _inputs_at(int(self.cuts[shard]), int(self.cuts[shard + 1]), self.repeats, self.mix)

    def skipped_inputs(self, positions: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        """Return the skipped inputs, by their positions in each shard; each repeat counts."""
        skipped = [self.inputs(shard)[0][list(left_out)] for shard, left_out in enumerate(positions) if left_out]
        return np.concatenate([np.zeros(0, dtype=np.int64), *skipped])


def plan_shards(
    record_bytes: NDArray[np.int64], *, shard_bytes: int, repeats: Repeats | None = None, mix: Mix | None = None
) -> PackPlan:
    """Cut the inputs, repeated and mixed, into the fewest shards of equal bytes whose mean is at most ``shard_bytes``.

    ``record_bytes``, shape (num_inputs,), has the size of each input in a shard. A shard ends with the record that
    reaches its share: it may exceed ``shard_bytes`` by a record, and shards differ by at most two records. O(samples),
    2^20 at a time.
    """
    num_samples = len(record_bytes) if repeats is None else repeats.num_samples
    total = int(record_bytes.sum() if repeats is None else (record_bytes * repeats.times).sum())
    num_shards = max(1, min(num_samples, -(-total // shard_bytes)))

    def sizes_at_once() -> Iterator[tuple[int, NDArray[np.int64]]]:
        for start in range(0, num_samples, _AT_ONCE):
            inputs, _ = _inputs_at(start, min(num_samples, start + _AT_ONCE), repeats, mix)
            yield start, record_bytes[inputs]

    shares = total * np.arange(1, num_shards, dtype=object) // num_shards
    ends = [0]
    before = 0
    for start, sizes in sizes_at_once():
        totals = before + np.cumsum(sizes)
        reached = [share for share in shares if before < share <= int(totals[-1])]
        # A record on a border stays in the earlier shard.
        ends += [start + int(np.searchsorted(totals, share)) + 1 for share in reached]
        before = int(totals[-1])
    cuts = np.unique(np.array([*ends, num_samples], dtype=np.int64))
    shard_record_bytes = np.zeros(len(cuts) - 1, dtype=np.int64)
    for start, sizes in sizes_at_once():
        shards = np.searchsorted(cuts, np.arange(start, start + len(sizes)), side="right") - 1
        np.add.at(shard_record_bytes, shards, sizes)
    return PackPlan(cuts, shard_record_bytes, repeats, mix)


def _inputs_at(
    start: int, stop: int, repeats: Repeats | None, mix: Mix | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    samples = np.arange(start, stop, dtype=np.int64) if mix is None else mix.samples(start, stop)
    if repeats is None:
        return samples, np.zeros(len(samples), dtype=np.int64)
    return repeats.inputs_of(samples)

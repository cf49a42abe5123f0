"""Batches of a run with workers on every rank; each worker has its own stream of samples.

In torch's ``DataLoader`` over an iterable dataset, each worker makes batches of its stream, whose last batch may be
short, and a rank takes a batch of each worker in turn; workers that have ended are passed over. A step of the run has
the batches of all ranks, one after another, without ranks that have ended.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.protocol import chunk_starts
from shoal.peers.round_robin import RoundRobin


class Pieces(NamedTuple):
    """Consecutive positions, cut at changes of the stream.

    ``streams`` are numbered by rank, then worker; ``numbers`` are the places of the first samples in their streams.
    """

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    streams: NDArray[np.int64]
    numbers: NDArray[np.int64]


class LoaderBatches:
    """The global order of a run: positions, and samples in the streams of workers.

    As long as all ranks have whole batches, step ``t`` has the positions from ``t * num_ranks * batch_size``.

    Parameters
    ----------
    stream_samples
        Samples in the stream of each worker of each rank, shape (num_ranks, num_workers); one worker if ranks read in
        their own process.
    batch_size
        Samples of a batch of one rank.

    References
    ----------
    ``_MultiProcessingDataLoaderIter`` in ``torch/utils/data/dataloader.py``.
    """

    def __init__(self, stream_samples: Any, batch_size: int) -> None:
        samples = np.asarray(stream_samples, dtype=np.int64)
        if samples.ndim != 2 or batch_size < 1:
            msg = f"a run needs samples by rank and worker, and a batch size; got {samples.shape}, {batch_size}"
            raise UsageError(msg)
        self.num_ranks, self.num_workers = samples.shape
        self.num_samples, self._size = int(samples.sum()), batch_size
        batches = -(-samples // batch_size)
        alike, kinds = np.unique(batches, axis=0, return_inverse=True)
        self._kind_of_rank = kinds.reshape(-1)
        self._worker_turns = [RoundRobin(row) for row in alike]
        self._rank_turns = RoundRobin(batches.sum(axis=1))
        ranks, workers = np.nonzero(samples % batch_size)
        short = self._batch_numbers(ranks, workers, batches[ranks, workers] - 1)
        by_number = np.argsort(short)
        # The numbers of short batches, and the number of samples missing in all earlier short batches.
        self._short = short[by_number]
        self._missing = chunk_starts((-samples[ranks, workers] % batch_size)[by_number])
        self._after = (self._short + 1) * batch_size - self._missing[1:]

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the rank and worker of the sample at each position, and its number in the worker's stream."""
        passed = np.searchsorted(self._after, positions, side="right")
        batch, offset = np.divmod(positions + self._missing[passed], self._size)
        ranks, turns = self._rank_turns.locate(batch)
        workers, numbers = np.empty_like(turns), np.empty_like(turns)
        for kind, rows in self._by_kind(ranks):
            workers[rows], numbers[rows] = self._worker_turns[kind].locate(turns[rows])
        return ranks, workers, numbers * self._size + offset

    def pieces(self, start: int, stop: int) -> Pieces:
        """Cut the positions ``[start, stop)`` into batches or parts of batches; O(num_batches)."""
        ends = np.array([start, max(start, stop - 1)])
        low, high = ((ends + self._missing[np.searchsorted(self._after, ends, side="right")]) // self._size).tolist()
        batches = np.arange(low, high + 1 if stop > start else low)
        positions = batches * self._size - self._missing[np.searchsorted(self._short, batches)]
        ranks, turns = self._rank_turns.locate(batches)
        workers, numbers = np.empty_like(turns), np.empty_like(turns)
        for kind, rows in self._by_kind(ranks):
            workers[rows], numbers[rows] = self._worker_turns[kind].locate(turns[rows])
        begins = np.maximum(positions, start)
        ends = np.append(positions[1:], stop)[: len(positions)]
        return Pieces(begins, ends, ranks * self.num_workers + workers, numbers * self._size + begins - positions)

    def positions(
        self, ranks: NDArray[np.int64], workers: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the position of each sample of a worker's stream, the inverse of `locate`."""
        batch, offset = np.divmod(numbers, self._size)
        batches = self._batch_numbers(ranks, workers, batch)
        return batches * self._size + offset - self._missing[np.searchsorted(self._short, batches)]

    def first_of_step(self, step: int) -> int:
        """Return the first position of a step; every unfinished rank has a batch in a step."""
        taken = np.array([min(step, len(turns)) for turns in self._worker_turns], dtype=np.int64)
        batch = int(taken[self._kind_of_rank].sum())
        return batch * self._size - int(self._missing[np.searchsorted(self._short, batch)])

    def _batch_numbers(
        self, ranks: NDArray[np.int64], workers: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the numbers in the run of batches, given their numbers in the streams of workers."""
        turns = np.empty_like(numbers)
        for kind, rows in self._by_kind(ranks):
            turns[rows] = self._worker_turns[kind].positions(workers[rows], numbers[rows])
        return self._rank_turns.positions(ranks, turns)

    def _by_kind(self, ranks: NDArray[np.int64]) -> list[tuple[int, NDArray[np.bool_]]]:
        """Return the ranks of each kind; ranks of a kind have workers with equal numbers of batches."""
        kinds = self._kind_of_rank[ranks]
        return [(kind, kinds == kind) for kind in np.unique(kinds).tolist()]

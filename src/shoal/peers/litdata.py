"""The shuffle of LitData: chunks in random order, dealt to workers in runs, and samples shuffled inside each chunk.

All chunks of an epoch are lined up in random order. The line is cut into a run for each worker of each rank, in whole
batches. The rest goes to a worker of the last rank, or is dropped. Two workers share a chunk on a cut. Each worker
reads its chunks one after another, with the samples of a chunk in blocks of 256: blocks in random order, and samples
in random order in each.

With one LitData chunk in memory per worker, a batch of a rank comes from as many chunks as the rank has workers, or
from one chunk.

Not supported: several nodes (after the first epoch, LitData keeps chunks on their nodes and repeats shared chunks); the
sliding-window shuffle of file systems (``posix``); combined datasets. At another world size, LitData resumes in a new
order, and shoal continues in this order.

References
----------
``litdata/streaming/shuffle.py``, ``litdata/utilities/shuffle.py`` and ``litdata/streaming/dataloader.py`` of LitData
0.2.76.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.arguments import as_flag
from shoal.errors import StateError, UsageError
from shoal.order.protocol import Adopted, Moved, check_chunk_samples, check_counts, check_streams, chunk_starts
from shoal.order.seeds import check_epoch, check_seed
from shoal.peers.loader_batches import LoaderBatches
from shoal.peers.rank_streams import RankStreams

_MOST_SEED = 2**32 - 1  # limit of numpy's RandomState


@dataclass(frozen=True, slots=True)
class LitData:
    """``StreamingDataset(shuffle=True)`` in a ``StreamingDataLoader``, on one node.

    ``load_state_dict`` also takes the result of ``StreamingDataLoader.state_dict()`` on any rank.

    Parameters
    ----------
    world_size, num_workers, batch_size
        Numbers of the run with this order; with another world size and the same global batch, batches are the same.
    drop_last
        True to drop samples that do not fill a batch on every rank; default as in LitData: with several ranks.
    item_shuffle_window
        Samples of a block inside of a chunk; 0 to shuffle whole chunks, as before LitData 0.2.7x.

    Examples
    --------
    >>> shoal.orders.LitData(batch_size=2).bind([4, 4], seed=42).ids(0, 8).tolist()
    [2, 1, 0, 3, 7, 6, 4, 5]
    """

    name: ClassVar[str] = "litdata"
    version: ClassVar[int] = 1
    moves: ClassVar[Moved] = "shards"
    default_seed: ClassVar[int] = 42

    world_size: int = 1
    num_workers: int = 0
    batch_size: int = 1
    drop_last: bool | None = None
    item_shuffle_window: int = 256

    def __post_init__(self) -> None:
        check_counts(self, world_size=1, num_workers=0, batch_size=1, item_shuffle_window=0)
        drops = self.world_size > 1 if self.drop_last is None else as_flag("drop_last", self.drop_last)
        object.__setattr__(self, "drop_last", drops)
        check_streams(world_size=self.world_size, num_workers=self.num_workers)

    @property
    def parameters(self) -> dict[str, int | bool | None]:
        """Parameters of this order that a state keeps."""
        return asdict(self)

    def num_positions(self, chunk_samples: NDArray[np.int64]) -> int:
        """Return the number of samples of an epoch, without dropped samples."""
        return int(self.quotas(int(chunk_samples.sum())).sum())

    def bind(self, chunk_samples: Any, *, seed: int = 0, epoch: int = 0) -> RankStreams:
        """Return the order of one epoch; LitData counts epochs from 1. O(num_chunks) time and memory."""
        samples = check_chunk_samples(chunk_samples)
        number, litdata_epoch = check_seed(seed), check_epoch(epoch) + 1
        if max(number, litdata_epoch) > _MOST_SEED:
            msg = f"LitData's seeds and epochs go up to {_MOST_SEED}; got seed {number} and epoch {litdata_epoch}"
            raise UsageError(msg)
        line = _ChunkLine(samples, number, litdata_epoch, self.item_shuffle_window)
        quotas = self.quotas(int(samples.sum()))
        cuts = chunk_starts(quotas.reshape(-1))
        streams = [_Run(line, int(first), int(end)) for first, end in itertools.pairwise(cuts)]

        def stream_of(ids: NDArray[np.int64]) -> NDArray[np.int64]:
            points = line.points(ids)
            return np.where(points < cuts[-1], np.searchsorted(cuts, points, side="right") - 1, -1)

        return RankStreams(self, LoaderBatches(quotas, self.batch_size), streams, samples, stream_of)

    def adopted(self, checkpoint: Mapping[str, Any], chunk_samples: NDArray[np.int64], seed: int) -> Adopted | None:
        """Return the start of a run by its state of a ``StreamingDataLoader``; None for other values."""
        saved = checkpoint.get("dataset")
        if not isinstance(saved, Mapping) or "num_samples_yielded" not in saved or "current_epoch" not in checkpoint:
            return None
        if saved.get("seed") != seed or not saved.get("shuffle", True) or saved.get("resume_mode") == "elastic":
            msg = f"LitData saved this with seed={saved.get('seed')}, shuffle={saved.get('shuffle')}, "
            msg += f"resume_mode={saved.get('resume_mode')}; this stream has seed={seed}, and shuffles"
            raise StateError(msg, hint="use shuffle('litdata', seed=...) with the seed of the run")
        order = replace(
            self,
            world_size=saved["world_size"],
            num_workers=saved["num_workers"],
            batch_size=saved["batch_size"],
            drop_last=saved["drop_last"],
            item_shuffle_window=saved.get("item_shuffle_window", 0),
        )
        epoch = max(0, int(checkpoint["current_epoch"]) - 1)
        steps = -(-int(saved["num_samples_yielded"]) // order.batch_size)
        batches = LoaderBatches(order.quotas(int(chunk_samples.sum())), order.batch_size)
        return Adopted(order, seed, epoch, batches.first_of_step(steps))

    def quotas(self, num_samples: int) -> NDArray[np.int64]:
        """Return the samples of each worker of each rank, shape (world_size, max(1, num_workers))."""
        workers, size = max(1, self.num_workers), self.batch_size
        batches, more = divmod(num_samples // size // self.world_size, workers)
        quotas = np.tile(size * (batches + (np.arange(workers) < more)), (self.world_size, 1))
        if not self.drop_last:
            quotas[-1, more % workers] += num_samples - quotas.sum()
        return quotas


class _ChunkLine:
    """All chunks of an epoch in random order; a point on the line is a place in a chunk."""

    def __init__(self, chunk_samples: NDArray[np.int64], seed: int, epoch: int, window: int) -> None:
        self.first_id = chunk_starts(chunk_samples)
        self._seeds, self._window = (seed, len(chunk_samples), epoch), window
        self.chunk_at = np.random.RandomState([seed, epoch]).permutation(len(chunk_samples))
        self.starts = chunk_starts(chunk_samples[self.chunk_at])
        self._place_of = np.argsort(self.chunk_at)

    def points(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the point of each sample id before samples are shuffled inside their chunks."""
        chunks = np.searchsorted(self.first_id, ids, side="right") - 1
        points: NDArray[np.int64] = self.starts[self._place_of[chunks]] + ids - self.first_id[chunks]
        return points

    def shuffled(self, place: int, size: int) -> NDArray[np.int64]:
        """Return the order in which a worker reads its ``size`` samples of the chunk at ``place``."""
        seed, num_chunks, epoch = self._seeds
        rng = np.random.RandomState([seed, num_chunks, epoch, int(self.chunk_at[place])])
        if self._window <= 1 or size < 2:
            return rng.permutation(size) if size > 1 else np.arange(size)
        order = np.arange(size)
        blocks = [order[start : start + self._window] for start in range(0, size, self._window)]
        for block in blocks:
            rng.shuffle(block)
        if len(blocks) > 1:
            numbers = np.arange(len(blocks))
            rng.shuffle(numbers)
            return np.concatenate([blocks[number] for number in numbers.tolist()])
        return order


class _Run:
    """The samples of one worker: points ``[first, end)`` of the line, shuffled chunk by chunk."""

    def __init__(self, line: _ChunkLine, first: int, end: int) -> None:
        self._line, self._first, self._end = line, first, end
        self._last: tuple[int, NDArray[np.int64]] | None = None

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids of the samples ``[start, stop)`` of the run; O(samples of their chunks)."""
        line, parts = self._line, []
        begin, end = self._first + start, self._first + stop
        while begin < end:
            place = int(np.searchsorted(line.starts, begin, side="right")) - 1
            low, order = self._piece(place)
            upto = min(end, low + len(order))
            first_id = line.first_id[line.chunk_at[place]] + low - line.starts[place]
            parts.append(first_id + order[begin - low : upto - low])
            begin = upto
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts])

    def numbers(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number in the run of each sample id; O(samples of their chunks)."""
        points = self._line.points(ids)
        places = np.searchsorted(self._line.starts, points, side="right") - 1
        numbers = np.empty_like(ids)
        for place in np.unique(places).tolist():
            low, order = self._piece(place)
            in_chunk = places == place
            numbers[in_chunk] = low - self._first + np.argsort(order)[points[in_chunk] - low]
        return numbers

    def _piece(self, place: int) -> tuple[int, NDArray[np.int64]]:
        """Return the first point of the run's part of a chunk, and the order of its samples."""
        low = max(self._first, int(self._line.starts[place]))
        if self._last is None or self._last[0] != place:
            high = min(self._end, int(self._line.starts[place + 1]))
            self._last = place, self._line.shuffled(place, high - low)
        return low, self._last[1]

"""The orders of WebDataset 1.0: buffers over the shards of each worker, and shards drawn without end.

References
----------
``shuffle``, ``detshuffle`` and ``WebDataset`` in ``webdataset/filters.py`` and ``compat.py``; ``SimpleShardList``,
``split_by_node``, ``split_by_worker`` and ``ResampledShards`` in ``webdataset/shardlists.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.protocol import Moved, as_whole, check_chunk_samples, check_flags, check_streams, chunk_starts
from shoal.order.seeds import check_epoch, check_seed
from shoal.peers.loader_batches import LoaderBatches
from shoal.peers.rank_streams import RankStreams, RepeatingStreams
from shoal.peers.webdataset.growing_buffer import GrowingBuffer
from shoal.peers.webdataset.python_integers import PythonIntegers, python_random, words_of

_LEAST = {"batch_size": 1, "world_size": 1, "samples_per_worker": 1}
_MOST = {"bufsize": 2**32 - 1, "shardshuffle": 2**32 - 1}
_HASHED = 2**61 - 1  # Python's hash of an integer is the remainder modulo this number


@dataclass(frozen=True, slots=True)
class WebDatasetShuffle:
    """WebDataset's ``shuffle``: each worker shuffles its shards, and their samples in a growing buffer.

    That is ``WebDataset(urls, shardshuffle=..., seed=seed, nodesplitter=split_by_node).shuffle(bufsize, seed=seed)``,
    in batches of ``batch_size``, in a loader. At the original world size each rank gets exactly its own samples; at any
    other world size, the global batches are the same, divided differently. All epochs are equal, as they are in
    WebDataset.

    Parameters
    ----------
    shardshuffle, detshuffle
        Arguments of ``WebDataset``: the size of the shuffle buffer for shards, 0 for no buffer (``True`` in WebDataset
        is 100), and True if epochs have different orders of shards.
    bufsize, initial
        Arguments of ``.shuffle``: the samples in the buffer, 0 for no buffer, and the samples at its start.
    batch_size, world_size, num_workers, persistent_workers
        Numbers of the loader and the job. Workers that do not persist begin with epoch 0 in every epoch.
    shard_seed, sample_seed
        Seeds of the shards (``WDS_SEED`` is a text) and of the samples, if they differ from the dataset's seed.
    shard_initial
        In pipelines made by hand: ``initial`` of the buffer for shards.
    list_seed
        ``seed`` of ``SimpleShardList``.
    shuffled_before_split
        In pipelines made by hand: True if shards are shuffled before they are split by node and worker.

    Examples
    --------
    >>> shoal.orders.WebDatasetShuffle(bufsize=4).bind([3, 3, 3], seed=1).ids(0, 9).tolist()
    [1, 0, 2, 7, 4, 5, 6, 8, 3]
    """

    name: ClassVar[str] = "wds-shuffle"
    version: ClassVar[int] = 1
    moves: ClassVar[Moved] = "shards"
    counts_epochs: ClassVar[bool] = False

    shardshuffle: int = 100
    bufsize: int = 1000
    initial: int = 100
    batch_size: int = 1
    world_size: int = 1
    num_workers: int = 0
    persistent_workers: bool = False
    detshuffle: bool = False
    shard_seed: int | str | None = None
    sample_seed: int | str | None = None
    shard_initial: int = 100
    list_seed: int | str | None = None
    shuffled_before_split: bool = False

    def __post_init__(self) -> None:
        _check(self)

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of this order that a state keeps."""
        return asdict(self)

    def bind(self, chunk_samples: Any, *, seed: int = 0, epoch: int = 0) -> RankStreams:
        """Return the order of one epoch; O(num_shards), and O(bufsize) memory for each worker."""
        samples = check_chunk_samples(chunk_samples)
        seed, epoch = check_seed(seed), _epoch_of(self, check_epoch(epoch))
        of_shards = seed if self.shard_seed is None else self.shard_seed
        of_samples = seed if self.sample_seed is None else self.sample_seed
        shards = shuffle_of(self.shardshuffle, self.shard_initial, _moved(of_shards, epoch, counts=self.detshuffle))
        shuffle = shuffle_of(self.bufsize, self.initial, _moved(of_samples, epoch, counts=self.counts_epochs))
        lists = self._split(_listed(len(samples), self.list_seed), shards)
        streams = [WorkerStream(shards_of_worker, samples, shuffle) for shards_of_worker in lists]
        stream_of = np.empty(len(samples), dtype=np.int64)
        for number, shards_of_worker in enumerate(lists):
            stream_of[shards_of_worker] = number
        starts = np.cumsum(samples)
        return RankStreams(
            self,
            _batches(self, streams),
            streams,
            samples,
            lambda ids: stream_of[np.searchsorted(starts, ids, side="right")],
        )

    def _split(self, shards: NDArray[np.int64], shuffle: Shuffle) -> list[NDArray[np.int64]]:
        """Return the shards of each worker of each rank, in their order."""
        if self.shuffled_before_split:
            return _split(self, shuffled(shards, shuffle))
        return [shuffled(each, shuffle) for each in _split(self, shards)]


@dataclass(frozen=True, slots=True)
class WebDatasetDetshuffle(WebDatasetShuffle):
    """WebDataset's ``detshuffle``: as `WebDatasetShuffle`, with ``seed + epoch`` in each epoch.

    Equals ``WebDataset(urls, shardshuffle=..., detshuffle=True, seed=seed, ...).compose(wds.detshuffle(bufsize,
    seed=seed))``. `WebDatasetShuffle` describes the parameters.

    Examples
    --------
    >>> order = shoal.orders.WebDatasetDetshuffle(bufsize=4)
    >>> [order.bind([3, 3, 3], seed=1, epoch=epoch).ids(0, 4).tolist() for epoch in (0, 1)]
    [[1, 0, 2, 7], [0, 6, 7, 2]]
    """

    name: ClassVar[str] = "wds-detshuffle"
    counts_epochs: ClassVar[bool] = True

    detshuffle: bool = True


@dataclass(frozen=True, slots=True)
class WebDatasetResampled:
    """WebDataset's ``ResampledShards(urls, deterministic=True, seed=seed)``: each worker draws shards endlessly.

    An epoch has a fixed number of samples; some stored samples appear several times, and other samples never. Python's
    ``hash`` mixes the seed of a worker from its rank, its number, the epoch and the seed. The hash of integers is the
    same everywhere; the hash of texts depends on ``PYTHONHASHSEED``. So the seed must be an integer. Without
    ``deterministic=True``, time and process are mixed in, too, and the order cannot be reproduced.

    Parameters
    ----------
    samples_per_worker
        ``n`` of ``.with_epoch(n)`` after the shuffle, or ``n * batch_size`` after ``.batched``; None for an epoch of
        about as many samples as the dataset.
    split
        True if ``split_by_node`` and ``split_by_worker`` follow, as in the pipeline of ``WebDataset(resampled=True)``.
    bufsize, initial, sample_seed
        Arguments of ``.shuffle`` for the samples; the default seed is the seed of the dataset.
    detshuffle
        True if ``detshuffle`` shuffles samples, with ``seed + epoch``.
    shardshuffle, shard_initial, shard_seed
        Arguments of an optional ``shuffle`` of shards after the draws.
    batch_size, world_size, num_workers, persistent_workers
        Numbers of the loader and the job. Workers that do not persist begin with epoch 0 in every epoch.

    Examples
    --------
    >>> shoal.orders.WebDatasetResampled(bufsize=0).bind([2, 2, 2], seed=1).ids(0, 6).tolist()
    [0, 1, 4, 5, 0, 1]
    """

    name: ClassVar[str] = "wds-resampled"
    version: ClassVar[int] = 1
    moves: ClassVar[Moved] = "shards"

    samples_per_worker: int | None = None
    bufsize: int = 1000
    initial: int = 100
    batch_size: int = 1
    world_size: int = 1
    num_workers: int = 0
    persistent_workers: bool = False
    split: bool = False
    detshuffle: bool = False
    sample_seed: int | str | None = None
    shardshuffle: int = 0
    shard_initial: int = 100
    shard_seed: int | str | None = None

    def __post_init__(self) -> None:
        _check(self)

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of this order that a state keeps."""
        return asdict(self)

    def num_positions(self, chunk_samples: NDArray[np.int64]) -> int:
        """Return the number of samples of all workers together."""
        return self._count(chunk_samples) * self.world_size * max(1, self.num_workers)

    def bind(self, chunk_samples: Any, *, seed: int = 0, epoch: int = 0) -> RepeatingStreams:
        """Return the order of one epoch; O(drawn shards), and O(bufsize) memory for each worker."""
        samples = check_chunk_samples(chunk_samples)
        seed, epoch = check_seed(seed), _epoch_of(self, check_epoch(epoch))
        count = self._count(samples)
        of_samples = seed if self.sample_seed is None else self.sample_seed
        shuffle = shuffle_of(self.bufsize, self.initial, _moved(of_samples, epoch, counts=self.detshuffle))
        of_shards = shuffle_of(
            self.shardshuffle, self.shard_initial, seed if self.shard_seed is None else self.shard_seed
        )
        streams = []
        for rank in range(self.world_size):
            for worker in range(max(1, self.num_workers)):
                shards = self._drawn(samples, rank, worker, (epoch, seed), count, of_shards)
                streams.append(WorkerStream(shards, samples, shuffle, count))
        return RepeatingStreams(self, _batches(self, streams), streams, samples)

    def _count(self, samples: NDArray[np.int64]) -> int:
        total = int(samples.sum())
        if not total or self.samples_per_worker is not None:
            return min(total, 1) * (self.samples_per_worker or 0)
        return max(1, total // (self.world_size * max(1, self.num_workers)))

    def _drawn(
        self, samples: NDArray[np.int64], rank: int, worker: int, words: tuple[int, int], count: int, shuffle: Shuffle
    ) -> NDArray[np.int64]:
        """Return the shards drawn by a worker for ``count`` samples."""
        if not count:
            return np.zeros(0, dtype=np.int64)
        integers = PythonIntegers(words_of(mixed_seed(rank * 1000 + worker, *words)))
        stride = self.world_size * max(1, self.num_workers) if self.split else 1
        first = rank + self.world_size * worker if self.split else 0
        drawn, num_shards = np.zeros(0, dtype=np.int64), 16
        while True:
            num_drawn = stride * (num_shards + self.shardshuffle)
            drawn = np.concatenate([drawn, integers.equal(num_drawn - len(drawn), len(samples))])
            own, buffer = drawn[first::stride], shuffle(None)
            shards = own[:num_shards] if buffer is None else own[buffer.arrivals(0, num_shards)]
            if samples[shards].sum() >= count + self.bufsize:
                return shards
            num_shards *= 2


def mixed_seed(*words: int) -> int:
    """Mix integers like ``webdataset.utils.make_seed``, by the hash of integers in 64-bit Python.

    >>> mixed_seed(1000, 0, 7)
    961007
    """
    seed = 0
    for word in words:
        seed = (seed * 31 + word % _HASHED) & 0x7FFFFFFF
    return seed


def _check(order: WebDatasetShuffle | WebDatasetResampled) -> None:
    """Raise `UsageError` for invalid arguments."""
    check_flags(order)
    for field in fields(order):
        value, name = getattr(order, field.name), field.name
        if isinstance(field.default, bool) or (value is None and field.default is None):
            continue
        if "seed" in name:
            if not isinstance(value, (int, str)):
                raise UsageError(f"{name} must be an integer, a text or None; got {value!r}")
            if not isinstance(value, str):
                object.__setattr__(order, name, as_whole(name, value))
            continue
        object.__setattr__(order, name, number := as_whole(name, value))
        if not _LEAST.get(name, 0) <= number <= _MOST.get(name, number):
            most = f" and at most {_MOST[name]}" if name in _MOST else ""
            raise UsageError(f"{name} must be at least {_LEAST.get(name, 0)}{most}; got {number}")
    check_streams(world_size=order.world_size, num_workers=order.num_workers)
    samples_count = getattr(order, "counts_epochs", order.detshuffle)
    for name, counts in (("sample_seed", samples_count), ("shard_seed", order.detshuffle)):
        if counts and isinstance(getattr(order, name), str):
            raise UsageError(f"detshuffle adds the epoch to its seed; {name} is a text: {getattr(order, name)!r}")


def _epoch_of(order: WebDatasetShuffle | WebDatasetResampled, epoch: int) -> int:
    """Return the epoch number of the pipeline: new workers begin with epoch 0."""
    return epoch if order.persistent_workers or not order.num_workers else 0


def _moved(seed: int | str, epoch: int, *, counts: bool) -> int | str:
    return seed + epoch if counts and isinstance(seed, int) else seed


def _listed(num_shards: int, seed: int | str | None) -> NDArray[np.int64]:
    shards = list(range(num_shards))
    if seed is not None:
        python_random(seed).shuffle(shards)
    return np.array(shards, dtype=np.int64)


def _split(order: WebDatasetShuffle, shards: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Deal shards to ranks in turn, and the shards of a rank to its workers."""
    workers = max(1, order.num_workers)
    return [
        shards[rank :: order.world_size][worker::workers]
        for rank in range(order.world_size)
        for worker in range(workers)
    ]


def _batches(order: WebDatasetShuffle | WebDatasetResampled, streams: list[WorkerStream]) -> LoaderBatches:
    counts = np.array([stream.num_samples for stream in streams]).reshape(order.world_size, -1)
    return LoaderBatches(counts, order.batch_size)


Shuffle = Callable[[int | None], GrowingBuffer | None]
"""Returns the buffer for a number of items (None: endless); None stands for no buffer."""


def shuffle_of(bufsize: int, initial: int, seed: Any) -> Shuffle:
    """Return the shuffle with these arguments; buffers of one sample change nothing."""
    if bufsize <= 1:
        return lambda _: None
    return lambda length: GrowingBuffer(length, bufsize, initial, words_of(seed))


def shuffled(items: NDArray[np.int64], shuffle: Shuffle) -> NDArray[np.int64]:
    """Return the items in shuffled order."""
    buffer = shuffle(len(items))
    return items if buffer is None else items[buffer.arrivals(0, len(items))]


class WorkerStream:
    """The samples of a worker: its shards in order, through its buffer.

    Parameters
    ----------
    shards
        The shards in reading order.
    chunk_samples
        Samples of each shard of the dataset.
    count
        Number of samples, if the stream of shards is endless.
    """

    def __init__(
        self, shards: NDArray[np.int64], chunk_samples: NDArray[np.int64], shuffle: Shuffle, count: int | None = None
    ) -> None:
        self._shards = shards
        self._starts = chunk_starts(chunk_samples[shards])
        self._first_id = chunk_starts(chunk_samples)
        self._shift = np.append(self._first_id[shards] - self._starts[:-1], 0)
        self.num_samples = int(self._starts[-1]) if count is None else count
        self._buffer = shuffle(self.num_samples if count is None else None)

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the ids of the samples ``[start, stop)`` of the stream; cheap from the end of the last call on."""
        arrivals = np.arange(start, stop) if self._buffer is None else self._buffer.arrivals(start, stop)
        arrivals += self._shift[np.searchsorted(self._starts, arrivals, side="right") - 1]
        return arrivals

    def numbers(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number in the stream of each sample id, if no sample repeats; O(samples of the stream)."""
        shards = np.searchsorted(self._first_id, ids, side="right") - 1
        by_shard = np.argsort(self._shards)
        arrivals = ids - self._shift[by_shard[np.searchsorted(self._shards, shards, sorter=by_shard)]]
        return arrivals if self._buffer is None else self._buffer.steps(arrivals)

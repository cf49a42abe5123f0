"""The shuffled ``IterableDataset`` of Hugging Face ``datasets``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.arrays.reservoir import found_by_scan
from shoal.order.protocol import (
    Adopted,
    Moved,
    as_whole,
    check_chunk_samples,
    check_flags,
    check_streams,
    chunk_starts,
)
from shoal.order.seeds import check_epoch, check_seed
from shoal.peers.huggingface.buffers import BlockBuffer, ReservoirBuffer, ShuffleBuffer
from shoal.peers.huggingface.generations import (
    Run,
    WorkerShards,
    nodes_share_samples,
    release_of,
    shards_of_workers,
    shuffled_in_blocks,
)
from shoal.peers.huggingface.huggingface_states import (
    arrived,
    check_loader,
    delivered,
    in_batches,
    of_one_process,
    only,
    saved_run,
)
from shoal.peers.huggingface.turns import ShardTurns
from shoal.peers.loader_batches import LoaderBatches
from shoal.peers.peer_epoch import PeerEpoch
from shoal.peers.rank_streams import RankStreams

Kind = Literal["block", "reservoir"]
RELEASES: dict[Kind, str] = {"block": "5.2", "reservoir": "4.8"}
"""Kinds of buffers, with the default release of each."""

_STRATEGIES = ("auto", "shards", "examples")
_MOST = 2**32 - 1


@dataclass(frozen=True, slots=True)
class HuggingFace:
    """The order of ``IterableDataset.shuffle(seed, buffer_size)`` of Hugging Face ``datasets``, id for id.

    A shard is a shard of ``datasets``: an item of the list in ``gen_kwargs``, or a file of Parquet, JSON or CSV. Epoch
    ``e`` is the epoch after ``set_epoch(e)``. With workers the positions follow a torch ``DataLoader``, and with ranks
    ``split_dataset_by_node``: step by step, with the batches of all ranks in a step. With the same number of ranks
    and batches of the same size, each rank gets the same samples as with ``datasets``.

    Parameters
    ----------
    kind
        "block": the buffer of releases from 5.1 on, emptied by halves. "reservoir": the buffer of releases to 5.0.
    release
        Release of ``datasets``; default "5.2" for blocks and "4.8" for reservoirs. The order of a seed changed with
        4.4, 4.6, 5.0 and 5.1.
    buffer_size, max_buffer_input_shards
        Arguments of ``shuffle``. ``max_buffer_input_shards`` has an effect from 5.0 on.
    world_size, strategy
        Arguments of ``split_dataset_by_node``: the world size, and how nodes share.
    num_workers, batch_size
        Arguments of ``DataLoader``: the number of workers, and the batch of one rank.
    tables
        True if the dataset comes in Arrow tables (files of Parquet, JSON, CSV, ...), False if the dataset comes example
        by example (from a generator, or after ``map`` with a function of Python). ``tables`` matters from 5.1 on.

    Raises
    ------
    UsageError
        An argument is out of its range, or the release has a buffer of the other kind.

    Notes
    -----
    Random numbers come from ``numpy.random.default_rng``; numpy's release notes announce changes of its distributions.

    Every sample comes once in an epoch. If ranks share the samples of all shards and have no workers, the order is
    global and elastic: a run can continue on any number of ranks. Otherwise each worker has its own shuffle buffer; on
    another number of ranks the global batches are the same sets, divided differently.

    Memory: 24 bytes per sample in the buffers of all workers, and per shard. A first seek draws the random numbers of
    all earlier samples: about 2 ns per sample for reservoirs, and 20 ns for blocks.

    References
    ----------
    ``BufferShuffledExamplesIterable``, ``InterleavedShardsExamplesIterable``, ``StepExamplesIterable`` and
    ``IterableDataset._iter_pytorch`` in ``datasets/iterable_dataset.py``; ``datasets/utils/sharding.py``.

    Examples
    --------
    >>> shoal.orders.HuggingFace("reservoir", buffer_size=4).bind([5, 5], seed=42, epoch=1).ids(0, 10).tolist()
    [7, 6, 5, 9, 0, 3, 1, 2, 8, 4]
    """

    version: ClassVar[int] = 1
    moves: ClassVar[Moved] = "shards"

    kind: Kind
    release: str | None = None
    buffer_size: int = 1000
    max_buffer_input_shards: int = 10
    world_size: int = 1
    num_workers: int = 0
    batch_size: int = 1
    strategy: Literal["auto", "shards", "examples"] = "auto"
    tables: bool = True

    def __post_init__(self) -> None:
        if self.kind not in RELEASES or self.strategy not in _STRATEGIES:
            valid = f"kind is one of {', '.join(RELEASES)}, strategy one of {', '.join(_STRATEGIES)}"
            raise UsageError(f"{valid}; got {self.kind!r} and {self.strategy!r}")
        least = {"buffer_size": 1, "max_buffer_input_shards": 1, "world_size": 1, "num_workers": 0, "batch_size": 1}
        for name, minimum in least.items():
            value = as_whole(name, getattr(self, name))
            if not minimum <= value <= _MOST:
                raise UsageError(f"{name} must be from {minimum} to 2**32 - 1; got {value}")
            object.__setattr__(self, name, value)
        check_flags(self)
        check_streams(world_size=self.world_size, num_workers=self.num_workers)
        object.__setattr__(self, "release", RELEASES[self.kind] if self.release is None else self.release)
        release = self._run.release
        if shuffled_in_blocks(release) != (self.kind == "block"):
            other = next(kind for kind in RELEASES if kind != self.kind)
            msg = f"datasets {self.release} has no {self.kind} buffer: the order is 'hf-{other}'"
            raise UsageError(msg, hint="releases to 5.0 have reservoirs, releases from 5.1 on have blocks")
        if self.strategy != "auto" and release < (5, 1):
            msg = f"datasets {self.release} has no strategy: nodes share as in 'auto'"
            raise UsageError(msg, hint="leave out strategy=")

    @property
    def name(self) -> str:
        """Name of the order, "hf-block" or "hf-reservoir"."""
        return f"hf-{self.kind}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of this order that a state keeps."""
        return {name: value for name, value in asdict(self).items() if name != "kind"}

    @property
    def _run(self) -> Run:
        shards, strategy = self.max_buffer_input_shards, self.strategy
        return Run(release_of(self.release or ""), shards, self.world_size, self.num_workers, strategy)

    def adopted(self, checkpoint: Mapping[str, Any], chunk_samples: NDArray[np.int64], seed: int) -> Adopted | None:
        """Return the start of a run by its state of an ``IterableDataset`` or a ``StatefulDataLoader``.

        A state has no seed. `datasets` itself must not have resumed the run, because `datasets` loses the contents of
        buffers. Runs with ranks or workers must have saved the state after whole batches.
        """
        saved = saved_run(checkpoint)
        if saved is None:
            return None
        bound = self.bind(chunk_samples, seed=seed, epoch=saved.epoch)
        seen = delivered(saved.stream)
        if saved.loader is not None:
            check_loader(saved.loader, self.num_workers, self.batch_size)
            position = bound.first_of_step(saved.loader.batches)
        elif isinstance(bound, OneStream) and self.world_size == 1:
            position = seen or bound.delivered_of(saved.stream)
        elif seen and not self.num_workers:
            position = bound.first_of_step(in_batches(seen, self.batch_size))
        else:
            raise of_one_process()
        return Adopted(self, seed, saved.epoch, position)

    def bind(self, chunk_samples: Any, *, seed: int = 0, epoch: int = 0) -> OneStream | RankStreams:
        """Return the order of one epoch; O(num_shards) time and memory, and the buffers of all workers."""
        samples = check_chunk_samples(chunk_samples)
        num_shards = len(samples)
        if self.strategy == "shards" and num_shards < self.world_size:
            msg = f"strategy='shards' needs a shard for each rank; there are {num_shards} for {self.world_size} ranks"
            raise UsageError(msg, hint="datasets refuses fewer shards, too")
        workers = shards_of_workers(num_shards, self._run, check_seed(seed), check_epoch(epoch))
        streams = [[self._stream(worker, samples) for worker in rank] for rank in workers]
        shared = nodes_share_samples(num_shards, self._run)
        if not self.num_workers and len(streams) == 1:
            return OneStream(self, streams[0][0], workers[0][0].parts, samples)
        return self._of_streams(streams, samples, shared=shared)

    def _stream(self, worker: WorkerShards, shard_samples: NDArray[np.int64]) -> ShuffledStream:
        run = self._run
        chunk_size = 1
        if self.kind == "block" and self.tables:
            chunk_size = max(1, self.buffer_size // run.max_buffer_input_shards)
        turns = ShardTurns(worker.parts, shard_samples, chunk_size)
        buffer = ReservoirBuffer if self.kind == "reservoir" else BlockBuffer
        return ShuffledStream(turns, buffer(turns, self.buffer_size, worker.generator))

    def _of_streams(
        self, of_ranks: list[list[ShuffledStream]], shard_samples: NDArray[np.int64], *, shared: bool
    ) -> RankStreams:
        """Return the order of ranks and workers; ``of_ranks`` has only rank 0 if ranks share the samples of workers."""
        streams: list[list[ShuffledStream | Strided]] = [list(rank) for rank in of_ranks]
        if shared:
            shares = range(self.world_size)
            streams = [[Strided(stream, self.world_size, rank) for stream in of_ranks[0]] for rank in shares]
        width = len(streams[0])
        numbers = np.array([[stream.num_samples for stream in rank] for rank in streams], dtype=np.int64)
        of_shard = np.zeros(len(shard_samples), dtype=np.int64)
        for number, stream in enumerate(stream for rank in of_ranks for stream in rank):
            of_shard[stream.shards] = number
        first_id = chunk_starts(shard_samples)

        def stream_of(ids: NDArray[np.int64]) -> NDArray[np.int64]:
            own = of_shard[np.searchsorted(first_id, ids, side="right") - 1]
            for worker in np.unique(own).tolist() if shared else ():
                rows = own == worker
                own[rows] = worker + of_ranks[0][worker].numbers(ids[rows]) % self.world_size * width
            return own

        flat = [stream for rank in streams for stream in rank]
        batches = LoaderBatches(numbers, self.batch_size)
        return RankStreams(self, batches, flat, shard_samples, stream_of)


class OneStream(PeerEpoch):
    """The order of a run without workers in which all ranks share one stream, sample by sample."""

    def __init__(
        self,
        order: HuggingFace,
        stream: ShuffledStream,
        parts: list[NDArray[np.int64]],
        shard_samples: NDArray[np.int64],
    ) -> None:
        super().__init__(order, shard_samples, stream.num_samples, num_ranks=order.world_size)
        self._stream, self._parts, self._shard_samples = stream, parts, shard_samples
        self._global_batch = order.world_size * order.batch_size

    def _ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids; about 30 ns per id if this call starts at the end of the last call."""
        return self._stream.ids(start, stop)

    def _positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of each sample id, by a scan of the epoch from the earliest id on."""
        return self._stream.numbers(ids)

    def first_of_step(self, step: int) -> int:
        """Return the first position of a step; every rank has a batch in a step."""
        return min(step * self._global_batch, self.num_samples)

    def delivered_of(self, state: Mapping[str, Any]) -> int:
        """Return the number of samples delivered by a run, from the state of its stream; see `huggingface_states`."""
        return only(*self._stream.left_when(arrived(state, self._parts, self._shard_samples)))


class ShuffledStream:
    """The samples of a worker after its shuffle buffer; the last samples are kept for ranks that share the stream."""

    def __init__(self, turns: ShardTurns, buffer: ShuffleBuffer) -> None:
        self._turns, self._buffer, self.num_samples = turns, buffer, turns.num_samples
        self.shards = turns.shards
        self._recent, self._recent_first = np.zeros(0, dtype=np.int64), 0

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids of the samples ``[start, stop)`` of the stream."""
        kept, known = self._recent[:0], self._recent_first + len(self._recent)
        if self._recent_first <= start <= known:
            kept = self._recent[start - self._recent_first :]
        if start + len(kept) < stop:
            new = self._buffer.left(start + len(kept), stop)
            kept = np.concatenate([kept, new]) if len(kept) else new
            self._recent, self._recent_first = kept, start
        return kept[: stop - start]

    def left_when(self, arrived: int) -> tuple[int, int]:
        """Return the minimum and maximum number of emitted samples; see `ShuffleBuffer.left_when`."""
        return self._buffer.left_when(arrived)

    def numbers(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each sample id in the stream, by a scan from the earliest possible number on."""
        begin = self._buffer.earliest(int(self._turns.numbers(ids).min(initial=self.num_samples)))
        return found_by_scan(self._buffer.left, ids, begin, self.num_samples)


class Strided:
    """Every ``step``-th sample of a stream, from sample ``offset`` on."""

    def __init__(self, stream: ShuffledStream, step: int, offset: int) -> None:
        self._stream, self._step, self._offset = stream, step, offset
        self.num_samples = max(0, -(-(stream.num_samples - offset) // step))

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids of the samples ``[start, stop)``."""
        # Request the span of all offsets, so that the streams of other ranks find the samples in the cache.
        end = min(stop * self._step, self._stream.num_samples)
        return self._stream.ids(start * self._step, end)[self._offset :: self._step][: stop - start]

    def numbers(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each sample id of these samples."""
        return (self._stream.numbers(ids) - self._offset) // self._step

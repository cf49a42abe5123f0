"""The shuffled ``IterableDataset`` of Hugging Face ``datasets``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
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
"""The kinds of buffers, and the release of each that is meant where none is named."""

_STRATEGIES = ("auto", "shards", "examples")
_MOST = 2**32 - 1


@dataclass(frozen=True, slots=True)
class HuggingFace:
    """The order of ``IterableDataset.shuffle(seed, buffer_size)`` of Hugging Face ``datasets``, id for id.

    A shard is what it is there: an item of the list in ``gen_kwargs``, or a file of Parquet, JSON or CSV. Epoch ``e``
    is the one that follows ``set_epoch(e)``. With ``workers`` the positions are those of a torch ``DataLoader`` that
    has so many, and with ``ranks`` those of ``split_dataset_by_node``: step by step, in a step the batches of all
    ranks. As many ranks, with batches of the same size, get the samples that they had there.

    Parameters
    ----------
    kind
        "block": the buffer of releases from 5.1 on, of which a half is emptied at a time. "reservoir": that of releases
        to 5.0.
    release
        Release of ``datasets``; if not given, "5.2" for blocks and "4.8" for reservoirs. The order of a seed changed
        with 4.4, 4.6, 5.0 and 5.1.
    buffer_size, max_buffer_input_shards
        As in ``shuffle``. The latter counts from 5.0 on.
    world_size, strategy
        As in ``split_dataset_by_node``: its ``world_size``, and how nodes share.
    num_workers, batch_size
        As in ``DataLoader``: its ``num_workers``, and the batch of one rank.
    tables
        Whether the dataset comes in Arrow tables (files of Parquet, JSON, CSV, ...) rather than example by example
        (from a generator, or after ``map`` with a function of Python). It matters from 5.1 on.

    Raises
    ------
    UsageError
        An argument is out of its range, or the release has a buffer of the other kind.

    Notes
    -----
    Random numbers are those of ``numpy.random.default_rng``, which numpy promises for a version of its own: a change of
    distributions would be in its release notes.

    Every sample comes once in an epoch. Where ranks share the samples of all shards and have no workers, the order is
    global and elastic: any number of ranks can go on with it. Otherwise each worker has a shuffle buffer of its own; at
    another number of ranks the global batches are the same sets, dealt otherwise.

    Memory: 24 bytes for each sample in the buffers of all workers, and for each shard. A seek draws the random numbers
    of all samples before it, the first time: about 2 ns each for reservoirs, and 20 ns for blocks.

    References
    ----------
    ``BufferShuffledExamplesIterable``, ``InterleavedShardsExamplesIterable``, ``StepExamplesIterable`` and
    ``IterableDataset._iter_pytorch`` in ``datasets/iterable_dataset.py``; ``datasets/utils/sharding.py``.

    Examples
    --------
    >>> HuggingFace("reservoir", buffer_size=4).bind([5, 5], seed=42, epoch=1).ids(0, 10).tolist()
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
            raise UsageError(msg, hint="reservoirs are in releases to 5.0, blocks in those from 5.1 on")
        if self.strategy != "auto" and release < (5, 1):
            msg = f"datasets {self.release} has no strategy: nodes share as in 'auto'"
            raise UsageError(msg, hint="leave strategy= out")

    @property
    def name(self) -> str:
        """Name of the order, "hf-block" or "hf-reservoir"."""
        return f"hf-{self.kind}"

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of this order that a state keeps."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "kind"}

    @property
    def _run(self) -> Run:
        shards, strategy = self.max_buffer_input_shards, self.strategy
        return Run(release_of(self.release or ""), shards, self.world_size, self.num_workers, strategy)

    def adopted(self, checkpoint: Mapping[str, Any], chunk_samples: NDArray[np.int64], seed: int) -> Adopted | None:
        """Return where the run goes on that saved the state of an ``IterableDataset`` or a ``StatefulDataLoader``.

        A state has no seed. It must be of a run that was not resumed by `datasets` itself, which loses what is in its
        buffers; and of batches that are whole, where there are ranks or workers.
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
            raise UsageError(msg, hint="datasets refuses that, too")
        made = shards_of_workers(num_shards, self._run, check_seed(seed), check_epoch(epoch))
        streams = [[self._stream(worker, samples) for worker in rank] for rank in made]
        shared = nodes_share_samples(num_shards, self._run)
        if not self.num_workers and len(streams) == 1:
            return OneStream(self, streams[0][0], made[0][0].parts, samples)
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
        self, made: list[list[ShuffledStream]], shard_samples: NDArray[np.int64], *, shared: bool
    ) -> RankStreams:
        """Return the order of ranks and workers; ``made`` has the workers of one rank alone where ranks share them."""
        streams: list[list[ShuffledStream | Strided]] = [list(rank) for rank in made]
        if shared:
            streams = [[Strided(each, self.world_size, rank) for each in made[0]] for rank in range(self.world_size)]
        width = len(streams[0])
        numbers = np.array([[each.num_samples for each in rank] for rank in streams], dtype=np.int64)
        of_shard = np.zeros(len(shard_samples), dtype=np.int64)
        for number, stream in enumerate(stream for rank in made for stream in rank):
            of_shard[stream.shards] = number
        first_id = chunk_starts(shard_samples)

        def stream_of(ids: NDArray[np.int64]) -> NDArray[np.int64]:
            own = of_shard[np.searchsorted(first_id, ids, side="right") - 1]
            for worker in np.unique(own).tolist() if shared else ():
                mine = own == worker
                own[mine] = worker + made[0][worker].numbers(ids[mine]) % self.world_size * width
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
        """Return the sample ids; about 30 ns each where the last call ended."""
        return self._stream.ids(start, stop)

    def _positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of each sample id; it goes through the epoch from the earliest of them."""
        return self._stream.numbers(ids)

    def first_of_step(self, step: int) -> int:
        """Return the first position of a step, in which every rank has a batch."""
        return min(step * self._global_batch, self.num_samples)

    def delivered_of(self, state: Mapping[str, Any]) -> int:
        """Return the samples that a run had delivered by the state of its stream; see `huggingface_states`."""
        return only(*self._stream.left_when(arrived(state, self._parts, self._shard_samples)))


class ShuffledStream:
    """The samples of a worker behind its shuffle buffer. What was asked for last is kept, for ranks that share it."""

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
        """Return the fewest and the most samples that may have left when so many have arrived and one just left."""
        return self._buffer.left_when(arrived)

    def numbers(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number in the stream of each sample id; it goes through the stream from the earliest."""
        begin = self._buffer.earliest(int(self._turns.numbers(ids).min(initial=self.num_samples)))
        return found_by_scan(self._buffer.left, ids, begin, self.num_samples)


class Strided:
    """One of every ``step`` samples of a stream, from sample ``offset`` on."""

    def __init__(self, stream: ShuffledStream, step: int, offset: int) -> None:
        self._stream, self._step, self._offset = stream, step, offset
        self.num_samples = max(0, -(-(stream.num_samples - offset) // step))

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids of the samples ``[start, stop)``."""
        # The span of all offsets: the streams of the other ranks find it there.
        end = min(stop * self._step, self._stream.num_samples)
        return self._stream.ids(start * self._step, end)[self._offset :: self._step][: stop - start]

    def numbers(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each sample id, all of which are in it."""
        return (self._stream.numbers(ids) - self._offset) // self._step

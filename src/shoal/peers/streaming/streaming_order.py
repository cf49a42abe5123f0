"""The order of a run with MosaicML Streaming 0.13.

Streaming makes the ids of an epoch as one array over nodes, ranks, workers and batches, on every node, for every epoch
and every resume. The array is one global order, independent of ranks, workers and batch size (the shuffled ids of
`streaming_shuffles`), and a rule for dealing positions to ranks (`canonical_rows`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.errors import StateError, UsageError
from shoal.hints import did_you_mean
from shoal.order.arrays.vectorized import distinct
from shoal.order.protocol import (
    Adopted,
    Moved,
    check_chunk_samples,
    check_counts,
    check_flags,
    check_streams,
)
from shoal.order.seeds import check_epoch, check_seed
from shoal.peers.peer_epoch import PeerEpoch, first_positions
from shoal.peers.streaming.canonical_rows import Rows, rank_of
from shoal.peers.streaming.stream_batches import BATCHINGS, BatchShape
from shoal.peers.streaming.stream_epochs import StreamEpochs
from shoal.peers.streaming.stream_weights import StreamShare, stream_shares, whole_epoch
from shoal.peers.streaming.streaming_shuffles import ALGORITHMS, Ids, shuffled_ids

PARTITIONS = ("orig", "relaxed")
SAMPLINGS = ("balanced", "fixed")
_CHECKPOINT = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed")


@dataclass(frozen=True, slots=True)
class Streaming:
    """An order of MosaicML Streaming 0.13, id for id.

    The shards of the dataset are shuffled once for the run and cut into as many equal parts as there are canonical
    nodes; in each epoch the shards of every part are shuffled, and samples among them (`algorithm`). Positions
    alternate over the parts. In a run with ``physical_nodes * ranks_per_node`` ranks, each rank gets the same samples
    as in Streaming; at another world size, the global batches are the same sets.

    An epoch has each sample once, and no part of an epoch stays in the order of shards. With ``parity``, an epoch has
    the repeats of the original (for equally many samples on all ranks), and the unshuffled tails of py1br.

    Parameters
    ----------
    algorithm
        ``"py1e"`` (default), ``"py1br"``, ``"py1s"``, ``"py2s"`` or ``"naive"``; Streaming's `shuffle_algo`.
    num_canonical_nodes
        Number of parts. By default the physical nodes at the start of the run, and 64 times as many for py1s and py2s.
    shuffle_block_size
        Samples among which py1e and py1br mix. By default ``max(4_000_000 // num_canonical_nodes, 2**18)``.
    partition
        ``"relaxed"`` (default) or ``"orig"``, Streaming's `partition_algo`. After a change of the number of nodes, only
        "relaxed" works if neither number of physical and canonical nodes divides the other.
    physical_nodes, ranks_per_node
        Nodes and ranks of the run, which determine the rank of a sample.
    initial_physical_nodes
        Nodes at the start of the run, if the number has changed since.
    parity
        True for the repeats and unshuffled tails of the original.
    streams
        A mapping for each stream, in Streaming's order: its number of ``"shards"``, and ``"proportion"``, ``"repeat"``
        or ``"choose"`` of its `Stream`; and ``"first_shard"`` if its shards do not follow the stream before.
        `shoal.open` numbers shards by path. By default all shards are one stream.
    epoch_size
        Samples of an epoch, a number or a text such as ``"100k"``.
    sampling_method, sampling_granularity
        ``"balanced"`` (default) draws different samples of a stream in every epoch, ``"fixed"`` the same samples; the
        granularity is the number of samples per draw.
    batching_method
        ``"random"`` (default), ``"stratified"``, ``"per_stream"`` or ``"device_per_stream"``.
    batch_size
        Samples of a rank's batch, as in `StreamingDataset`; needed for all batchings but ``"random"``.
    shuffle_seed
        Default of the seed. If streams have proportions, give this argument, not ``seed=``: it distributes the rest of
        the rounding.

    Notes
    -----
    The first use makes all ids of an epoch: O(num_samples) time, 4 bytes per sample below 2^31 samples.
    `BoundOrder.positions` makes the inverse, of the same size.

    References
    ----------
    ``streaming/base/batching/random.py``, ``shuffle/`` and ``partition/`` of mosaicml-streaming 0.13.0.

    Examples
    --------
    >>> order = shoal.orders.Streaming("py1s", num_canonical_nodes=2).bind([3, 3, 2], seed=9176, epoch=0)
    >>> order.ids(0, 8).tolist()
    [4, 5, 3, 1, 6, 2, 7, 0]
    """

    name: ClassVar[str] = "streaming"
    version: ClassVar[int] = 1
    moves: ClassVar[Moved] = "shards"

    algorithm: str = "py1e"
    num_canonical_nodes: int | None = None
    shuffle_block_size: int | None = None
    partition: str = "relaxed"
    physical_nodes: int = 1
    ranks_per_node: int = 1
    initial_physical_nodes: int | None = None
    parity: bool = False
    streams: Any = None
    epoch_size: Any = None
    sampling_method: str = "balanced"
    sampling_granularity: int = 1
    batching_method: str = "random"
    batch_size: int | None = None
    shuffle_seed: int = 9176

    def __post_init__(self) -> None:
        check_flags(self)
        _check_choice("algorithm", self.algorithm, ALGORITHMS)
        _check_choice("partition", self.partition, PARTITIONS)
        _check_choice("sampling_method", self.sampling_method, SAMPLINGS)
        _check_choice("batching_method", self.batching_method, BATCHINGS)
        if self.streams is not None:
            object.__setattr__(self, "streams", stream_shares(self.streams))
        if self.epoch_size is not None:
            object.__setattr__(self, "epoch_size", whole_epoch(self.epoch_size))
        check_counts(
            self,
            physical_nodes=1,
            ranks_per_node=1,
            sampling_granularity=1,
            num_canonical_nodes=1,
            shuffle_block_size=1,
            initial_physical_nodes=1,
            batch_size=1,
            epoch_size=1,
        )
        check_streams(physical_nodes=self.physical_nodes, ranks_per_node=self.ranks_per_node)
        check_streams(num_canonical_nodes=self.canonical_nodes)
        check_streams(initial_physical_nodes=self.initial_physical_nodes or 1)
        nodes = self.dealing_nodes
        if nodes % self.canonical_nodes and self.canonical_nodes % nodes:
            msg = f"{nodes} physical nodes and {self.canonical_nodes} canonical nodes do not divide each other"
            hint = "give the nodes at the start of the run as initial_physical_nodes="
            raise UsageError(msg, hint=f"{hint}; partition='orig' does not take these numbers")
        if self.batching_method != "random" and self.batch_size is None:
            msg = f"batching_method={self.batching_method!r} needs batch_size=, the samples of a rank's batch"
            raise UsageError(msg)
        if self.batching_method == "device_per_stream" and self.canonical_nodes % self.physical_nodes:
            msg = "device_per_stream needs physical nodes that divide the canonical nodes; "
            msg += f"got {self.physical_nodes} and {self.canonical_nodes}"
            raise UsageError(msg)

    @property
    def default_seed(self) -> int:
        """Seed if no seed is given."""
        return self.shuffle_seed

    @property
    def has_streams(self) -> bool:
        """True if epochs are made from streams, or differ from the dataset in size."""
        return self.streams is not None or self.epoch_size is not None or self.batching_method != "random"

    @property
    def canonical_nodes(self) -> int:
        """Number of canonical nodes, the default resolved."""
        if self.num_canonical_nodes is not None:
            return self.num_canonical_nodes
        nodes = self.initial_physical_nodes or self.physical_nodes
        return 64 * nodes if self.algorithm in ("py1s", "py2s") else nodes

    @property
    def block_size(self) -> int:
        """Samples of a shuffle block, the default resolved."""
        return self.shuffle_block_size or max(4_000_000 // self.canonical_nodes, 1 << 18)

    @property
    def dealing_nodes(self) -> int:
        """Nodes over which positions alternate: initial nodes if current nodes do not fit canonical nodes."""
        nodes, canonical = self.physical_nodes, self.canonical_nodes
        fits = canonical % nodes == 0 or nodes % canonical == 0
        return nodes if fits or self.partition == "orig" else self.initial_physical_nodes or nodes

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of this order that a state keeps, defaults resolved."""
        return {
            "algorithm": self.algorithm,
            "num_canonical_nodes": self.canonical_nodes,
            "shuffle_block_size": self.block_size,
            "partition": self.partition,
            "physical_nodes": self.physical_nodes,
            "ranks_per_node": self.ranks_per_node,
            "initial_physical_nodes": self.initial_physical_nodes or self.physical_nodes,
            "parity": self.parity,
            **(self._of_streams if self.has_streams else {}),
        }

    @property
    def _of_streams(self) -> dict[str, Any]:
        streams = self.streams and [share.to_dict() for share in self.streams]
        return {
            "streams": streams,
            "epoch_size": self.epoch_size,
            "sampling_method": self.sampling_method,
            "sampling_granularity": self.sampling_granularity,
            "batching_method": self.batching_method,
            "batch_size": self.batch_size,
            "shuffle_seed": self.shuffle_seed,
        }

    def stream_epochs(self, shard_samples: NDArray[np.int64]) -> StreamEpochs:
        """Return the epochs of this order's streams."""
        return StreamEpochs(
            shard_samples,
            self.streams or (StreamShare(len(shard_samples)),),
            epoch_size=self.epoch_size,
            granularity=self.sampling_granularity,
            is_fixed=self.sampling_method == "fixed",
            batching=self.batching_method,
            seed=self.shuffle_seed,
        )

    @property
    def batch_shape(self) -> BatchShape:
        """Shape of the batches of streams."""
        nodes, ranks = self.dealing_nodes, self.ranks_per_node
        return BatchShape(self.canonical_nodes, nodes, ranks, self.batch_size or 1, self.parity)

    def shuffled(self, shard_samples: NDArray[np.int64], seed: int, epoch: int, block_size: int | None = None) -> Ids:
        """Return the shuffled ids of shards, or of units instead of shards."""
        return shuffled_ids(
            self.algorithm,
            shard_samples,
            self.canonical_nodes,
            seed=seed,
            epoch=epoch,
            block_size=self.block_size if block_size is None else block_size,
            mends_tails=not self.parity,
        )

    def rows(self, num_samples: int) -> Rows:
        """Return the rows of canonical nodes of an epoch with this number of samples."""
        if not self.parity:
            return Rows.once(num_samples, self.canonical_nodes)
        nodes, ranks = self.dealing_nodes, self.ranks_per_node
        return Rows.padded(num_samples, self.canonical_nodes, num_nodes=nodes, ranks_per_node=ranks)

    def num_positions(self, chunk_samples: NDArray[np.int64]) -> int:
        """Return the number of positions of an epoch, with repeats."""
        if not self.has_streams:
            return len(self.rows(int(chunk_samples.sum())))
        streams = self.stream_epochs(chunk_samples)
        if self.batching_method == "random":
            return len(self.rows(int(streams.amounts.choose.sum())))
        return streams.num_batched(self.batch_shape)

    def bind(self, chunk_samples: Any, *, seed: int | None = None, epoch: int = 0) -> StreamingEpoch:
        """Return the order of one epoch; its ids are computed on first use."""
        seed, epoch = check_seed(self.shuffle_seed if seed is None else seed), check_epoch(epoch)
        if seed != self.shuffle_seed and self.has_streams:
            msg = f"streams are apportioned with shuffle_seed={self.shuffle_seed}; the seed is {seed}"
            raise UsageError(msg, hint=f"give shuffle_seed={seed}, and no seed=")
        return StreamingEpoch(self, check_chunk_samples(chunk_samples), seed, epoch)

    def adopted(self, checkpoint: Mapping[str, Any], chunk_samples: NDArray[np.int64], seed: int) -> Adopted | None:
        """Return the start of a run by a checkpoint of ``StreamingDataset`` or ``StreamingDataLoader``.

        The numbers of the checkpoint replace the defaults of this order. Without ``parity``, the position is the number
        of distinct samples in the run.

        Raises
        ------
        StateError
            The checkpoint has another seed or number of canonical nodes, or, without ``parity``, the samples of the run
            are not the first samples of an epoch without repeats.
        """
        if not all(type(checkpoint.get(name)) is int for name in _CHECKPOINT):
            return None
        epoch, position, nodes, its_seed = (int(checkpoint[name]) for name in _CHECKPOINT)
        if seed not in (self.default_seed, its_seed) or self.num_canonical_nodes not in (None, nodes):
            msg = f"the checkpoint is of shuffle_seed={its_seed} and num_canonical_nodes={nodes}; this stream has "
            msg += f"{seed} and {self.canonical_nodes}"
            raise StateError(msg, hint="leave out both in shuffle() to use the numbers of the checkpoint")
        initial = checkpoint.get("initial_physical_nodes") or self.initial_physical_nodes
        order = replace(self, num_canonical_nodes=nodes, initial_physical_nodes=initial, shuffle_seed=its_seed)
        # Streaming rounds down, too.
        position -= position % (
            order.dealing_nodes if self.batching_method == "random" else order.batch_shape.global_batch
        )
        if not self.parity:
            position = order.position_without_repeats(chunk_samples, its_seed, epoch, position)
        return Adopted(order, its_seed, epoch, min(position, order.num_positions(chunk_samples)))

    def position_without_repeats(self, chunk_samples: NDArray[np.int64], seed: int, epoch: int, position: int) -> int:
        """Return the position with the same earlier samples as ``position`` in the original.

        O(1) before the last column of canonical nodes, unless tails differ. Raises `StateError` without such a
        position.
        """
        theirs = replace(self, parity=True).bind(chunk_samples, seed=seed, epoch=epoch)
        ours = self.bind(chunk_samples, seed=seed, epoch=epoch)
        if self.algorithm != "py1br" and position <= min(theirs.num_alike, ours.num_alike):
            return position
        seen = np.sort(theirs.ids(0, min(position, theirs.num_samples)))
        if not self.has_streams:  # samples of streams may repeat anyway
            seen = distinct(seen)
        if not np.array_equal(seen, np.sort(ours.ids(0, min(len(seen), ours.num_samples)))):
            msg = f"up to sample {position} of epoch {epoch}, Streaming had repeats or an unshuffled tail"
            raise StateError(msg, hint="parity=True continues in Streaming's order to the end, repeats included")
        return len(seen)


class StreamingEpoch(PeerEpoch):
    """The order of one epoch of Streaming."""

    def __init__(self, order: Streaming, shard_samples: NDArray[np.int64], seed: int, epoch: int) -> None:
        super().__init__(order, shard_samples, order.num_positions(shard_samples))
        self._order, self._shard_samples, self._seed, self._epoch = order, shard_samples, seed, epoch
        whole = Rows(np.zeros(1, dtype=np.int64), self.num_samples, np.zeros(0, dtype=np.int64))
        sizes = order.stream_epochs(shard_samples).amounts.choose if order.has_streams else shard_samples
        self._rows = order.rows(int(sizes.sum())) if order.batching_method == "random" else whole
        self.num_canonical_nodes = order.canonical_nodes

    @property
    def num_alike(self) -> int:
        """Positions that do not depend on repeats."""
        is_batched = self._order.batching_method != "random"
        return 0 if is_batched else len(self._rows.starts) * self._rows.width

    @cached_property
    def _ids_of_numbers(self) -> Ids:
        """Id of each sample number: the ids of canonical node 0, then of node 1, and so on."""
        order, seeds = self._order, (self._seed, self._epoch)
        if not order.has_streams:
            return order.shuffled(self._shard_samples, *seeds)
        streams = order.stream_epochs(self._shard_samples)
        if order.batching_method == "random":
            units, ids = streams.joined(self._epoch)
            return ids[order.shuffled(units, *seeds)]
        blocks = [int(order.block_size * part) for part in streams.amounts.proportions]
        drawn = zip(streams.each(self._epoch), blocks, strict=True)
        shuffled = [ids[order.shuffled(units, *seeds, block)] for (units, ids), block in drawn]
        return streams.batched(order.batch_shape, shuffled, self._epoch)

    @cached_property
    def _first_positions(self) -> Ids:
        return first_positions(self, self._num_stored)

    def _ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids; up to 10 ns per id after the first call."""
        has_one_row = len(self._rows.starts) == 1 and stop <= self._rows.width  # then numbers are positions
        ids = self._ids_of_numbers[slice(start, stop) if has_one_row else self._rows.numbers(start, stop)]
        return ids.astype(np.int64)

    def _positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._first_positions[ids].astype(np.int64)

    def _rank_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        order = self._order
        if order.batching_method in ("stratified", "device_per_stream"):  # ranks have batches one after another
            shape = order.batch_shape
            return positions % shape.global_batch // shape.batch_size
        return rank_of(positions, order.dealing_nodes, order.ranks_per_node)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        msg = f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}"
        raise UsageError(msg, hint=did_you_mean(str(value), choices).rstrip())

"""The order of a run with MosaicML Streaming 0.13.

Streaming makes the ids of an epoch as one array over nodes, ranks, workers and batches, on every node, for every epoch
and every resume. All of it is one global order, which does not depend on ranks, workers and batch size, and a rule that
says which rank gets which of its positions: `canonical_rows` and the shuffled ids of `streaming_shuffles`.
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
from shoal.order.peers.streaming.canonical_rows import Rows, rank_of
from shoal.order.peers.streaming.streaming_shuffles import ALGORITHMS, Ids, shuffled_ids
from shoal.order.protocol import Adopted, Moved, as_ids, as_span, as_whole, check_chunk_samples, chunk_starts
from shoal.order.seeds import check_epoch, check_seed

PARTITIONS = ("orig", "relaxed")
_CHECKPOINT = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed")
_SPAN = 1 << 17


@dataclass(frozen=True, slots=True)
class Streaming:
    """An order of MosaicML Streaming 0.13, id for id.

    The shards of the dataset are shuffled once for the run and cut into as many equal parts as there are canonical
    nodes; in each epoch the shards of every part are shuffled, and samples among them (`algorithm`). Positions
    alternate over the parts. A run with ``physical_nodes * ranks_per_node`` ranks gives each rank what it had in
    Streaming; at another world size global batches are the same sets.

    An epoch has each sample once, and no part of it stays in the order of shards. With ``parity`` it has the repeats of
    the original, with which all ranks get equally many, and its unshuffled tails under py1br.

    Parameters
    ----------
    algorithm
        ``"py1e"`` (default), ``"py1br"``, ``"py1s"``, ``"py2s"`` or ``"naive"``; `shuffle_algo` there.
    num_canonical_nodes
        Parts. By default the physical nodes at the start of the run, and 64 times as many for py1s and py2s.
    shuffle_block_size
        Samples among which py1e and py1br mix. By default ``max(4_000_000 // num_canonical_nodes, 2**18)``.
    partition
        ``"relaxed"`` (default) or ``"orig"``, `partition_algo` there. Only relaxed takes physical nodes that neither
        divide the canonical nodes nor are divided by them, if the run began on others.
    physical_nodes, ranks_per_node
        Nodes and ranks of the run, which decide who gets a sample.
    initial_physical_nodes
        Nodes at the start of the run, if it goes on with others.
    parity
        Whether repeats and unshuffled tails are those of the original.

    Notes
    -----
    The ids of an epoch are made at once, when the first is asked for: O(num_samples) time, 4 bytes a sample below 2^31
    samples. `BoundOrder.positions` makes their inverse, of the same size.

    References
    ----------
    ``streaming/base/batching/random.py``, ``shuffle/`` and ``partition/`` of mosaicml-streaming 0.13.0.

    >>> order = Streaming("py1s", num_canonical_nodes=2).bind([3, 3, 2], seed=9176, epoch=0)
    >>> order.ids(0, 8).tolist()
    [4, 5, 3, 1, 6, 2, 7, 0]
    """

    name: ClassVar[str] = "streaming"
    version: ClassVar[int] = 1
    moves: ClassVar[Moved] = "shards"
    default_seed: ClassVar[int] = 9176

    algorithm: str = "py1e"
    num_canonical_nodes: int | None = None
    shuffle_block_size: int | None = None
    partition: str = "relaxed"
    physical_nodes: int = 1
    ranks_per_node: int = 1
    initial_physical_nodes: int | None = None
    parity: bool = False

    def __post_init__(self) -> None:
        _check_choice("algorithm", self.algorithm, ALGORITHMS)
        _check_choice("partition", self.partition, PARTITIONS)
        for name in ("physical_nodes", "ranks_per_node"):
            object.__setattr__(self, name, _positive(name, getattr(self, name)))
        for name in ("num_canonical_nodes", "shuffle_block_size", "initial_physical_nodes"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _positive(name, getattr(self, name)))
        nodes = self.dealing_nodes
        if nodes % self.canonical_nodes and self.canonical_nodes % nodes:
            msg = f"{nodes} physical nodes and {self.canonical_nodes} canonical nodes do not divide each other"
            hint = "give the nodes that the run began with as initial_physical_nodes="
            raise UsageError(msg, hint=f"{hint}; partition='orig' takes no such numbers")

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
        """Nodes over which positions alternate: those of the start if the present ones do not fit canonical nodes."""
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
        }

    def rows(self, num_samples: int) -> Rows:
        """Return the rows of canonical nodes of an epoch of so many samples."""
        if not self.parity:
            return Rows.once(num_samples, self.canonical_nodes)
        nodes, ranks = self.dealing_nodes, self.ranks_per_node
        return Rows.padded(num_samples, self.canonical_nodes, num_nodes=nodes, ranks_per_node=ranks)

    def num_positions(self, chunk_samples: NDArray[np.int64]) -> int:
        """Return the number of positions of an epoch, with repeats."""
        return len(self.rows(int(chunk_samples.sum())))

    def bind(self, chunk_samples: Any, *, seed: int = 9176, epoch: int = 0) -> StreamingEpoch:
        """Return the order of one epoch of a dataset with these samples in each shard; its ids are made when used."""
        return StreamingEpoch(self, check_chunk_samples(chunk_samples), check_seed(seed), check_epoch(epoch))

    def adopted(self, checkpoint: Mapping[str, Any], chunk_samples: NDArray[np.int64], seed: int) -> Adopted | None:
        """Return where a run goes on by a checkpoint of ``StreamingDataset`` or ``StreamingDataLoader``.

        Its numbers hold where this order leaves them to their defaults. Without ``parity``, the position is the number
        of different samples that the run had.

        Raises
        ------
        StateError
            The checkpoint is of another seed or number of canonical nodes, or, without ``parity``, the samples that
            were seen are not the first of an epoch without repeats.
        """
        if not all(type(checkpoint.get(name)) is int for name in _CHECKPOINT):
            return None
        epoch, position, nodes, its_seed = (int(checkpoint[name]) for name in _CHECKPOINT)
        if seed not in (self.default_seed, its_seed) or self.num_canonical_nodes not in (None, nodes):
            msg = f"the checkpoint is of shuffle_seed={its_seed} and num_canonical_nodes={nodes}; this stream has "
            msg += f"{seed} and {self.canonical_nodes}"
            raise StateError(msg, hint="leave them out of shuffle(), and those of the checkpoint hold")
        initial = checkpoint.get("initial_physical_nodes") or self.initial_physical_nodes
        order = replace(self, num_canonical_nodes=nodes, initial_physical_nodes=initial)
        position -= position % order.dealing_nodes  # so it does
        if not self.parity:
            position = order.position_without_repeats(chunk_samples, its_seed, epoch, position)
        return Adopted(order, its_seed, epoch, min(position, order.num_positions(chunk_samples)))

    def position_without_repeats(self, chunk_samples: NDArray[np.int64], seed: int, epoch: int, position: int) -> int:
        """Return the position of this order before which it has what the original has before ``position``.

        O(1) before the last column of canonical nodes, unless tails differ. Raises `StateError` if there is none.
        """
        theirs = replace(self, parity=True).bind(chunk_samples, seed=seed, epoch=epoch)
        ours = self.bind(chunk_samples, seed=seed, epoch=epoch)
        if self.algorithm != "py1br" and position <= min(theirs.num_alike, ours.num_alike):
            return position
        seen = np.unique(theirs.ids(0, min(position, theirs.num_samples)))
        if not np.array_equal(seen, np.sort(ours.ids(0, len(seen)))):
            msg = f"up to sample {position} of epoch {epoch}, Streaming had repeats or an unshuffled tail"
            raise StateError(msg, hint="parity=True goes on with its order to the end, repeats included")
        return len(seen)


class StreamingEpoch:
    """The order of one epoch of Streaming."""

    version = Streaming.version
    span = _SPAN

    def __init__(self, order: Streaming, shard_samples: NDArray[np.int64], seed: int, epoch: int) -> None:
        self._order, self._shard_samples, self._seed, self._epoch = order, shard_samples, seed, epoch
        self._rows = order.rows(int(shard_samples.sum()))
        self._shard_first_id = chunk_starts(shard_samples)
        self.num_samples = len(self._rows)
        self.num_canonical_nodes = order.canonical_nodes
        self.parameters = order.parameters

    @property
    def num_alike(self) -> int:
        """Positions that do not depend on repeats."""
        return len(self._rows.starts) * self._rows.width

    @cached_property
    def _ids(self) -> Ids:
        """The id of each sample number: the ids of canonical node 0, of node 1, and so on."""
        order = self._order
        return shuffled_ids(
            order.algorithm,
            self._shard_samples,
            order.canonical_nodes,
            seed=self._seed,
            epoch=self._epoch,
            block_size=order.block_size,
            mends_tails=not order.parity,
        )

    @cached_property
    def _numbers(self) -> Ids:
        """The sample number of each id."""
        numbers = np.empty_like(self._ids)
        numbers[self._ids] = np.arange(len(numbers), dtype=numbers.dtype)
        return numbers

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the ids at positions ``[start, stop)``; 10 ns each after the first call."""
        found: NDArray[np.int64] = self._ids[self._rows.numbers(*as_span(start, stop, self.num_samples))].astype(
            np.int64
        )
        return found

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids at positions ``[start, stop)`` and the shard of each."""
        ids = self.ids(start, stop)
        return ids, np.searchsorted(self._shard_first_id, ids, side="right") - 1

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the first position of each id."""
        wanted = as_ids(ids, int(self._shard_first_id[-1]))
        return self._rows.positions(self._numbers[wanted].astype(np.int64))

    def axis(
        self,
        positions: NDArray[np.int64],
        chunks: NDArray[np.int64],  # noqa: ARG002
        batches: NDArray[np.int64],  # noqa: ARG002
    ) -> NDArray[np.uint64]:
        """Return the rank that has each position."""
        order = self._order
        return rank_of(positions, order.dealing_nodes, order.ranks_per_node).astype(np.uint64)


def _positive(name: str, value: Any) -> int:
    number = as_whole(name, value)
    if number < 1:
        msg = f"{name} must be at least 1; got {number}"
        raise UsageError(msg)
    return number


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        msg = f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}"
        raise UsageError(msg, hint=did_you_mean(str(value), choices).rstrip())

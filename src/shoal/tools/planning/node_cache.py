"""Predict the reads that reach the store through a chunk cache in each node.

A cache fetches a chunk once for all ranks of its node. If the budget does not hold all reads of a node, the cache is
replayed over the simulated uses, by its own rules of admission and eviction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.order.orders_without_window import Full
from shoal.storage.chunk_cache.chunk_files import FOOTER_BYTES
from shoal.storage.chunk_cache.eviction import Chunk, eviction_order, guard_bytes_of, is_admitted, num_victims, watch
from shoal.storage.chunk_cache.ledger import BASE_BYTES, Book, charge_bytes
from shoal.tools.planning.chunk_uses import ChunkUses
from shoal.tools.planning.request_model import from_all_over
from shoal.tools.planning.simulated_reads import ClusterReads, NodeReads

_MOST_USES = 1 << 17  # replayed over several nodes: 2 s
_CHUNKS_OF_A_MODEL = 4096  # of a model node


class EpochReads(NamedTuple):
    """Reads of an epoch that reach the store, over all nodes."""

    num_reads: float
    num_bytes: float


class NodeCache:
    """A replayed chunk cache of a node; its ranks share ``window_bytes`` at a time.

    >>> cache = NodeCache(10 << 20, 0)
    >>> [cache.read(chunk, 1 << 20) for chunk in (1, 2, 1)]
    [True, True, False]
    """

    def __init__(self, budget_bytes: int, window_bytes: int) -> None:
        self._book = Book(budget_bytes=budget_bytes)
        self._guard_bytes = guard_bytes_of(budget_bytes, window_bytes)
        self._kept: dict[int, Chunk] = {}
        self._used: set[int] = set()
        self._victims: list[Chunk] = []
        self._num_made = 0

    def read(self, chunk: int, num_bytes: int) -> bool:
        """Read a chunk; return True if the cache lacks it."""
        if chunk in self._kept:
            self._used.add(chunk)
            return False
        charge = charge_bytes(num_bytes + FOOTER_BYTES)
        scattered = chunk * 2654435761 >> 16  # replaces the hash of the name
        if is_admitted(self._book, charge, scattered) and self._makes_room(charge):
            self._num_made += 1
            self._kept[chunk] = Chunk(f"{chunk:016x}", self._num_made, num_bytes + FOOTER_BYTES, chunk)
            self._book.used_bytes += charge
        return True

    def _makes_room(self, charge: int) -> bool:
        book = self._book
        while book.used_bytes + charge > book.budget_bytes:
            if not self._victims:
                order = eviction_order(list(self._kept.values()), last_used={}, guard_bytes=self._guard_bytes)
                self._victims = order[: num_victims(len(self._kept))][::-1]
                if not self._victims:
                    return False
            victim = self._victims.pop()
            if self._kept.get(victim.inode) is victim:
                del self._kept[victim.inode]
                book.used_bytes -= charge_bytes(victim.num_bytes)
                watch(book, was_used=victim.inode in self._used)
                self._used.discard(victim.inode)
        return True


def node_window_bytes(*, chunks: int, mean_bytes: float, ranks_per_node: int, world_size: int) -> int:
    """Return the bytes that the ranks of a node share at a time: the least budget of a chunk cache."""
    return math.ceil(chunks * mean_bytes * ranks_per_node / world_size)


def fullest_node_bytes(epochs: Sequence[ClusterReads], chunk_bytes: NDArray[np.int64], *, scale: float = 1.0) -> float:
    """Return the budget that holds all reads of the fullest node; ``scale`` as in `cached_reads`."""
    num_nodes = len(epochs[0].by_node.uses.samples_of_rank)
    charges = _charges(chunk_bytes)
    if not all(epoch.is_exact for epoch in epochs):
        num_reads = epochs[0].by_node.num_reads * scale * sum(share.num_reads for share in _new_shares(epochs, None))
        return BASE_BYTES + num_reads / num_nodes * float(charges.mean())
    pairs = np.zeros(0, dtype=np.int64)
    for epoch in epochs:
        pairs = _united(pairs, _pairs(epoch.by_node, len(chunk_bytes)))
    of_node = np.bincount(pairs // len(chunk_bytes), weights=charges[pairs % len(chunk_bytes)])
    return BASE_BYTES + float(of_node.max())


def cached_reads(
    epochs: Sequence[ClusterReads],
    chunk_bytes: NDArray[np.int64],
    *,
    ranks_per_node: int,
    budget_bytes: int,
    window_bytes: int,
    scale: float = 1.0,
) -> list[EpochReads]:
    """Return the reads of the first epochs that reach the store, with an empty cache in each node at the start.

    The ranks of a node share ``window_bytes`` at a time, and keep in step. Each chunk of ``chunk_bytes`` stands for
    ``scale`` chunks. If the caches hold all reads, the new chunks of each epoch are read. Otherwise the caches of some
    nodes are replayed. If epochs were simulated in part, or a node has more than 65,536 uses per epoch, a model node
    with up to 4096 chunks in random order is replayed.

    >>> from shoal.order.window.order import Window
    >>> from shoal.order.partition import Partition
    >>> from shoal.tools.planning.simulated_reads import simulate_reads
    >>> chunks = np.full(200, 50), np.full(200, 6000)
    >>> epochs = [simulate_reads(Window(32, 4), *chunks, Partition(64, 8), ranks_per_node=4, epoch=e) for e in (0, 1)]
    >>> fetched = cached_reads(epochs, chunks[1], ranks_per_node=4, budget_bytes=4 << 20, window_bytes=100_000)
    >>> [reads.num_reads for reads in fetched]
    [200.0, 0.0]
    """
    if fullest_node_bytes(epochs, chunk_bytes, scale=scale) <= budget_bytes:
        shares = _new_shares(epochs, chunk_bytes if all(epoch.is_exact for epoch in epochs) else None)
    elif (uses := _uses_to_replay(epochs)) is not None:
        shares = _replayed(uses, chunk_bytes, ranks_per_node, budget_bytes, window_bytes)
    else:
        shares = _modelled(epochs, float(chunk_bytes.mean()), budget_bytes, window_bytes, scale)
    return [
        EpochReads(epoch.by_node.num_reads * scale * share.num_reads, epoch.by_node.num_bytes * scale * share.num_bytes)
        for epoch, share in zip(epochs, shares, strict=True)
    ]


def _uses_to_replay(epochs: Sequence[ClusterReads]) -> list[ChunkUses] | None:
    """Return the uses of each epoch; None if they are unknown, or too many for one node."""
    uses = [epoch.uses for epoch in epochs if epoch.uses is not None]
    num_nodes = len(epochs[0].by_node.uses.samples_of_rank)
    is_short = sum(len(of_epoch.ranks) for of_epoch in uses) <= _MOST_USES * num_nodes
    return uses if is_short and len(uses) == len(epochs) else None


def _charges(chunk_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the space of each chunk in a cache."""
    sizes, at = np.unique(chunk_bytes, return_inverse=True)
    return np.array([charge_bytes(size + FOOTER_BYTES) for size in sizes.tolist()])[at]


def _pairs(reads: NodeReads, num_chunks: int) -> NDArray[np.int64]:
    return reads.uses.ranks * num_chunks + reads.uses.chunks


def _united(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    # Sorting, because `numpy.union1d` hashes: 3 s for 2 million numbers.
    both: NDArray[np.int64] = np.sort(np.concatenate([first, second]))
    is_first: NDArray[np.bool_] = np.diff(both, prepend=-1) > 0
    return both[is_first]


def _new_shares(epochs: Sequence[ClusterReads], chunk_bytes: NDArray[np.int64] | None) -> list[EpochReads]:
    """Return the share of new reads, and of their bytes, in each epoch: no earlier epoch had them on the same node."""
    num_chunks = 1 + max(int(epoch.by_node.uses.chunks.max(initial=0)) for epoch in epochs)
    before, shares = np.zeros(0, dtype=np.int64), []
    for epoch in epochs:
        pairs = _pairs(epoch.by_node, num_chunks)
        is_new = ~np.isin(pairs, before, assume_unique=True)
        before = _united(before, pairs)
        of_bytes = is_new.mean() if chunk_bytes is None else np.average(is_new, weights=chunk_bytes[pairs % num_chunks])
        shares.append(EpochReads(float(is_new.mean()), float(of_bytes)))
    return shares


def _replayed(
    epochs: Sequence[ChunkUses],
    chunk_bytes: NDArray[np.int64],
    ranks_per_node: int,
    budget_bytes: int,
    window_bytes: int,
) -> list[EpochReads]:
    """Replay the caches of evenly sampled nodes; return their fetches relative to one fetch per chunk and node."""
    num_nodes = -(-len(epochs[0].samples_of_rank) // ranks_per_node)
    fetched, ideal = np.zeros((len(epochs), 2)), np.zeros((len(epochs), 2))
    num_uses = 0
    for node in from_all_over(num_nodes):
        cache = NodeCache(budget_bytes, window_bytes)
        for epoch, uses in enumerate(epochs):
            begin, end = np.searchsorted(uses.ranks, [node * ranks_per_node, (node + 1) * ranks_per_node])
            chunks = uses.chunks[begin:end][np.argsort(uses.first[begin:end], kind="stable")]
            sizes = chunk_bytes[chunks]
            is_read = np.fromiter(map(cache.read, chunks.tolist(), sizes.tolist()), dtype=bool, count=len(chunks))
            fetched[epoch] += np.count_nonzero(is_read), sizes[is_read].sum()
            distinct = np.unique(chunks)
            ideal[epoch] += len(distinct), chunk_bytes[distinct].sum()
            num_uses += len(chunks)
        if num_uses >= _MOST_USES:
            break
    return [EpochReads(*shares) for shares in (fetched / np.maximum(1, ideal)).tolist()]


def _modelled(
    epochs: Sequence[ClusterReads], mean_bytes: float, budget_bytes: int, window_bytes: int, scale: float
) -> list[EpochReads]:
    """Replay the cache of a smaller node with a proportional budget; return its fetches as `_replayed` does."""
    reads = epochs[0].by_node
    of_node = reads.num_reads * scale / len(reads.uses.samples_of_rank)
    num_chunks = max(1, min(_CHUNKS_OF_A_MODEL, round(of_node)))
    part = num_chunks / of_node
    cache = NodeCache(round(BASE_BYTES + (budget_bytes - BASE_BYTES) * part), round(window_bytes * part))
    known, shares = 0, []
    for epoch, share in enumerate(_new_shares(epochs, None)):
        num_new = round(share.num_reads * num_chunks)
        old = _permuted(known, 2 * epoch)[: num_chunks - num_new]
        chunks = np.concatenate([old, known + np.arange(num_new)])[_permuted(len(old) + num_new, 2 * epoch + 1)]
        is_shared = np.diff(np.floor(np.arange(len(chunks) + 1) * reads.shared)) > 0  # a second rank uses the chunk
        uses = np.repeat(chunks, 1 + is_shared).tolist()
        shares.append(sum(cache.read(chunk, round(mean_bytes)) for chunk in uses) / len(chunks))
        known += num_new
    return [EpochReads(share, share) for share in shares]


def _permuted(number: int, seed: int) -> NDArray[np.int64]:
    return Full().bind([number], seed=seed).ids(0, number)

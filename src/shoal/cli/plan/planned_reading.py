"""The reading of planned data in an order: what a plan asks of a dataset and of a mixture alike."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.index.cutting import ChunkTable
from shoal.order.orders_without_window import Block
from shoal.order.partition import Partition
from shoal.order.window.order import Window
from shoal.quality.prediction import ChunkLayout, predicted_variance_ratio
from shoal.reading.schedule.lifetimes import span_positions
from shoal.reading.schedule.memory_ledger import ahead_limit_bytes
from shoal.reading.schedule.read_requests import RequestSizes, request_sizes
from shoal.reading.schedule.units import ChunkUnits
from shoal.tools.planning.rank_memory import SpannedOrder
from shoal.tools.planning.request_model import likely_requests_for_each_read, parts_of_each_read, requests_for_each_read
from shoal.tools.planning.simulated_reads import ClusterReads, simulate_reads
from shoal.tools.planning.sizing import Cluster


class PlannedOrder(SpannedOrder, Protocol):
    """An order that uses some chunks at a time."""

    @property
    def chunks(self) -> int:
        """Chunks that mix at a time."""
        ...

    def span_starts(self, num_samples: int) -> range:
        """Return the first positions of the spans made while samples are delivered."""
        ...


class PlannedReading(Protocol):
    """The reading of data in an order, by the ranks of a cluster."""

    @property
    def largest_batch(self) -> int:
        """Samples that a batch must have fewer of, for its VR to be predicted."""
        ...

    @property
    def num_canonical_nodes(self) -> int:
        """Canonical nodes by which batches are dealt to ranks."""
        ...

    @property
    def window_bytes(self) -> float:
        """Bytes of the chunks that mix at a time, as they are read."""
        ...

    @property
    def plans_cache(self) -> bool:
        """True if chunk caches can be planned."""
        ...

    @property
    def notes(self) -> list[str]:
        """Sentences about these figures, beside those about all plans."""
        ...

    def reads(self, cluster: Cluster, *, epoch: int = 0) -> ClusterReads:
        """Simulate the reads of an epoch."""
        ...

    def variance_ratio(self, batch: int, *, rho: float) -> float:
        """Return the predicted VR of batches of this size."""
        ...

    def requests_for_each_read(self, reads: ClusterReads, cluster: Cluster) -> float:
        """Return the requests per chunk that is read: neighbours share one, and large chunks take several."""
        ...

    def ahead_bytes(self, *, is_remote: bool) -> int:
        """Return the bytes that a rank reads ahead at most."""
        ...

    def num_looks(self, num_reads: float, world_size: int) -> float:
        """Count the requests by which ranks check that shards match the index: one per rank and shard that it reads."""
        ...

    def options(self, *, window: float = 1.0, chunk: float = 1.0) -> dict[str, Any] | None:
        """Return the options that ask for the order, with the window and the chunks larger by these factors.

        None if no options do.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DatasetReading:
    """The reading of one dataset; ``table`` locates its chunks, and ``shard_chunks`` counts them, where that is known.

    ``chunk_samples`` and ``chunk_bytes`` are those of all ``num_chunks``, or of a model with fewer.
    ``asked_chunk_bytes`` and ``asked_window_bytes`` ask for these chunks in this window.
    """

    order: Window | Block
    chunk_samples: NDArray[np.int64]
    chunk_bytes: NDArray[np.int64]
    num_chunks: int
    mean_held_bytes: float
    largest_held_bytes: float
    asked_chunk_bytes: int
    asked_window_bytes: int
    shard_chunks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    table: ChunkTable | None = None
    plans_cache: bool = True

    @property
    def largest_batch(self) -> int:
        """Samples of all chunks that are laid out."""
        return int(self.chunk_samples.sum())

    @property
    def num_canonical_nodes(self) -> int:
        """Canonical nodes by which batches are dealt to ranks."""
        return self.order.resolved_nodes if isinstance(self.order, Window) else 1

    @property
    def window_bytes(self) -> float:
        """Bytes of the chunks that mix at a time, as they are read."""
        return self.order.chunks * float(self.chunk_bytes.mean())

    @property
    def notes(self) -> list[str]:
        """No sentences beside those about all plans."""
        return []

    def reads(self, cluster: Cluster, *, epoch: int = 0) -> ClusterReads:
        """Simulate the reads of an epoch."""
        partition, each = Partition(cluster.global_batch, cluster.world_size), cluster.ranks_per_node
        sizes = (self.chunk_samples, self.chunk_bytes)
        return simulate_reads(self.order, *sizes, partition, ranks_per_node=each, epoch=epoch)

    def variance_ratio(self, batch: int, *, rho: float) -> float:
        """Return the predicted VR of batches of this size."""
        return predicted_variance_ratio(self.order, ChunkLayout.of(self.chunk_samples), batch, rho=rho)

    def requests_for_each_read(self, reads: ClusterReads, cluster: Cluster) -> float:
        """Return the requests per chunk that is read: neighbours share one, and large chunks take several."""
        if not cluster.is_remote:
            return 1.0
        if cluster.cache_bytes is not None:  # where each chunk is cached by itself, neighbours share none
            return parts_of_each_read(self.chunk_bytes)
        sizes = self._request_sizes(is_remote=True)
        if reads.uses is None or self.table is None:
            return likely_requests_for_each_read(self.chunk_bytes, self.num_chunks, sizes)
        span = span_of(self.order, cluster)
        return requests_for_each_read(reads.uses, ChunkUnits(self.table), sizes, span_positions=span)

    def ahead_bytes(self, *, is_remote: bool) -> int:
        """Return the bytes that a rank reads ahead at most."""
        return self._request_sizes(is_remote=is_remote).ahead_bytes

    def _request_sizes(self, *, is_remote: bool) -> RequestSizes:
        window_bytes = int(self.order.chunks * self.mean_held_bytes)
        return request_sizes(ahead_limit_bytes(window_bytes, int(self.largest_held_bytes), is_remote=is_remote))

    def num_looks(self, num_reads: float, world_size: int) -> float:
        """Count the requests by which ranks check that shards match the index."""
        return likely_looks(self.shard_chunks, num_reads / world_size) * world_size

    def options(self, *, window: float = 1.0, chunk: float = 1.0) -> dict[str, Any] | None:
        """Return the options that ask for the order, with the window and the chunks larger by these factors."""
        chunk_bytes = max(1, round(self.asked_chunk_bytes * chunk))
        options: dict[str, Any] = {"order": None, "window": None, "num_canonical_nodes": None, "chunks": None}
        options["chunk"] = str(chunk_bytes)
        if not isinstance(self.order, Window):
            return options | {"order": "block", "chunks": max(1, round(self.order.chunks * window / chunk))}
        window_bytes = math.ceil(self.asked_window_bytes * window)
        most_nodes = max(1, round(self.order.chunks * window / chunk) // 2)
        nodes = min(self.order.resolved_nodes, most_nodes)
        return options | {"window": str(window_bytes), "num_canonical_nodes": nodes}


def likely_looks(shard_chunks: NDArray[np.int64], num_drawn: float) -> float:
    """Return how many shards a rank reads that draws so many of their chunks, without replacement.

    >>> likely_looks(np.array([10, 10]), 20.0)
    2.0
    """
    if not len(shard_chunks):
        return 0.0
    # Each formula overestimates, and the smaller result is nearly exact.
    num_chunks = int(shard_chunks.sum())
    by_draws = (1.0 - shard_chunks / num_chunks) ** num_drawn
    by_chunks = max(0.0, 1.0 - num_drawn / num_chunks) ** shard_chunks
    return float((1.0 - np.minimum(by_draws, by_chunks)).sum())


def span_of(order: SpannedOrder, cluster: Cluster) -> int:
    """Return the positions in a span of whole global batches."""
    batches = span_positions(order.parameters, cluster.world_size) // cluster.global_batch
    return max(1, batches) * cluster.global_batch

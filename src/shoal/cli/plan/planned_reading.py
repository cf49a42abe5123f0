"""Predict the reading of a dataset or a mixture in an order: mixing, requests and read-ahead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.figures import parse_bytes
from shoal.index.chunk_table import ChunkTable
from shoal.order.orders_without_window import Block
from shoal.order.partition import Partition
from shoal.order.window.order import Window
from shoal.order.window.sizing_by_bytes import DEFAULT_WINDOW_BYTES
from shoal.quality.prediction import ChunkLayout, predicted_variance_ratio
from shoal.reading.mixture.mix_request import FOREVER
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.order_request import OrderRequest
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.schedule.lifetimes import span_positions
from shoal.reading.schedule.memory_division import budget_of
from shoal.reading.schedule.memory_ledger import ahead_limit_bytes
from shoal.reading.schedule.read_requests import RequestSizes, request_sizes
from shoal.reading.schedule.units import ChunkUnits
from shoal.stream.quality.mixture_quality import parts_of_batch
from shoal.tools.planning.mixed_reads import MixedChunks, simulate_mixture
from shoal.tools.planning.rank_memory import MixedWindows, PlannedOrder
from shoal.tools.planning.request_model import likely_requests_for_each_read, parts_of_each_read, requests_for_each_read
from shoal.tools.planning.simulated_reads import ClusterReads, simulate_reads
from shoal.tools.planning.sizing import Cluster


@dataclass(frozen=True, slots=True, eq=False)
class DatasetReading:
    """The reading of one dataset.

    ``chunk_samples`` and ``chunk_bytes`` describe all ``num_chunks`` chunks, or a model with fewer chunks.
    ``option_chunk_bytes`` and ``option_window_bytes`` are the options for these chunks in this window, and
    ``least_chunk_bytes`` the option for the smallest possible chunks, of one extent. ``table`` locates the chunks, and
    ``shard_chunks`` counts the chunks of each shard; both may be None.
    """

    order: Window | Block
    chunk_samples: NDArray[np.int64]
    chunk_bytes: NDArray[np.int64]
    num_chunks: int
    mean_held_bytes: float
    largest_held_bytes: float
    option_chunk_bytes: int
    option_window_bytes: int
    least_chunk_bytes: float
    shard_chunks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    table: ChunkTable | None = None
    plans_cache: bool = True
    notes: Sequence[str] = ()

    @property
    def largest_batch(self) -> int:
        """Number of samples in all modelled chunks; VR is predicted only for smaller batches."""
        return int(self.chunk_samples.sum())

    @property
    def num_canonical_nodes(self) -> int:
        """Canonical nodes of the order, which deal batches to ranks."""
        return self.order.resolved_nodes if isinstance(self.order, Window) else 1

    @property
    def window_bytes(self) -> float:
        """Bytes of the window, as they are read."""
        return self.order.chunks * float(self.chunk_bytes.mean())

    def reads(self, cluster: Cluster, *, epoch: int = 0) -> ClusterReads:
        """Simulate the reads of an epoch."""
        partition, sizes = Partition(cluster.global_batch, cluster.world_size), (self.chunk_samples, self.chunk_bytes)
        return simulate_reads(self.order, *sizes, partition, ranks_per_node=cluster.ranks_per_node, epoch=epoch)

    def variance_ratio(self, batch: int, *, rho: float) -> float:
        """Return the predicted VR of batches of this size."""
        return predicted_variance_ratio(self.order, ChunkLayout.of(self.chunk_samples), batch, rho=rho)

    def requests_for_each_read(self, reads: ClusterReads, cluster: Cluster) -> float:
        """Return the requests per chunk: neighbours share a request, and a large chunk takes several requests."""
        if not cluster.is_remote:
            return 1.0
        if cluster.cache_bytes is not None:  # a cache stores single chunks, so neighbours share no request
            return parts_of_each_read(self.chunk_bytes)
        sizes = self._request_sizes(is_remote=True)
        if reads.uses is None or self.table is None:
            return likely_requests_for_each_read(self.chunk_bytes, self.num_chunks, sizes)
        span = span_of(self.order, cluster)
        return requests_for_each_read(reads.uses, ChunkUnits(self.table), sizes, span_positions=span)

    def ahead_bytes(self, *, is_remote: bool) -> int:
        """Return the maximum number of bytes that a rank reads ahead."""
        return self._request_sizes(is_remote=is_remote).ahead_bytes

    def _request_sizes(self, *, is_remote: bool) -> RequestSizes:
        window_bytes = int(self.order.chunks * self.mean_held_bytes)
        return request_sizes(ahead_limit_bytes(window_bytes, int(self.largest_held_bytes), is_remote=is_remote))

    def num_looks(self, num_reads: float, world_size: int) -> float:
        """Count the requests that check shards against the index: one request per rank and shard."""
        return likely_looks(self.shard_chunks, num_reads / world_size) * world_size

    def options(self, *, window: float = 1.0, chunk: float = 1.0) -> dict[str, Any] | None:
        """Return the options of the order, with the window and the chunks multiplied by these factors."""
        chunk_bytes = max(1, round(self.option_chunk_bytes * chunk))
        options: dict[str, Any] = {"order": None, "window": None, "num_canonical_nodes": None, "chunks": None}
        options["chunk"] = str(chunk_bytes)
        if not isinstance(self.order, Window):
            return options | {"order": "block", "chunks": max(1, round(self.order.chunks * window / chunk))}
        window_bytes = math.ceil(self.option_window_bytes * window)
        most_nodes = max(1, round(self.order.chunks * window / chunk) // 2)
        nodes = min(self.order.resolved_nodes, most_nodes)
        return options | {"window": str(window_bytes), "num_canonical_nodes": nodes}


def likely_looks(shard_chunks: NDArray[np.int64], num_drawn: float) -> float:
    """Return the expected number of shards of ``num_drawn`` chunks, drawn without replacement.

    >>> likely_looks(np.array([10, 10]), 20.0)
    2.0
    """
    if not len(shard_chunks):
        return 0.0
    # Both formulas overestimate; the smaller result is nearly exact.
    num_chunks = int(shard_chunks.sum())
    by_draws = (1.0 - shard_chunks / num_chunks) ** num_drawn
    by_chunks = max(0.0, 1.0 - num_drawn / num_chunks) ** shard_chunks
    return float((1.0 - np.minimum(by_draws, by_chunks)).sum())


def span_of(order: PlannedOrder, cluster: Cluster) -> int:
    """Return the number of positions in a span of whole global batches."""
    batches = span_positions(order.parameters, cluster.world_size) // cluster.global_batch
    return max(1, batches) * cluster.global_batch


@dataclass(frozen=True, slots=True, eq=False)
class MixtureReading:
    """The reading of a mixture; ``request`` is the order of its sources, or None if the file has the order."""

    resolved: ResolvedMixture
    windows: MixedWindows
    chunks: MixedChunks
    request: OrderRequest | None
    plans_cache: bool = False

    @property
    def largest_batch(self) -> int:
        """Number of samples of the epoch: VR is predicted for smaller batches."""
        return self.chunks.num_samples

    @property
    def option_chunk_bytes(self) -> int | None:
        """The option that gives chunks of this size; None if the file has the order, or each source its own size."""
        chunk = None if self.request is None else self.request.chunk
        return None if chunk is None else parse_bytes(chunk, "chunk")

    @property
    def least_chunk_bytes(self) -> float:
        """Bytes of the smallest chunks that all sources can have: one extent of the source with the largest."""
        indexes = [part.index for part in self.resolved.parts]
        return max(int(index.extent_decoded_bytes.sum()) / max(1, index.num_extents) for index in indexes)

    @property
    def num_canonical_nodes(self) -> int:
        """Canonical nodes of the order, which deal batches to ranks."""
        return self.resolved.untouched(0).num_canonical_nodes

    @property
    def window_bytes(self) -> float:
        """Bytes of the windows of all sources, as they are read."""
        parts = zip(self.windows.orders, self.resolved.parts, strict=True)
        return sum(min(order.chunks, len(part.chunks)) * float(chunk_bytes_of(part).mean()) for order, part in parts)

    @property
    def notes(self) -> list[str]:
        """Sentences about the plan of a mixture, and about missing figures."""
        sentences = ["VR holds for the first weights, within sources."]
        if self.resolved.num_positions(0) >= FOREVER:
            epoch = f"{self.chunks.num_samples:,} samples, until every source has finished a round"
            sentences.append(f"The mixture has no epochs: the plan is for {epoch}.")
        if self.request is None:
            sentences.append("The file sets the order of the mixture, so no other window or chunk is planned.")
        return [" ".join([*sentences, "Chunk caches are not planned for mixtures."])]

    def reads(self, cluster: Cluster, *, epoch: int = 0) -> ClusterReads:
        """Simulate the reads of an epoch."""
        partition = Partition(cluster.global_batch, cluster.world_size)
        order = self.resolved.epoch(epoch)
        return simulate_mixture(order, self.chunks, partition, ranks_per_node=cluster.ranks_per_node)

    def variance_ratio(self, batch: int, *, rho: float) -> float:
        """Return the predicted VR of batches of this size: the weighted mean over sources, as in ``quality()``."""
        return sum(
            weight
            * (
                predicted_variance_ratio(part.order, ChunkLayout.of(part.chunk_samples), size, rho=rho)
                if part.num_ordered > 1
                else 1
            )
            for _, weight, part, size in parts_of_batch(self.resolved, batch)
        )

    def requests_for_each_read(self, reads: ClusterReads, cluster: Cluster) -> float:
        """Return the requests per chunk; neighbours of one source share a request."""
        if not cluster.is_remote:
            return 1.0
        first, uses, num_requests, num_reads = self.chunks.first_chunk, reads.uses, 0.0, 0.0
        span = span_of(self.windows, cluster)
        for number, part in enumerate(self.resolved.parts):
            sizes = request_sizes(self._limit_bytes(part))
            if uses is None:
                source_reads = float(self.chunks.visits[number])
                per_read = likely_requests_for_each_read(chunk_bytes_of(part), len(part.chunks), sizes)
            else:
                in_source = (uses.chunks >= first[number]) & (uses.chunks < first[number + 1])
                source_uses = replace(
                    uses,
                    ranks=uses.ranks[in_source],
                    chunks=uses.chunks[in_source] - first[number],
                    first=uses.first[in_source],
                    last=uses.last[in_source],
                )
                source_reads = float(np.count_nonzero(in_source))
                per_read = requests_for_each_read(source_uses, ChunkUnits(part.chunks), sizes, span_positions=span)
            num_requests, num_reads = num_requests + per_read * source_reads, num_reads + source_reads
        return num_requests / max(1.0, num_reads)

    def ahead_bytes(self, *, is_remote: bool) -> int:
        """Return the maximum number of bytes that a rank reads ahead of all sources; 0 for local files.

        The system reads ahead of local files, and the memory of a mixture does not count this read-ahead.
        """
        if not is_remote:
            return 0
        return sum(request_sizes(self._limit_bytes(part)).ahead_bytes for part in self.resolved.parts)

    def num_looks(self, num_reads: float, world_size: int) -> float:
        """Count the requests that check shards against the index."""
        rank_reads = num_reads / world_size * self.chunks.visits / self.chunks.visits.sum()
        looks = 0.0
        for drawn, part in zip(rank_reads.tolist(), self.resolved.parts, strict=True):
            shard_chunks = np.bincount(part.chunks.shard, minlength=part.index.num_shards)
            looks += likely_looks(shard_chunks, min(drawn, float(len(part.chunks)))) * world_size
        return looks

    def options(self, *, window: float = 1.0, chunk: float = 1.0) -> dict[str, Any] | None:
        """Return the options of the order, with the window and the chunks multiplied by these factors.

        None if the file has the order, or if each source has its own chunk size.
        """
        request, own = self.request, self.option_chunk_bytes
        if request is None or (own is None and chunk != 1.0):
            return None
        options: dict[str, Any] = {"order": None, "window": None, "chunks": None, "chunk": None}
        options["num_canonical_nodes"] = request.num_canonical_nodes
        if own is not None:
            options["chunk"] = str(max(1, round(own * chunk)))
        if request.order is None:
            size = DEFAULT_WINDOW_BYTES if request.window is None else request.window
            return options | {"window": str(max(1, round(parse_bytes(size, "window") * window)))}
        order = windowed(request.order)
        if isinstance(order, Window):
            options["num_canonical_nodes"] = order.num_canonical_nodes
        return options | {"order": order.name, "chunks": max(1, round(order.chunks * window / chunk))}

    def _limit_bytes(self, part: ResolvedOrder) -> int:
        return budget_of(part, None, is_remote=True, num_sources=len(self.resolved.parts)).ahead_bytes


PlannedReading: TypeAlias = DatasetReading | MixtureReading


def chunk_bytes_of(part: ResolvedOrder) -> NDArray[np.int64]:
    """Return the bytes of each chunk of a source."""
    return part.chunks.end_byte - part.chunks.first_byte


def windowed(order: Any) -> Window | Block:
    """Return the order if the order uses some chunks at a time; raise `UsageError` otherwise."""
    if not isinstance(order, Window | Block):
        name = "this order" if order is None else f"the order {order.name!r}"
        msg = f"{name} draws from all chunks at any time, so its reads are not planned"
        raise UsageError(msg, hint="--order window or block; --order full reads each sample by itself")
    return order

"""Requests and memory of the ranks of a plan: how many requests the reads become, and how much memory they take."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.cli.plan.plan_data import PlannedData
from shoal.planning.cluster import ClusterReads
from shoal.planning.rank_memory import RankMemory, planned_ahead_bytes, rank_memory
from shoal.planning.request_model import likely_requests_for_each_read, requests_for_each_read
from shoal.planning.sizing import Cluster
from shoal.reading.schedule.lifetimes import span_positions
from shoal.reading.schedule.read_ahead import ahead_limit_bytes
from shoal.reading.schedule.request_sizes import RequestSizes, request_sizes
from shoal.reading.schedule.units import ChunkUnits


def is_far(cluster: Cluster) -> bool:
    """Return True if requests take time, so that the stream itself reads ahead; else the system does, for free."""
    return cluster.latency_seconds > 0.0


def sizes_of(data: PlannedData, cluster: Cluster) -> RequestSizes:
    """Return the sizes of a rank's requests."""
    window_bytes, largest_bytes = int(data.order.chunks * data.mean_held_bytes), int(data.largest_held_bytes)
    return request_sizes(ahead_limit_bytes(window_bytes, largest_bytes, is_far=is_far(cluster)))


def requests_of_a_read(data: PlannedData, cluster: Cluster, reads: ClusterReads) -> float:
    """Return the requests per chunk read: fewer where neighbours share one, more for large chunks."""
    if not is_far(cluster):
        return 1.0
    sizes = sizes_of(data, cluster)
    if reads.meetings is None or data.table is None:
        return likely_requests_for_each_read(data.chunk_bytes, data.num_chunks, sizes)
    positions = _span(data, cluster)
    return requests_for_each_read(reads.meetings, ChunkUnits(data.table), sizes, span_positions=positions)


def held_by_a_rank(
    data: PlannedData, cluster: Cluster, held_chunks: int, reads_of_a_rank: float
) -> tuple[float, float]:
    """Return the bytes of chunks in use and of those read ahead; never more than a rank's share of the data."""
    share = min(1.0, reads_of_a_rank / data.num_chunks) * data.held_bytes
    in_use = min(held_chunks * data.mean_held_bytes + data.uneven_bytes, share)  # includes the largest, at some time
    if data.are_single_samples:  # copied into their batch as they come
        in_use = data.largest_held_bytes if is_far(cluster) else 0.0
    ahead = planned_ahead_bytes(
        data.order,
        sizes_of(data, cluster).ahead_bytes,
        num_samples=data.num_samples,
        dataset_bytes=data.held_bytes,
        world_size=cluster.world_size,
    )
    ahead = max(ahead // data.mean_held_bytes * data.mean_held_bytes, 2.0 * data.largest_held_bytes)  # whole chunks
    return in_use, max(0.0, min(ahead, share - in_use))


def memory_of_a_rank(
    data: PlannedData, cluster: Cluster, held_chunks: int, *, reads_of_a_rank: float, is_making: bool
) -> RankMemory:
    """Return the memory of a rank's process with ``held_chunks`` in use, while ids are computed or not."""
    in_use, ahead = held_by_a_rank(data, cluster, held_chunks, reads_of_a_rank)
    return rank_memory(
        data.order,
        num_samples=data.num_samples,
        num_chunks=data.num_chunks,
        chunk_bytes=data.mean_held_bytes,
        in_use=in_use,
        ahead=ahead,
        global_batch=cluster.global_batch,
        world_size=cluster.world_size,
        is_making=is_making,
        is_far=is_far(cluster),
    )


def makings(data: PlannedData, cluster: Cluster) -> NDArray[np.int64]:
    """Return the positions reached when ids of the order are computed; reads are planned one span ahead."""
    span = _span(data, cluster)
    positions = np.array(data.order.span_starts(data.num_samples), dtype=np.int64)
    return np.maximum(0, positions // span - 1) * span


def _span(data: PlannedData, cluster: Cluster) -> int:
    """Return the positions in a span of whole global batches."""
    batches = span_positions(data.order.parameters, cluster.world_size) // cluster.global_batch
    return max(1, batches) * cluster.global_batch

"""Recommend chunks and windows for a cluster, and compute the cost of reading.

The model of a store: a request takes ``latency + bytes / connection bandwidth``, requests run concurrently, and a node
receives at most its bandwidth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.reading.schedule.memory_ledger import ahead_limit_bytes
from shoal.tools.planning.rank_memory import BYTES_OF_A_CHUNK

_CHUNK_BYTES = tuple(1 << power for power in (23, 22, 21, 20, 19, 18))  # 8 MiB to 256 KiB
_WINDOW_SHARE = 0.75  # of the memory; the rest is for read-ahead
_CHUNKS_OF_A_SAMPLE = 4  # per sample of a global batch: then the loss is as after a perfect shuffle
_LEAST_CHUNKS_OF_A_RANK = 8  # with fewer, ranks often need the same chunks
_SPARE = 1.5  # times the mean concurrency
_MOST_CONCURRENCY = 256
_OVERHEAD = 0.01


@dataclass(frozen=True, slots=True)
class Cluster:
    """The machines of a job, their training, and their store.

    ``global_batch`` counts samples over all ranks. On each node, ``memory_bytes`` limits the stream, and
    ``cache_bytes`` is the budget of a chunk cache (``cache=`` of `shoal.open`), if any. ``latency_seconds`` is the time
    from a request to its first byte; a connection and a node have their own bandwidth. Without ``step_seconds``, steps
    are as fast as the data. Prices may be in any currency.
    """

    num_nodes: int = 1
    ranks_per_node: int = 1
    global_batch: int = 256
    memory_bytes: float = 8 * 2**30
    cache_bytes: int | None = None
    latency_seconds: float = 0.03
    connection_bytes_per_second: float = 90e6
    node_bytes_per_second: float = 1.25e9
    step_seconds: float | None = None
    request_price: float = 0.0
    byte_price: float = 0.0

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.num_nodes * self.ranks_per_node

    @property
    def is_remote(self) -> bool:
        """True if requests take time: then the stream reads ahead; otherwise the system does, for free."""
        return self.latency_seconds > 0.0


@dataclass(frozen=True, slots=True)
class Sizing:
    """A window of ``chunks`` chunks of about ``chunk_bytes``, over ``num_canonical_nodes`` canonical nodes."""

    chunk_bytes: int
    chunks: int
    num_canonical_nodes: int

    @property
    def window_bytes(self) -> int:
        """Bytes that mix at a time."""
        return self.chunk_bytes * self.chunks


@dataclass(frozen=True, slots=True)
class PlannedTraffic:
    """The cost of reading; rates and ``concurrency`` are per node.

    ``waiting_share`` is the share of time in which steps wait for data. ``first_batch_seconds`` is the time from a cold
    start or a loaded state to the first batch.
    """

    concurrency: int
    epoch_seconds: float
    waiting_share: float
    requests_per_second: float
    node_bytes_per_second: float
    first_batch_seconds: float
    epoch_price: float


@dataclass(frozen=True, slots=True)
class Textbook:
    """Sizes for shards that are read one after another, and for a buffer of samples.

    ``shard_bytes`` is the smallest size with at most 1 % of the time for requests. ``buffer_samples`` fill the memory
    of a node, a ``buffer_share`` of all samples.
    """

    shard_bytes: float
    num_shards: int
    buffer_samples: int
    buffer_share: float


def recommend(cluster: Cluster, *, dataset_bytes: float, least_chunk_bytes: int = _CHUNK_BYTES[-1]) -> Sizing:
    """Choose the largest chunks whose window in memory mixes global batches like a perfect shuffle.

    The window needs four chunks per sample of a global batch, for any data (bench/mixing_law.py), and at least 8 chunks
    per rank, so that few chunks are read by two ranks. Spare memory makes the window larger. In too little memory, the
    window has the chunks that fit beside each rank's table of all chunks.

    >>> recommend(Cluster(num_nodes=4, ranks_per_node=8, global_batch=2048), dataset_bytes=1e13)
    Sizing(chunk_bytes=2097152, chunks=6467, num_canonical_nodes=64)
    >>> recommend(Cluster(num_nodes=4, ranks_per_node=8, memory_bytes=64 * 2**30), dataset_bytes=1e13).chunks
    23700
    """
    least = max(_CHUNKS_OF_A_SAMPLE * cluster.global_batch, _LEAST_CHUNKS_OF_A_RANK * cluster.world_size)
    sizes = [size for size in _CHUNK_BYTES if size >= least_chunk_bytes] or [least_chunk_bytes]

    def possible(chunk_bytes: int) -> int:
        """Return the number of chunks that fit beside the chunk tables of all ranks."""
        tables = cluster.world_size * dataset_bytes / chunk_bytes * BYTES_OF_A_CHUNK
        return int((cluster.num_nodes * cluster.memory_bytes * _WINDOW_SHARE - tables) / chunk_bytes)

    def roomy(chunk_bytes: int) -> int:
        """Return the number of chunks that fit beside tables and read-ahead."""
        window_bytes = chunk_bytes * possible(chunk_bytes)
        ahead = ahead_limit_bytes(window_bytes, chunk_bytes, is_remote=cluster.is_remote)
        return possible(chunk_bytes) - math.ceil(cluster.world_size * ahead / chunk_bytes)

    fitting = [size for size in sizes if possible(size) >= least]
    chunk_bytes = fitting[0] if fitting else max(sizes, key=possible)
    chunks = max(2, least, roomy(chunk_bytes)) if fitting else max(2, possible(chunk_bytes))
    chunks = min(chunks, max(2, math.ceil(dataset_bytes / chunk_bytes)))
    return Sizing(chunk_bytes, chunks, _canonical_nodes(chunks, cluster.world_size))


def _canonical_nodes(chunks: int, world_size: int) -> int:
    """Return a multiple or a divisor of the number of ranks, so that few chunks are read by two ranks.

    1000 ranks with 10 chunks each read every chunk 2.7 times with 64 nodes, 1.3 times with 500, and once with 1000.

    >>> [_canonical_nodes(*case) for case in ((2560, 32), (2560, 24), (10_000, 1000), (500, 100))]
    [64, 48, 1000, 50]
    """
    usual = max(1, min(64, chunks // 16))
    if world_size <= usual:
        return usual // world_size * world_size
    divisors = (world_size // ranks for ranks in range(1, world_size) if world_size % ranks == 0)
    return next((nodes for nodes in divisors if nodes <= chunks // _LEAST_CHUNKS_OF_A_RANK), usual)


def traffic(
    cluster: Cluster, *, num_samples: int, num_requests: float, read_bytes: float, first_requests: float
) -> PlannedTraffic:
    """Compute load, time and price of an epoch; a rank needs ``first_requests`` for its first batch.

    >>> cluster = Cluster(num_nodes=2, global_batch=100, step_seconds=0.1, node_bytes_per_second=1e9)
    >>> costs = traffic(cluster, num_samples=10_000, num_requests=1000, read_bytes=1e9, first_requests=8)
    >>> costs.epoch_seconds, costs.waiting_share, round(costs.node_bytes_per_second), costs.concurrency
    (10.0, 0.0, 50000000, 4)
    """
    request_bytes = read_bytes / num_requests
    request_seconds = cluster.latency_seconds + request_bytes / cluster.connection_bytes_per_second
    node_bytes = read_bytes / cluster.num_nodes
    training = math.ceil(num_samples / cluster.global_batch) * (cluster.step_seconds or 0.0)
    rate = node_bytes / training if training else cluster.node_bytes_per_second
    concurrency = math.ceil(_SPARE * min(rate, cluster.node_bytes_per_second) * request_seconds / request_bytes)
    concurrency = min(_MOST_CONCURRENCY, max(4, concurrency))
    possible = min(cluster.node_bytes_per_second, concurrency * request_bytes / request_seconds)
    reading = node_bytes / possible
    epoch_seconds = max(training, reading)
    first = first_requests * cluster.ranks_per_node
    rounds = math.ceil(first / concurrency)
    first_seconds = max(rounds * request_seconds, cluster.latency_seconds + first * request_bytes / possible)
    return PlannedTraffic(
        concurrency=concurrency,
        epoch_seconds=epoch_seconds,
        waiting_share=1.0 - training / epoch_seconds if training else 0.0,
        requests_per_second=num_requests / cluster.num_nodes / epoch_seconds,
        node_bytes_per_second=node_bytes / epoch_seconds,
        first_batch_seconds=first_seconds,
        epoch_price=num_requests * cluster.request_price + read_bytes * cluster.byte_price,
    )


def textbook(cluster: Cluster, *, num_samples: int, sample_bytes: float) -> Textbook:
    """Return shard sizes for 1 % overhead, at one request per shard over one connection, and the largest buffer.

    >>> cluster = Cluster(latency_seconds=0.02, connection_bytes_per_second=1e9, memory_bytes=64e9)
    >>> sizes = textbook(cluster, num_samples=2_000_000_000, sample_bytes=8000)
    >>> round(sizes.shard_bytes / 1e9, 2), sizes.num_shards, sizes.buffer_samples, sizes.buffer_share
    (1.98, 8081, 8000000, 0.004)
    """
    shard_bytes = cluster.latency_seconds * cluster.connection_bytes_per_second * (1 - _OVERHEAD) / _OVERHEAD
    buffer_samples = min(num_samples, int(cluster.memory_bytes / sample_bytes))
    num_shards = max(1, math.ceil(num_samples * sample_bytes / max(shard_bytes, 1.0)))
    return Textbook(shard_bytes, num_shards, buffer_samples, buffer_samples / num_samples)

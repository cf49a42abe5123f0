"""A plan: simulated reads of a cluster, and its requests, memory and traffic."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.cli.plan.planned_cache import PlannedCache
from shoal.cli.plan.planned_data import PlannedData
from shoal.cli.plan.planned_reading import span_of
from shoal.quality.expected_quality import GrowingQuality
from shoal.tools.planning.node_cache import EpochReads
from shoal.tools.planning.rank_memory import RankMemory, planned_ahead_bytes, rank_memory
from shoal.tools.planning.simulated_reads import ClusterReads
from shoal.tools.planning.sizing import Cluster, PlannedTraffic, textbook, traffic
from shoal.tools.reports.plan_page import PlanFigures

_MOST_SIZES = 12
_MOST_SEGMENTS = 12


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """The plan of data in an order on a cluster.

    ``num_reads`` counts the reads of all ranks in the whole epoch; ``fetched`` and ``num_requests`` count only traffic
    that reaches the store behind the chunk caches ``cached``. ``growing`` is the mixing of a first epoch while shards
    are indexed.
    """

    data: PlannedData
    cluster: Cluster
    rho: float
    reads: ClusterReads
    costs: PlannedTraffic
    num_reads: float
    fetched: EpochReads
    num_requests: float
    cached: PlannedCache | None
    growing: GrowingQuality | None = None

    @staticmethod
    def of(data: PlannedData, cluster: Cluster, *, rho: float) -> Planned:
        """Simulate the reads of an epoch, and compute their cost."""
        reads = data.reading.reads(cluster)
        scale, per_read = data.num_chunks / len(data.chunk_samples), data.reading.requests_for_each_read(reads, cluster)
        num_reads, first_chunks, cached = reads.num_reads * scale, reads.first_chunks, None
        fetched = EpochReads(num_reads, reads.num_bytes * scale)
        if cluster.cache_bytes is not None:
            cached = PlannedCache.of([reads, data.reading.reads(cluster, epoch=1)], data, cluster)
            fetched, first_chunks = cached.epochs[0], reads.by_node.first_chunks
        costs = traffic(
            cluster,
            num_samples=data.num_samples,
            num_requests=fetched.num_reads * per_read,
            read_bytes=fetched.num_bytes,
            first_requests=first_chunks * per_read,
        )
        return Planned(data, cluster, rho, reads, costs, num_reads, fetched, fetched.num_reads * per_read, cached)

    @property
    def is_exact(self) -> bool:
        """True if the whole epoch was simulated."""
        return self.reads.is_exact and self.data.num_chunks == len(self.data.chunk_samples)

    def record(self) -> dict[str, Any]:
        """Return the figures by name."""
        data, cluster, costs = self.data, self.cluster, self.costs
        most = data.reading.largest_batch
        sizes = [size for size in (cluster.global_batch, 4 * cluster.global_batch) if size < most]
        memory, num_stats = self._rank_memory(), 0.0
        if cluster.is_remote:  # ranks check shards against the index
            num_stats = data.reading.num_looks(self.num_reads, cluster.world_size)
        sequential = textbook(cluster, num_samples=data.num_samples, sample_bytes=data.sample_bytes)
        num_chunks = data.num_read_chunks
        cached: dict[str, Any] = {}
        if self.cached is not None:
            cached = self.cached.record(
                requests_per_read=self.num_requests / self.fetched.num_reads,
                num_stats=num_stats,
                num_nodes=cluster.num_nodes,
                num_chunks=num_chunks,
            )
        if self.growing is not None:
            call = cached.get("open_call", "shoal.open(...)")
            cached |= {
                "growing": _growing_facts(self.growing),
                "open_call": call.replace("...", '..., index="grow"', 1),
            }
        return {
            "num_samples": data.num_samples,
            "dataset_bytes": data.num_bytes,
            "world_size": cluster.world_size,
            "chunk_bytes": data.mean_chunk_bytes,
            "window_chunks": data.order.chunks,
            "window_bytes": min(data.reading.window_bytes, float(data.stored_bytes)),
            "num_canonical_nodes": data.reading.num_canonical_nodes,
            "call": data.call,
            "refused": data.refusal or ("" if self.cached is None else self.cached.refusal),
            "vr": {size: self._ratio(size) for size in sizes},
            "rank_held_bytes": sum(self._held_bytes(self.reads.held_chunks)),
            "rank_memory_bytes": memory.total,
            "rank_memory_parts": memory.to_dict(),
            "index_bytes": data.index_bytes,
            "node_memory_bytes": memory.total * cluster.ranks_per_node + data.index_bytes,
            "num_requests": round(self.num_requests + num_stats),
            "num_looks": round(num_stats),
            "read_bytes": self.fetched.num_bytes,
            "amplification": self.fetched.num_reads / num_chunks,
            "amplification_without_cache": self.reads.amplification,
            "amplification_with_cache": self.reads.by_node.amplification,
            "is_simulated_exactly": self.is_exact,
            "requests_error": self.reads.error,
            "held_error": self.reads.held_error,
            "concurrency": costs.concurrency,
            "node_requests_per_second": costs.requests_per_second,
            "node_traffic_bytes_per_second": costs.node_bytes_per_second,
            "first_batch_seconds": costs.first_batch_seconds,
            "epoch_seconds": costs.epoch_seconds,
            "waiting_share": costs.waiting_share,
            "epoch_price": costs.epoch_price + num_stats * cluster.request_price,
            "sequential": asdict(sequential),
            **cached,
        }

    def figures(self) -> PlanFigures:
        """Return the numbers for the figures."""
        batch, over_time = self.cluster.global_batch, self.reads.reads_over_time
        if self.cached is not None:
            over_time = self.reads.by_node.reads_over_time
        largest = min(self.data.num_samples, self.data.reading.largest_batch) // 2
        below = [batch >> power for power in range(6, 0, -1) if batch >> power >= 2]
        above = [batch << power for power in range(_MOST_SIZES - len(below)) if batch << power <= largest]
        reads = over_time / max(1, int(over_time.sum()))
        mean = self.costs.node_bytes_per_second
        if not self.is_exact:  # the ends of the epoch have a larger share of the simulated part than of the epoch
            reads = reads / max(1e-12, float(np.median(reads))) / len(reads)
        return PlanFigures(
            batch=batch,
            vr={size: self._ratio(size) for size in (*below, *(above or [batch]))},
            rank_bytes=self._rank_bytes(),
            node_bytes_per_second=_within(reads * len(reads) * mean, self.cluster.node_bytes_per_second),
            node_limit=self.cluster.node_bytes_per_second,
            heat=self.reads.heat,
            is_whole=self.is_exact,
            growing=self.growing,
        )

    def _ratio(self, batch: int) -> float:
        """Return the predicted VR of batches of this size."""
        return self.data.reading.variance_ratio(batch, rho=self.rho)

    def _rank_memory(self) -> RankMemory:
        """Return the peak memory of the fullest rank."""
        held_chunks = self.reads.held_chunks
        moments = [self._memory_at(held_chunks, computes_ids=False)]
        if len(positions := self._positions_of_computing()):
            # In a simulated part, one of many computations of ids coincides with the peak. A remote stream keeps the
            # memory of its peak.
            if (uses := self.reads.uses) is not None and self.is_exact and not self.cluster.is_remote:
                held_chunks = max(uses.most_held_at(position) for position in positions.tolist())
            moments.append(self._memory_at(held_chunks, computes_ids=True))
        return max(moments, key=lambda memory: memory.total)

    def _rank_bytes(self) -> NDArray[np.float64]:
        """Return the memory of the fullest rank in each of 50 parts of the simulated time."""
        held_chunks = self.reads.held_over_time
        computing = np.zeros(len(held_chunks), dtype=bool)
        if self.is_exact:
            computing[self._positions_of_computing() * len(held_chunks) // self.data.num_samples] = True
        parts = zip(held_chunks.tolist(), computing.tolist(), strict=True)
        return np.array([self._memory_at(held, computes_ids=computes_ids).total for held, computes_ids in parts])

    def _positions_of_computing(self) -> NDArray[np.int64]:
        """Return the positions where the order computes ids; reads are planned one span ahead."""
        span = span_of(self.data.order, self.cluster)
        positions = np.array(self.data.order.span_starts(self.data.num_samples), dtype=np.int64)
        return np.maximum(0, positions // span - 1) * span

    def _held_bytes(self, held_chunks: int) -> tuple[float, float]:
        """Return the bytes of chunks in use and of the read-ahead, at most a rank's share of the data."""
        data, cluster = self.data, self.cluster
        share = min(1.0, self.num_reads / cluster.world_size / data.num_chunks) * data.held_bytes
        in_use = min(held_chunks * data.mean_held_bytes + data.uneven_bytes, share)
        if int(data.chunk_samples.max(initial=0)) <= 1:  # single samples are copied into their batch immediately
            in_use = data.largest_held_bytes if cluster.is_remote else 0.0
        ahead = planned_ahead_bytes(
            data.order,
            data.reading.ahead_bytes(is_remote=cluster.is_remote),
            num_samples=data.num_samples,
            sample_bytes=data.held_sample_bytes,
            world_size=cluster.world_size,
        )
        ahead = max(ahead // data.mean_held_bytes * data.mean_held_bytes, 2.0 * data.largest_held_bytes)
        return in_use, max(0.0, min(ahead, share - in_use))

    def _memory_at(self, held_chunks: int, *, computes_ids: bool) -> RankMemory:
        data, cluster = self.data, self.cluster
        in_use, ahead = self._held_bytes(held_chunks)
        return rank_memory(
            data.order,
            num_samples=data.num_samples,
            sample_bytes=data.held_sample_bytes,
            num_chunks=data.num_chunks,
            chunk_bytes=data.mean_held_bytes,
            in_use=in_use,
            ahead=ahead,
            global_batch=cluster.global_batch,
            world_size=cluster.world_size,
            computes_ids=computes_ids,
            is_remote=cluster.is_remote,
        )


def _growing_facts(quality: GrowingQuality) -> dict[str, Any]:
    """Return the quality as JSON types, with the first segments only."""
    facts = quality.to_dict()
    segments = facts.pop("segments")
    facts |= {"vr": quality.vr, "num_segments": len(segments), "first_segments": segments[:_MOST_SEGMENTS]}
    return {**facts, "last_segment": segments[-1], "warning": quality.warning()}


def _within(bytes_due: NDArray[np.float64], limit: float) -> NDArray[np.float64]:
    """Return the bytes received by a node within its limit: excess bytes move to later times, or to earlier at the end.

    >>> _within(np.array([9.0, 1.0, 1.0, 5.0]), 4.0).tolist()
    [4.0, 4.0, 4.0, 4.0]
    """
    received, left = bytes_due.copy(), 0.0
    for part in (*range(len(received)), *reversed(range(len(received)))):
        due = received[part] + left
        received[part] = min(due, limit)
        left = due - received[part]
    return received

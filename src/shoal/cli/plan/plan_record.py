"""The record of a plan, for machines, people and the page, and a table of records for other settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.cli.output import format_value
from shoal.cli.plan.plan_data import PlannedData
from shoal.cli.plan.plan_reading import (
    held_by_a_rank,
    is_far,
    makings,
    memory_of_a_rank,
    requests_of_a_read,
)
from shoal.order.partition import Partition
from shoal.order.window.order import Window
from shoal.planning.cluster import ClusterReads, simulate_reads
from shoal.planning.rank_memory import RankMemory
from shoal.planning.sizing import Cluster, PlannedTraffic, textbook, traffic
from shoal.quality.prediction import ChunkLayout, predicted_variance_ratio
from shoal.reports.plan_page import PlanFigures

_FEW_POSITIONS = 1 << 19  # positions simulated for each row of a table
_MOST_SIZES = 12


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A plan: data in an order, for a cluster, and the simulation of its reads."""

    data: PlannedData
    cluster: Cluster
    rho: float
    reads: ClusterReads
    costs: PlannedTraffic
    num_requests: float

    @staticmethod
    def of(data: PlannedData, cluster: Cluster, *, rho: float, most_positions: int | None = None) -> Planned:
        """Simulate the reads of an epoch, and compute their cost."""
        partition = Partition(cluster.global_batch, cluster.world_size)
        limit = {} if most_positions is None else {"most_positions": most_positions}
        reads = simulate_reads(data.order, data.chunk_samples, data.chunk_bytes, partition, **limit)
        scale = data.num_chunks / len(data.chunk_samples)
        per_read = requests_of_a_read(data, cluster, reads)
        costs = traffic(
            cluster,
            num_samples=data.num_samples,
            num_requests=reads.num_reads * scale * per_read,
            read_bytes=reads.num_bytes * scale,
            first_requests=reads.first_chunks * per_read,
        )
        return Planned(data, cluster, rho, reads, costs, reads.num_reads * scale * per_read)

    @property
    def is_exact(self) -> bool:
        """True if the whole epoch was simulated."""
        return self.reads.is_exact and self.data.num_chunks == len(self.data.chunk_samples)

    @property
    def read_bytes(self) -> float:
        """Bytes read by all ranks over the whole epoch."""
        return self.reads.num_bytes * self.data.num_chunks / len(self.data.chunk_samples)

    @property
    def num_reads(self) -> float:
        """Chunk reads of all ranks over the whole epoch."""
        return self.reads.num_reads * self.data.num_chunks / len(self.data.chunk_samples)

    @property
    def num_looks(self) -> float:
        """Requests by which ranks check that shards match the index: one per rank and shard that it reads."""
        if not is_far(self.cluster) or not len(self.data.shard_chunks):
            return 0.0
        # A rank draws chunks without replacement: each formula overestimates, and the smaller result is nearly exact.
        num_chunks, drawn = self.data.num_chunks, self.num_reads / self.cluster.world_size
        by_draws = (1.0 - self.data.shard_chunks / num_chunks) ** drawn
        by_chunks = max(0.0, 1.0 - drawn / num_chunks) ** self.data.shard_chunks
        never = np.minimum(by_draws, by_chunks)
        return float((1.0 - never).sum()) * self.cluster.world_size

    @property
    def rank_memory(self) -> RankMemory:
        """Memory of the fullest rank's process at its fullest moment."""
        held_chunks = self.reads.held_chunks
        moments = [self._memory_at(held_chunks, is_making=False)]
        if len(found := makings(self.data, self.cluster)):
            # Otherwise one of many computations of ids coincides with the peak; and streams from a remote store keep
            # the memory that they once had.
            if (met := self.reads.meetings) is not None and self.is_exact and not is_far(self.cluster):
                held_chunks = max(met.most_held_at(position) for position in found.tolist())
            moments.append(self._memory_at(held_chunks, is_making=True))
        return max(moments, key=lambda memory: memory.total)

    @property
    def rank_bytes(self) -> NDArray[np.float64]:
        """Memory of the fullest rank's process over the simulated time, in 50 parts."""
        over = self.reads.over_time.held_chunks
        making = np.zeros(len(over), dtype=bool)
        if self.is_exact:
            making[makings(self.data, self.cluster) * len(over) // self.data.num_samples] = True
        parts = zip(over.tolist(), making.tolist(), strict=True)
        return np.array([self._memory_at(held, is_making=is_making).total for held, is_making in parts])

    def _memory_at(self, held_chunks: int, *, is_making: bool) -> RankMemory:
        reads = self.num_reads / self.cluster.world_size
        return memory_of_a_rank(self.data, self.cluster, held_chunks, reads_of_a_rank=reads, is_making=is_making)

    def ratio(self, batch: int) -> float:
        """Return the predicted VR of batches of this size."""
        layout = ChunkLayout.of(self.data.chunk_samples)
        return predicted_variance_ratio(self.data.order, layout, batch, rho=self.rho)

    def record(self) -> dict[str, Any]:
        """Return names and values, for machines and people."""
        data, cluster, costs = self.data, self.cluster, self.costs
        most = int(data.chunk_samples.sum())
        sizes = [size for size in (cluster.global_batch, 4 * cluster.global_batch) if size < most]
        memory = self.rank_memory
        reads_of_a_rank = self.num_reads / cluster.world_size
        sequential = textbook(cluster, num_samples=data.num_samples, sample_bytes=data.num_bytes / data.num_samples)
        return {
            "num_samples": data.num_samples,
            "dataset_bytes": data.num_bytes,
            "world_size": cluster.world_size,
            "chunk_bytes": data.mean_chunk_bytes,
            "window_chunks": data.order.chunks,
            "window_bytes": data.order.chunks * data.mean_chunk_bytes,
            "num_canonical_nodes": data.order.resolved_nodes if isinstance(data.order, Window) else 1,
            "call": data.call,
            "refused": data.refusal,
            "vr": {size: self.ratio(size) for size in sizes},
            "rank_held_bytes": sum(held_by_a_rank(data, cluster, self.reads.held_chunks, reads_of_a_rank)),
            "rank_memory_bytes": memory.total,
            "rank_memory_parts": memory.to_dict(),
            "node_memory_bytes": memory.total * cluster.ranks_per_node,
            "num_requests": round(self.num_requests + self.num_looks),
            "num_looks": round(self.num_looks),
            "read_bytes": self.read_bytes,
            "amplification": self.reads.amplification,
            "is_simulated_exactly": self.is_exact,
            "requests_error": self.reads.error,
            "held_error": self.reads.held_error,
            "concurrency": costs.concurrency,
            "node_requests_per_second": costs.requests_per_second,
            "node_traffic_bytes_per_second": costs.node_bytes_per_second,
            "first_batch_seconds": costs.first_batch_seconds,
            "epoch_seconds": costs.epoch_seconds,
            "waiting_share": costs.waiting_share,
            "epoch_price": costs.epoch_price + self.num_looks * cluster.request_price,
            "sequential": {name: getattr(sequential, name) for name in sequential.__slots__},
        }

    def figures(self) -> PlanFigures:
        """Return the numbers that the figures show."""
        batch, over = self.cluster.global_batch, self.reads.over_time
        largest = min(self.data.num_samples, int(self.data.chunk_samples.sum())) // 2
        below = [batch >> power for power in range(6, 0, -1) if batch >> power >= 2]
        above = [batch << power for power in range(_MOST_SIZES - len(below)) if batch << power <= largest]
        reads = over.num_reads / max(1, int(over.num_reads.sum()))
        mean = self.costs.node_bytes_per_second
        if not self.is_exact:  # the ends weigh more in the simulated part than in the epoch
            reads = reads / max(1e-12, float(np.median(reads))) / len(reads)
        return PlanFigures(
            batch=batch,
            vr={size: self.ratio(size) for size in (*below, *(above or [batch]))},
            rank_bytes=self.rank_bytes,
            node_bytes_per_second=_within(reads * len(reads) * mean, self.cluster.node_bytes_per_second),
            node_limit=self.cluster.node_bytes_per_second,
            heat=over.heat,
            is_whole=self.is_exact,
        )


def _within(wanted: NDArray[np.float64], limit: float) -> NDArray[np.float64]:
    """Return the bytes that a node receives within its limit: the excess comes later, and at the end earlier.

    >>> _within(np.array([9.0, 1.0, 1.0, 5.0]), 4.0).tolist()
    [4.0, 4.0, 4.0, 4.0]
    """
    received, left = wanted.copy(), 0.0
    for place in (*range(len(wanted)), *reversed(range(len(wanted)))):
        due = received[place] + left
        received[place] = min(due, limit)
        left = due - received[place]
    return received


def what_if(plan: Planned) -> list[list[str]]:
    """Return the plan with one thing changed at a time, as a table with its heads."""
    rows: list[tuple[str, dict[str, Any]]] = []
    for name, data, cluster in _changes(plan):
        if data is None or not cluster.world_size <= cluster.global_batch < data.num_samples // 2:
            continue
        changed = plan if not rows else Planned.of(data, cluster, rho=plan.rho, most_positions=_FEW_POSITIONS)
        rows.append((name, changed.record()))
    columns: Mapping[str, tuple[str, Any]] = {
        "Window": ("window_bytes", None),
        "Chunk": ("chunk_bytes", None),
        "VR": ("vr", lambda found: f"{next(iter(found.values())):.2f}"),
        "Memory of a node": ("node_memory_bytes", None),
        "Requests of a node": ("node_requests_per_second", None),
        "Traffic of a node": ("node_traffic_bytes_per_second", None),
        "Reads of a chunk": ("amplification", lambda found: f"{found:.2f}"),
        "First batch": ("first_batch_seconds", None),
        "Epoch": ("epoch_seconds", None),
        "Waiting": ("waiting_share", lambda found: f"{found:.1%}"),
    }
    if plan.costs.epoch_price:
        columns = {**columns, "Price": ("epoch_price", lambda found: f"{found:,.4g}")}
    texts = [
        [
            name,
            *(said(record[key]) if said else format_value(key, record[key]) for key, said in columns.values()),
        ]
        for name, record in rows
    ]
    return [["Change", *columns], *texts]


def _changes(plan: Planned) -> list[tuple[str, PlannedData | None, Cluster]]:
    data, cluster = plan.data, plan.cluster
    changed = [
        ("this plan", data, cluster),
        ("half the window", data.with_chunks(window=0.5), cluster),
        ("twice the window", data.with_chunks(window=2.0), cluster),
        ("half the chunk", data.with_chunks(chunk=0.5), cluster),
        ("twice the chunk", data.with_chunks(chunk=2.0), cluster),
        ("half the global batch", data, replace(cluster, global_batch=cluster.global_batch // 2)),
        ("twice the global batch", data, replace(cluster, global_batch=2 * cluster.global_batch)),
        ("twice the nodes", data, replace(cluster, num_nodes=2 * cluster.num_nodes)),
    ]
    if cluster.num_nodes > 1:
        changed.append(("half the nodes", data, replace(cluster, num_nodes=cluster.num_nodes // 2)))
    return changed

"""The chunk cache that a plan has in each node: what it takes, and the reads that it leaves over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from shoal.cli.plan.planned_data import PlannedData
from shoal.figures import bytes_text, counted, format_bytes, format_count
from shoal.storage.chunk_cache.chunk_cache import LEAST_BUDGET_BYTES
from shoal.tools.planning.node_cache import EpochReads, cached_reads, fullest_node_bytes, node_window_bytes
from shoal.tools.planning.simulated_reads import ClusterReads
from shoal.tools.planning.sizing import Cluster

_LITTLE = 0.95  # of all reads


@dataclass(frozen=True, slots=True)
class PlannedCache:
    """A chunk cache in each node, with a budget, and the reads of all nodes that reach the store, by epoch.

    The ranks of a node share ``least_bytes`` at a time: a stream refuses a smaller budget. ``full_bytes`` hold all that
    the fullest node reads in these epochs. ``num_spilled`` chunks are decoded into the cache, which is not planned.
    """

    budget_bytes: int
    least_bytes: int
    full_bytes: float
    num_spilled: int
    epochs: Sequence[EpochReads]

    @classmethod
    def of(cls, epochs: Sequence[ClusterReads], data: PlannedData, cluster: Cluster) -> Self:
        """Compute what caches with the budget of the cluster leave over of the simulated epochs."""
        budget_bytes = cluster.cache_bytes or 0
        scale = data.num_chunks / len(data.chunk_samples)
        least_bytes = least_cache_bytes(data, cluster)
        left = cached_reads(
            epochs,
            data.chunk_bytes,
            ranks_per_node=cluster.ranks_per_node,
            budget_bytes=budget_bytes,
            window_bytes=least_bytes,
            scale=scale,
        )
        full_bytes = fullest_node_bytes(epochs, data.chunk_bytes, scale=scale)
        return cls(budget_bytes, least_bytes, full_bytes, data.num_spilled, left)

    def record(
        self, *, requests_per_read: float, num_stats: float, num_nodes: int, num_chunks: float
    ) -> dict[str, Any]:
        """Return names and values; of the ``num_chunks`` that are read, ``num_stats`` requests check the shards."""
        budget = bytes_text(self.budget_bytes, is_enough=self.budget_bytes.__eq__)
        return {
            "open_call": f'shoal.open(..., cache={{"directory": ..., "budget": "{budget}"}})',
            "cache_bytes": self.budget_bytes,
            "used_cache_bytes": min(float(self.budget_bytes), self.full_bytes),
            "least_cache_bytes": self.least_bytes,
            "full_cache_bytes": self.full_bytes,
            "node_epochs": [
                {
                    "epoch": name,
                    "num_requests": round((left.num_reads * requests_per_read + stats) / num_nodes),
                    "read_bytes": left.num_bytes / num_nodes,
                    "amplification": left.num_reads / num_chunks,
                }
                for name, left, stats in zip(("first", "second"), self.epochs, (num_stats, 0.0), strict=True)
            ],
        }

    @property
    def refusal(self) -> str:
        """Reason why a stream would not start with this cache; empty if it would."""
        if self.budget_bytes >= self.least_bytes:
            return ""
        given, least = format_bytes(self.budget_bytes), format_bytes(self.least_bytes)
        return f"the cache may take {given}, and the windows of a node hold {least}"

    @property
    def warnings(self) -> list[str]:
        """Warnings of a small cache, and of chunks that are decoded into it."""
        said = []
        if self.least_bytes <= self.budget_bytes < 2 * self.least_bytes:
            least = format_bytes(self.least_bytes)
            text = f"The cache is small: the ranks of a node share {least} at a time, and twice that is better."
            said.append(f"{text} Chunks may be gone before all ranks have read them.")
        if self.num_spilled:
            chunks = counted(self.num_spilled, "chunk")
            said.append(f"Too large for the window: {chunks}, to be decoded into the cache. The plan leaves that out.")
        return said


def cache_facts(record: Mapping[str, Any]) -> dict[str, str]:
    """Return what a page says of the cache of a node, by heading; empty if there is none."""
    if "node_epochs" not in record:
        return {}
    facts = {text: format_bytes(record[name]) for name, text in _FACTS.items()}
    for epoch in record["node_epochs"]:
        requests, read = format_count(epoch["num_requests"]), format_bytes(epoch["read_bytes"])
        facts[f"Read in the {epoch['epoch']} epoch"] = f"{read}, {requests} requests"
    return facts


_FACTS = {
    "cache_bytes": "Budget",
    "used_cache_bytes": "Used on disk",
    "least_cache_bytes": "Shared by ranks at a time",
    "full_cache_bytes": "Holds all that a node reads, with",
}


def cache_advice(record: Mapping[str, Any], least_bytes: int) -> str:
    """Return what a cache would save where ranks of a node read the same chunks; empty if little."""
    now, then = record["amplification"], record["amplification_with_cache"]
    if "node_epochs" in record or then > _LITTLE * now:
        return ""
    budget = f"{math.ceil(2 * least_bytes / 2**20)}MiB"
    return f"A chunk cache on each node (--cache {budget}) would have each chunk read {then:.2f} times, not {now:.2f}."


def least_cache_bytes(data: PlannedData, cluster: Cluster) -> int:
    """Return the smallest budget of a chunk cache that a stream accepts."""
    shared = node_window_bytes(
        chunks=min(data.order.chunks, data.num_chunks),
        mean_bytes=data.stored_bytes / data.num_chunks,
        ranks_per_node=cluster.ranks_per_node,
        world_size=cluster.world_size,
    )
    return max(LEAST_BUDGET_BYTES, shared)

"""Plan a chunk cache in each node: its size, and the reads that still reach the store."""

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

_LITTLE_SAVED = 0.95  # with a larger share of remaining reads, a cache is not recommended


@dataclass(frozen=True, slots=True)
class PlannedCache:
    """A chunk cache in each node, and the reads of all nodes from the store in each epoch.

    The ranks of a node share ``least_bytes`` at a time; a stream refuses a smaller budget. ``full_bytes`` holds all
    reads of the fullest node. The plan ignores ``num_spilled`` chunks decoded into the cache.
    """

    budget_bytes: int
    least_bytes: int
    full_bytes: float
    num_spilled: int
    epochs: Sequence[EpochReads]

    @classmethod
    def of(cls, epochs: Sequence[ClusterReads], data: PlannedData, cluster: Cluster) -> Self:
        """Compute the remaining reads from the store in simulated epochs, with caches of the cluster's budget."""
        budget_bytes = cluster.cache_bytes or 0
        scale = data.num_chunks / len(data.chunk_samples)
        least_bytes = least_cache_bytes(data, cluster)
        fetched = cached_reads(
            epochs,
            data.chunk_bytes,
            ranks_per_node=cluster.ranks_per_node,
            budget_bytes=budget_bytes,
            window_bytes=least_bytes,
            scale=scale,
        )
        full_bytes = fullest_node_bytes(epochs, data.chunk_bytes, scale=scale)
        return cls(budget_bytes, least_bytes, full_bytes, data.num_spilled, fetched)

    def record(
        self, *, requests_per_read: float, num_stats: float, num_nodes: int, num_chunks: float
    ) -> dict[str, Any]:
        """Return the figures by name; ``num_stats`` requests check the shards."""
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
                    "num_requests": round((reads.num_reads * requests_per_read + stats) / num_nodes),
                    "read_bytes": reads.num_bytes / num_nodes,
                    "amplification": reads.num_reads / num_chunks,
                }
                for name, reads, stats in zip(("first", "second"), self.epochs, (num_stats, 0.0), strict=True)
            ],
        }

    @property
    def refusal(self) -> str:
        """Reason why a stream refuses this cache; empty if a stream accepts the cache."""
        if self.budget_bytes >= self.least_bytes:
            return ""
        budget, least = format_bytes(self.budget_bytes), format_bytes(self.least_bytes)
        return f"the cache may take {budget}, but the windows of a node hold {least}"

    @property
    def warnings(self) -> list[str]:
        """Warnings about a small cache and about chunks decoded into the cache."""
        warnings = []
        if self.least_bytes <= self.budget_bytes < 2 * self.least_bytes:
            least = format_bytes(self.least_bytes)
            text = f"The cache is small: the ranks of a node share {least} at a time; use a cache twice as large."
            warnings.append(f"{text} The cache may drop chunks before all ranks have read the chunks.")
        if self.num_spilled:
            chunks = counted(self.num_spilled, "chunk")
            warnings.append(
                f"Too large for the window: {chunks}, to be decoded into the cache. The plan does not count this."
            )
        return warnings


def cache_facts(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts about a node's cache for a page; empty without a cache."""
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
    "full_cache_bytes": "Size for all reads of a node",
}


def cache_advice(record: Mapping[str, Any], least_bytes: int) -> str:
    """Return the saving of a cache if ranks of a node read the same chunks; empty for a small saving."""
    now, then = record["amplification"], record["amplification_with_cache"]
    if "node_epochs" in record or then > _LITTLE_SAVED * now:
        return ""
    budget = f"{math.ceil(2 * least_bytes / 2**20)}MiB"
    return f"A chunk cache on each node (--cache {budget}) reduces the reads of a chunk from {now:.2f} to {then:.2f}."


def least_cache_bytes(data: PlannedData, cluster: Cluster) -> int:
    """Return the smallest cache budget that a stream accepts."""
    shared = node_window_bytes(
        chunks=min(data.order.chunks, data.num_chunks),
        mean_bytes=data.stored_bytes / data.num_chunks,
        ranks_per_node=cluster.ranks_per_node,
        world_size=cluster.world_size,
    )
    return max(LEAST_BUDGET_BYTES, shared)

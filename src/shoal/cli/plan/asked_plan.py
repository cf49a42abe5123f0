"""The plan that arguments of `shoal plan` ask for: the cluster, the data in an order, and the simulated reads."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from typing import NamedTuple

from shoal.cli.options.source_options import names_mixture
from shoal.cli.plan.planned import Planned
from shoal.cli.plan.planned_data import PlannedData, planned_data, windowed
from shoal.cli.plan.planned_mixture import planned_mixture
from shoal.cli.plan.planned_sequences import planned_sequences
from shoal.errors import UsageError
from shoal.figures import parse_bytes
from shoal.storage.chunk_cache.chunk_cache import LEAST_BUDGET_BYTES
from shoal.tools.planning.sizing import Cluster


class AskedPlan(NamedTuple):
    """A plan, and the sequences that each strategy makes of documents; none if they are not packed."""

    plan: Planned
    sequences: dict[str, dict[str, float]]


def asked_plan(arguments: argparse.Namespace, known: PlannedData | None = None) -> AskedPlan:
    """Return the plan for these arguments; ``known`` are the same data in another order."""
    cluster = _cluster(arguments)
    if bool(arguments.source) == (arguments.num_samples is not None):
        raise UsageError("a plan is made of SOURCE, or of --num-samples with --sample-bytes; give one of them")
    is_mixture = bool(arguments.source) and names_mixture(arguments)
    data = (planned_mixture if is_mixture else planned_data)(arguments, cluster, known)
    num_together, sequences = cluster.global_batch, planned_sequences(arguments, data.resolved)
    if sequences:
        documents = num_together * sequences["best_fit"]["documents_per_sequence"]
        cluster = replace(cluster, global_batch=max(cluster.world_size, round(documents)))
    if data.num_samples <= cluster.global_batch:
        msg = f"{data.num_samples:,} samples are no more than a global batch of {cluster.global_batch:,}"
        if sequences:
            msg += f", the documents in {num_together:,} sequences"
        raise UsageError(msg, hint="a smaller --global-batch")
    plan = Planned.of(data, cluster, rho=arguments.rho)
    if data.listed is not None:
        growing = data.listed.quality(windowed(data.order), data.mean_chunk_bytes, cluster.global_batch, arguments)
        plan = replace(plan, growing=growing)
    return AskedPlan(plan, sequences)


def _cluster(arguments: argparse.Namespace) -> Cluster:
    for name in ("latency", "step_seconds", "get_price", "gigabyte_price"):
        value = getattr(arguments, name)
        if value is not None and not (math.isfinite(value) and value >= 0.0 and (value or name != "step_seconds")):
            msg = f"--{name.replace('_', '-')} must not be negative, and a step takes some time; got {value}"
            raise UsageError(msg)
    if arguments.global_batch < arguments.nodes * arguments.ranks_per_node:
        msg = f"a global batch of {arguments.global_batch} has no sample for each of "
        msg += f"{arguments.nodes * arguments.ranks_per_node} ranks"
        raise UsageError(msg, hint="--global-batch counts over all ranks")
    return Cluster(
        num_nodes=arguments.nodes,
        ranks_per_node=arguments.ranks_per_node,
        global_batch=arguments.global_batch,
        memory_bytes=parse_bytes(arguments.memory, "--memory"),
        cache_bytes=_cache_bytes(arguments.cache),
        latency_seconds=arguments.latency,
        connection_bytes_per_second=parse_bytes(arguments.connection_bandwidth, "--connection-bandwidth"),
        node_bytes_per_second=parse_bytes(arguments.node_bandwidth, "--node-bandwidth"),
        step_seconds=arguments.step_seconds,
        request_price=arguments.get_price / 1000,
        byte_price=arguments.gigabyte_price / 1e9,
    )


def _cache_bytes(text: str) -> int | None:
    if text == "none":
        return None
    cache_bytes = parse_bytes(text, "--cache")
    if cache_bytes < LEAST_BUDGET_BYTES:
        msg = f"asked for a chunk cache of {cache_bytes} bytes; the least is {LEAST_BUDGET_BYTES}"
        raise UsageError(msg, hint="--cache 200GiB, or --cache none")
    return cache_bytes

"""The plan that the arguments of `shoal plan` describe, and variants with one argument changed."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from shoal.cli import output
from shoal.cli.options.argument_types import option_of
from shoal.cli.options.source_options import names_mixture
from shoal.cli.options.stream_options import sequence_request
from shoal.cli.plan.planned import Planned
from shoal.cli.plan.planned_cache import least_cache_bytes
from shoal.cli.plan.planned_data import PlannedData, planned_data
from shoal.cli.plan.planned_mixture import planned_mixture
from shoal.cli.plan.planned_reading import windowed
from shoal.errors import UsageError
from shoal.figures import parse_bytes
from shoal.order.arrays.index_ranges import Runs
from shoal.order.position_subsets import WithoutGaps
from shoal.order.sequences.groupings import STRATEGIES, Packing
from shoal.order.sequences.packed_order import PackedOrder
from shoal.quality.curves import near_variance_ratio
from shoal.reading.resolved_order import ResolvedOrder
from shoal.storage.chunk_cache.chunk_cache import LEAST_BUDGET_BYTES
from shoal.tools.planning.sizing import Cluster


class RequestedPlan(NamedTuple):
    """A plan, and figures of packed sequences by strategy; empty if documents are not packed."""

    plan: Planned
    sequences: dict[str, dict[str, float]]


def requested_plan(arguments: argparse.Namespace, known: PlannedData | None = None) -> RequestedPlan:
    """Return the plan for these arguments; ``known`` is the same data in another order."""
    cluster = _cluster(arguments)
    if bool(arguments.source) == (arguments.num_samples is not None):
        raise UsageError("a plan needs SOURCE, or --num-samples with --sample-bytes; give one of them")
    is_mixture = bool(arguments.source) and names_mixture(arguments)
    data = (planned_mixture if is_mixture else planned_data)(arguments, cluster, known)
    num_together, sequences = cluster.global_batch, planned_sequences(arguments, data.resolved)
    if sequences:
        documents = num_together * sequences["best_fit"]["documents_per_sequence"]
        cluster = replace(cluster, global_batch=max(cluster.world_size, round(documents)))
    if data.num_samples <= cluster.global_batch:
        msg = f"{data.num_samples:,} samples do not exceed a global batch of {cluster.global_batch:,}"
        if sequences:
            msg += f", the documents in {num_together:,} sequences"
        raise UsageError(msg, hint="a smaller --global-batch")
    plan = Planned.of(data, cluster, rho=arguments.rho)
    if data.listed is not None:
        growing = data.listed.quality(windowed(data.order), data.mean_chunk_bytes, cluster.global_batch, arguments)
        plan = replace(plan, growing=growing)
    return RequestedPlan(plan, sequences)


def _cluster(arguments: argparse.Namespace) -> Cluster:
    for name in ("latency", "step_seconds", "get_price", "gigabyte_price"):
        value = getattr(arguments, name)
        if value is not None and not (math.isfinite(value) and value >= 0.0 and (value or name != "step_seconds")):
            bound = "above 0" if name == "step_seconds" else "0 or above"
            raise UsageError(f"{option_of(name)} must be {bound}; got {value}")
    if arguments.global_batch < arguments.nodes * arguments.ranks_per_node:
        num_ranks = arguments.nodes * arguments.ranks_per_node
        msg = f"a global batch of {arguments.global_batch} has no sample for each of {num_ranks} ranks"
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
        msg = f"a chunk cache of {cache_bytes} bytes is too small; the minimum is {LEAST_BUDGET_BYTES}"
        raise UsageError(msg, hint="--cache 200GiB, or --cache none")
    return cache_bytes


_MOST_DOCUMENTS = 1 << 21
_FEW_SEQUENCES = 1 << 16


def planned_sequences(arguments: argparse.Namespace, resolved: ResolvedOrder | None) -> dict[str, dict[str, float]]:
    """Return, by strategy, the number of packed sequences, their fill, and the number of cut documents.

    Packs epoch 0, or its first 2 million documents.
    """
    length = arguments.pack_sequences
    if length is None:
        return {}
    if resolved is None:
        msg = "--pack-sequences needs the lengths of documents, but --num-samples gives none"
        raise UsageError(msg, hint="give SOURCE, with a column of lengths in its index")
    by_strategy: dict[str, dict[str, float]] = {}
    documents = resolved.epoch(0)
    scale = max(1.0, documents.num_samples / _MOST_DOCUMENTS)
    if scale > 1.0:
        documents = WithoutGaps(documents, Runs.span(0, _MOST_DOCUMENTS))
    for strategy in STRATEGIES:
        lengths = sequence_request(arguments, strategy).lengths_in([resolved])
        packed = PackedOrder(documents, lengths, Packing(length, strategy), seed=resolved.seed, epoch=0)
        num_tokens = num_cut = 0
        for start in range(0, packed.num_samples, _FEW_SEQUENCES):
            pieces = packed.pieces(packed.ids(start, min(start + _FEW_SEQUENCES, packed.num_samples)))
            num_tokens += int((pieces.stops - pieces.starts).sum())
            num_cut += int(np.count_nonzero((pieces.starts == 0) & (pieces.stops < lengths[pieces.ids])))
        if not packed.num_samples:
            msg = f"no document of the source has tokens in the column {arguments.lengths!r}"
            raise UsageError(msg, hint="--lengths names the column with the number of tokens")
        by_strategy[strategy] = {
            "num_sequences": round(scale * packed.num_samples),
            "filled": num_tokens / (length * packed.num_samples),
            "num_cut_documents": round(scale * num_cut),
            "documents_per_sequence": documents.num_samples / packed.num_samples,
        }
    return by_strategy


def sequence_text(facts: dict[str, Any], global_batch: int) -> str:
    """Return the figures of a strategy as text."""
    steps = facts["num_sequences"] // global_batch
    cut = facts["num_cut_documents"]
    return f"{facts['num_sequences']:,} sequences, {steps:,} steps, {facts['filled']:.2%} filled, {cut:,} documents cut"


class Row(NamedTuple):
    """A changed plan: the name of the change, its options, and the record of the plan.

    The options replace the options of the original plan; None removes an option.
    """

    name: str
    options: Mapping[str, Any]
    record: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The options as words of a shell."""
        return option_words(self.options)


def option_words(options: Mapping[str, Any]) -> str:
    """Return options as words of a shell, without options that are None."""
    return " ".join(f"{option_of(name)} {value}" for name, value in options.items() if value is not None)


def changed_plan(arguments: argparse.Namespace, options: Mapping[str, Any], plan: Planned) -> Planned | None:
    """Return the plan with other options, or None if it is impossible."""
    changed = argparse.Namespace(**{**vars(arguments), **options})
    try:
        return requested_plan(changed, plan.data).plan
    except UsageError:  # chunks below an extent, say, or fewer samples than a batch
        return None


def what_if_rows(arguments: argparse.Namespace, plan: Planned) -> Iterator[Row]:
    """Yield the plan with one change at a time; impossible changes are skipped."""
    for name, options in _changes(arguments, plan):
        changed = changed_plan(arguments, options, plan)
        if changed is not None and (record := changed.record())["vr"]:
            yield Row(name, options, record)


def what_if(arguments: argparse.Namespace, plan: Planned) -> list[list[str]]:
    """Return the what-if table, heads first: the plan, then the plan with one change at a time."""
    rows = [Row("this plan", {}, plan.record()), *what_if_rows(arguments, plan)]
    columns: dict[str, tuple[str, Any]] = {
        "Window": ("window_bytes", None),
        "Chunk": ("chunk_bytes", None),
        "VR": ("vr", lambda ratios: f"{next(iter(ratios.values())):.2f}"),
        "VR of four batches": ("vr", lambda ratios: f"{near_variance_ratio(ratios, next(iter(ratios))):.2f}"),
        "Memory of a node": ("node_memory_bytes", None),
        "Requests of a node": ("node_requests_per_second", None),
        "Traffic of a node": ("node_traffic_bytes_per_second", None),
        "Reads of a chunk": ("amplification", lambda reads: f"{reads:.2f}"),
        "First batch": ("first_batch_seconds", None),
        "Epoch": ("epoch_seconds", None),
        "Waiting": ("waiting_share", lambda share: f"{share:.1%}"),
    }
    if plan.cached is not None:
        columns["Read in a second epoch"] = ("node_epochs", _second_epoch)
    if plan.costs.epoch_price:
        columns["Price"] = ("epoch_price", lambda price: f"{price:,.4g}")
    texts = [
        [row.name, *(text_of(row.record.get(key)) if text_of else output.format_value(key, row.record[key])
                     for key, text_of in columns.values()), row.text]
        for row in rows
    ]  # fmt: skip
    return [["Change", *columns, "Options"], *texts]


def _changes(arguments: argparse.Namespace, plan: Planned) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the options of each change; the options keep the order of the plan."""
    batch, nodes = arguments.global_batch, arguments.nodes
    reading = plan.data.reading
    same = reading.options() or {}
    for name, factors in (
        ("half the window", {"window": 0.5}),
        ("twice the window", {"window": 2.0}),
        ("half the chunk", {"chunk": 0.5}),
        ("twice the chunk", {"chunk": 2.0}),
    ):
        if (changed := reading.options(**factors)) is not None:
            yield name, changed
    if batch > 1:
        yield "half the global batch", {**same, "global_batch": batch // 2}
    yield "twice the global batch", {**same, "global_batch": 2 * batch}
    yield "twice the nodes", {**same, "nodes": 2 * nodes}
    if nodes > 1:
        yield "half the nodes", {**same, "nodes": nodes // 2}
    if plan.cluster.cache_bytes is not None:
        yield "half the cache", {**same, "cache": str(plan.cluster.cache_bytes // 2)}
        yield "twice the cache", {**same, "cache": str(2 * plan.cluster.cache_bytes)}
        yield "no cache", {**same, "cache": "none"}
    elif plan.cluster.ranks_per_node > 1 and reading.plans_cache:
        yield "a cache in each node", {**same, "cache": str(2 * least_cache_bytes(plan.data, plan.cluster))}


def _second_epoch(node_epochs: Sequence[Mapping[str, float]] | None) -> str:
    """Return the bytes of the second epoch as a share of the first."""
    if node_epochs is None:
        return "100%"
    first, second = node_epochs
    return f"{second['read_bytes'] / first['read_bytes']:.0%}"

"""The `shoal plan` command: recommend chunks and a window for a cluster, and predict mixing, memory and cost."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from shoal.cli import output
from shoal.cli.display.pages import add_page_arguments, check_picture, typed_command, write_page, write_picture
from shoal.cli.options.argument_types import count
from shoal.cli.options.source_options import add_json_argument, add_source_arguments, source_of
from shoal.cli.options.stream_options import add_order_arguments, add_sequence_arguments
from shoal.cli.plan.chunk_sizes import chunk_size_text, planned_chunk_sizes
from shoal.cli.plan.planned import Planned
from shoal.cli.plan.planned_cache import cache_advice, cache_facts, least_cache_bytes
from shoal.cli.plan.requested_plan import requested_plan, sequence_text, what_if
from shoal.figures import counted
from shoal.quality.curves import NEAR_BATCHES, near_variance_ratio
from shoal.storage.sources.source import printed
from shoal.tools.planning.sizing import Cluster
from shoal.tools.reports.chunk_size_figure import ChunkSize
from shoal.tools.reports.plan_page import plan_page, plan_picture

_CLUSTER_OPTIONS: tuple[tuple[str, Any, str, Any, str], ...] = (
    ("--nodes", count, "P", 1, "machines"),
    ("--ranks-per-node", count, "R", 1, "processes on each machine"),
    ("--global-batch", count, "G", 256, "samples of a step"),
    ("--memory", str, "BYTES", "8GiB", "memory of each node for the stream"),
    ("--cache", str, "BYTES", "none", "budget of a chunk cache on each node"),
    ("--latency", float, "SECONDS", 0.03, "latency of a request"),
    ("--connection-bandwidth", str, "BYTES", "90MB", "bandwidth of a connection"),
    ("--node-bandwidth", str, "BYTES", "1.25GB", "bandwidth of a node"),
    ("--step-seconds", float, "T", None, "duration of a step"),
    ("--get-price", float, "X", 0.0, "price of 1000 requests"),
    ("--gigabyte-price", float, "X", 0.0, "price of 10^9 bytes"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.epilog = (
        "Reads are simulated: the whole epoch up to 2 million samples, or a representative part. Bandwidths are bytes "
        "per second: 1.25GB is a 10 Gbit network. --index grow predicts the mixing of a first epoch while shards are "
        "indexed: the command lists the shards, and indexes only the first shards, or no shards with --sample-bytes."
    )
    add_source_arguments(parser, is_optional=True)
    data = parser.add_argument_group("data", "instead of SOURCE, or of the shards of --index grow")
    data.add_argument("--num-samples", type=count, metavar="N", help="number of samples, such as 2e9")
    data.add_argument("--sample-bytes", metavar="BYTES", help="mean size of a sample, such as 8KB")
    data.add_argument("--rho", type=float, metavar="R", default=1.0, help="correlation inside chunks (default: 1)")
    text = "correlation inside shards, between chunks, for --index grow (default: --rho)"
    data.add_argument("--shard-rho", type=float, metavar="R", help=text)
    cluster = parser.add_argument_group("cluster")
    for option, kind, metavar, default, text in _CLUSTER_OPTIONS:
        shown = default if default is not None else "as fast as data arrive"
        cluster.add_argument(option, type=kind, metavar=metavar, default=default, help=f"{text} (default: {shown})")
    add_order_arguments(parser, default="default: the recommended order")
    add_sequence_arguments(parser, batches="--global-batch")
    text = "plan the window in chunks of other sizes too; takes as long as a plan of each size"
    parser.add_argument("--chunk-sizes", action="store_true", help=text)
    add_page_arguments(parser, html=", with a what-if table")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the plan of the given order, or of the recommended order."""
    check_picture(arguments.picture)
    plan, sequences = requested_plan(arguments)
    cluster, data, num_together = plan.cluster, plan.data, arguments.global_batch
    record = plan.record()
    if sequences:
        record["sequences"] = sequences
    warnings = _warnings(record, cluster)
    if plan.cached is not None:
        warnings += plan.cached.warnings
    elif data.reading.plans_cache and (advice := cache_advice(record, least_cache_bytes(data, cluster))):
        warnings.append(advice)
    dataset = output.format_value("dataset_bytes", record["dataset_bytes"])
    ranks, nodes = counted(cluster.world_size, "rank"), counted(cluster.num_nodes, "node")
    samples = counted(record["num_samples"], "sample")
    head = {
        "title": f"Plan for {printed(source_of(arguments)) if arguments.source else f'{dataset} in {samples}'}",
        "about": f"{ranks} on {nodes}, global batches of {cluster.global_batch:,}; {samples}, {dataset}",
        "lead": " ".join([_lead(record, cluster), *warnings]),
    }
    is_drawn = arguments.picture is not None or arguments.html is not None
    sizes = planned_chunk_sizes(arguments, plan) if is_drawn or arguments.chunk_sizes else []
    if is_drawn:
        _draw(arguments, plan, record, sizes, head)
    if arguments.json:
        more = {"chunk_sizes": [asdict(size) for size in sizes]} if arguments.chunk_sizes else {}
        output.emit(record | more, as_json=True)
    else:
        beside_vr = chunk_size_text(plan, record["vr"], sizes if arguments.chunk_sizes else None)
        _show(record, cluster, [*warnings, *data.reading.notes], beside_vr)
        if sequences:
            output.say(f"\nsequences of {arguments.pack_sequences:,} tokens, {num_together:,} in a step:")
            for strategy, facts in sequences.items():
                output.say(f"  {strategy:9}  {sequence_text(facts, num_together)}")
        if plan.growing is not None:
            output.say(f"\nfirst epoch, while shards are indexed: {plan.growing}")
    return 0


def _draw(
    arguments: argparse.Namespace,
    plan: Planned,
    record: dict[str, Any],
    sizes: Sequence[ChunkSize],
    head: Mapping[str, str],
) -> None:
    """Write the picture and the page that are asked for."""
    drawn = replace(plan.figures(), chunk_sizes=sizes)
    if arguments.picture is not None:
        write_picture(arguments.picture, plan_picture(drawn, **head))
    if arguments.html is not None:
        made_by, call = typed_command(arguments.words), f"{record.get('open_call', 'ds')}.{record['call']}"
        groups = _groups(record)
        if sequences := record.get("sequences"):
            heading = f"Sequences of {arguments.pack_sequences:,} tokens"
            groups[heading] = {name: sequence_text(facts, arguments.global_batch) for name, facts in sequences.items()}
        table = what_if(arguments, plan)
        page = plan_page(drawn, groups, table, call=call, notes=_notes(plan, sizes), made_by=made_by, **head)
        write_page(arguments.html, page)


def _show(record: dict[str, Any], cluster: Cluster, warnings: list[str], beside_vr: str) -> None:
    facts = {name: value for name, value in record.items() if name not in _SHOWN_APART}
    error, held_error = facts.pop("requests_error"), facts.pop("held_error")
    is_exact = facts.pop("is_simulated_exactly")
    facts["reads simulated"] = "all of the epoch" if is_exact else f"part of the epoch, {_give_or_take(error)}"
    if held_error:
        facts["chunks held"] = f"give or take {200.0 * held_error:.0f} %"
    facts["waiting for data"] = f"{facts.pop('waiting_share'):.1%}"
    output.emit(output.without_usual(facts, epoch_price=0.0, num_looks=0))
    for warning in warnings:
        output.say()
        output.say(warning)
    output.say()
    samples = "documents" if "sequences" in record else "samples"
    for size, ratio in record["vr"].items():
        output.say(f"batches of {size:,} {samples}: VR {ratio:.2f} (1 is a perfect shuffle)")
    if record["vr"]:
        near = near_variance_ratio(record["vr"], next(iter(record["vr"])))
        output.say(f"means of {NEAR_BATCHES} successive batches: VR {near:.2f} (the loss follows this one)")
    if beside_vr:
        output.say(beside_vr)
    output.say()
    if "open_call" in record:
        output.say(f"ds = {record['open_call']}")
    output.say(f"ds.{record['call']}")
    shards = record["sequential"]
    output.say()
    if cluster.latency_seconds:  # without latency, reads of any size have full speed
        output.say(
            f"Shards read whole, one after another: at least {shards['shard_bytes'] / 1e9:.3g} GB each for 1 % "
            f"overhead, {shards['num_shards']:,} shards."
        )
    output.say(
        f"A buffer in {cluster.memory_bytes / 1e9:.4g} GB holds {shards['buffer_samples']:,} samples, "
        f"{shards['buffer_share']:.3%} of all."
    )


def _warnings(record: dict[str, Any], cluster: Cluster) -> list[str]:
    """Return warnings about too little memory, a refused run, and a badly mixed first epoch."""
    warnings = []
    if record["node_memory_bytes"] > cluster.memory_bytes:
        parts = {name: cluster.ranks_per_node * part for name, part in record["rank_memory_parts"].items()}
        parts["index_bytes"] = record["index_bytes"]
        part, remedy = _MEMORY_PARTS[max(parts, key=lambda name: parts[name])]
        limit = output.format_value("memory_bytes", cluster.memory_bytes)
        text = f"This is more than the {limit} of a node (--memory). The largest part: {part.lower()}."
        warnings.append(f"{text} To save memory: {remedy}.")
    if record["refused"]:
        warnings.append(f"A run would be refused: {record['refused']}")
    if record.get("growing", {}).get("warning"):
        warnings.append(f"Shuffling: {record['growing']['warning']}.")
    return warnings


def _groups(record: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the facts of the page under their headings."""
    groups = {
        heading: {text: output.format_value(name, record[name]) for name, text in facts.items()}
        for heading, facts in _FACTS.items()
    }
    groups["Memory, reads and time"]["Steps wait for data"] = f"{record['waiting_share']:.1%} of the time"
    if record["epoch_price"]:
        groups["Memory, reads and time"]["Price of an epoch"] = f"{record['epoch_price']:,.4g}"
    if facts := cache_facts(record):
        groups["Chunk cache of a node"] = facts
    groups["Memory of a rank, by part"] = {
        _MEMORY_PARTS[name][0]: output.format_value(name, value) for name, value in record["rank_memory_parts"].items()
    }
    return groups


_SHOWN_APART = (
    *("vr", "sequential", "call", "open_call", "refused", "sequences", "growing"),
    *("amplification_with_cache", "amplification_without_cache"),
)
_FACTS = {
    "Chunks and window": {
        "chunk_bytes": "Chunk",
        "window_bytes": "Window",
        "window_chunks": "Chunks in the window",
        "num_canonical_nodes": "Canonical nodes",
    },
    "Memory, reads and time": {
        "rank_memory_bytes": "Memory of a rank",
        "index_bytes": "Index, mapped by all ranks of a node",
        "node_memory_bytes": "Memory of a node",
        "concurrency": "Requests at a time, on a node",
        "num_requests": "Requests in an epoch",
        "read_bytes": "Bytes in an epoch",
        "amplification": "Reads of each chunk",
        "node_requests_per_second": "Requests of a node",
        "node_traffic_bytes_per_second": "Traffic of a node",
        "first_batch_seconds": "First batch, or resume",
        "epoch_seconds": "Epoch",
    },
}

_MEMORY_PARTS = {  # title, and a change for a smaller part
    "in_use_bytes": ("Chunks in use", "a smaller --window, or more nodes"),
    "ahead_bytes": ("Read ahead", "a smaller --window or --chunk"),
    "batches_bytes": ("Two batches", "a smaller --global-batch, or more nodes"),
    "order_bytes": ("Order, and table of chunks", "a larger --chunk"),
    "coming_bytes": ("Plan of the next samples", "a smaller --window"),
    "index_bytes": ("Index", "larger extents (shoal index --extent-bytes)"),
    "spare_bytes": ("Code, and room to spare", "a smaller --chunk"),
}


def _lead(record: dict[str, Any], cluster: Cluster) -> str:
    near = near_variance_ratio(record["vr"], next(iter(record["vr"])))
    mixed = "no more than" if near < 1.1 else f"{near:.1f} times as much as"
    memory = output.format_value("node_memory_bytes", record["node_memory_bytes"])
    waits = record["waiting_share"]
    steps = "Steps do not wait for data" if waits < 0.005 else f"Steps wait for data {waits:.0%} of the time"
    vary = f"Means of {NEAR_BATCHES} successive global batches vary {mixed} in a perfect shuffle"
    return f"{vary}, with {memory} on each node" + (
        f". {steps}." if cluster.step_seconds else ". No step time was given: reading alone limits the epoch."
    )


def _notes(plan: Planned, sizes: Sequence[ChunkSize]) -> list[str]:
    reads = plan.reads
    if plan.is_exact:
        first = "The simulation covered the whole epoch: requests and bytes are within 5 % of a run."
    else:
        first = "A representative part of the epoch was simulated: requests and bytes are right "
        first += _give_or_take(reads.error)
        first += "." if reads.thinned == 1.0 else f"; one of {reads.thinned:.1f} samples of a chunk was simulated."
        if reads.held_error:
            first += f" The number of chunks held by a rank is right within {200.0 * reads.held_error:.0f} %."
    mixing = f"VR is predicted for a correlation of {plan.rho:g} inside chunks; with 1, every chunk holds samples of "
    mixing += "one kind. shoal audit and ds.quality() measure your data."
    times = "Times follow from the given latency and bandwidth. Memory excludes the interpreter, its modules, and your "
    times += "use of the samples. Each row of the table is the plan with the options in its last column. A chunk of "
    times += "more than 8 MiB is requested in parts of 4 MiB, on several connections: larger chunks then save no "
    times += "requests."
    cache = "Chunk caches are replayed by their own rules. The remaining reads are exact if the cache holds all reads "
    cache += "of its node, and within 15 % otherwise. Ranks are assumed to keep in step. Caches on a disk take no "
    cache += "memory."
    same = "The figure of chunk sizes keeps the bytes of the window, the canonical nodes and the correlation. Smaller "
    same += "chunks of real data can have a higher correlation; then VR is a little higher."
    notes = [first, *plan.data.reading.notes, mixing, *([same] if sizes else []), times]
    return [*notes, *([] if plan.cached is None else [cache])]


def _give_or_take(error: float) -> str:
    """Return the error as text: two standard deviations, and at least 5 % for the difference of model and run."""
    return f"give or take {max(5.0, 200.0 * error):.0f} %"

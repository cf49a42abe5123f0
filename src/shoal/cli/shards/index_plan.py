"""Estimate the time, reads and cost of an index (`shoal index --plan`), without writing anything."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

from shoal.cli import output
from shoal.cli.options.argument_types import option_of
from shoal.cli.options.engine_options import Engine
from shoal.errors import StorageError, UsageError
from shoal.figures import format_bytes, format_count, format_seconds, parse_bytes
from shoal.formats.shard_format import Format
from shoal.indexing.build import scan_tasks
from shoal.indexing.index_files import is_sent_instead
from shoal.indexing.indexing_estimate import IndexingCost, estimate_indexing
from shoal.indexing.manifests_beside import Described
from shoal.storage.sources.shard_selection import INDEX_NAME
from shoal.storage.sources.source import Source
from shoal.storage.store_protocol import Store
from shoal.storage.urls import join

_MOST_NAMED = 3
_WITH_PLAN = ("latency", "node_bandwidth", "get_price", "gigabyte_price")


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a plan."""
    group = parser.add_argument_group("plan", "before an index is built")
    group.add_argument("--plan", action="store_true", help="print time, reads and cost of the index; write nothing")
    group.add_argument("--latency", type=float, metavar="SECONDS", help="latency of a request (default: measured)")
    text = "bandwidth per second (default: between 50MB and 1.25GB)"
    group.add_argument("--node-bandwidth", metavar="BYTES", help=text)
    group.add_argument("--get-price", type=float, metavar="X", help="price of 1000 requests")
    group.add_argument("--gigabyte-price", type=float, metavar="X", help="price of 10^9 bytes")


def check_plan_arguments(arguments: argparse.Namespace, engine: Engine | None) -> None:
    """Raise `UsageError` for options that contradict each other."""
    plan_options = [name for name in _WITH_PLAN if getattr(arguments, name) is not None]
    if plan_options and not arguments.plan:
        msg = f"{option_of(plan_options[0])} belongs to a plan, but --plan is not given"
        raise UsageError(msg, hint="add --plan, which builds no index")
    wrong = [name for name in ("columns", "checksum", "output") if getattr(arguments, name)]
    wrong += [] if engine is None else ["engine"]
    if arguments.plan and wrong:
        msg = f"--plan is about finding samples on this machine, but {option_of(wrong[0])} asks for more"
        raise UsageError(msg, hint=f"leave out {option_of(wrong[0])}")
    for name in plan_options:
        value = getattr(arguments, name)
        if isinstance(value, float) and not (math.isfinite(value) and value >= 0.0):
            raise UsageError(f"{option_of(name)} must not be negative; got {value}")


def run_plan(arguments: argparse.Namespace, described: Described, shard_format: Format, store: Store) -> int:
    """Print the estimated time, reads and cost of an index of these shards."""
    tasks = scan_tasks(described.source, store=store, format=shard_format, expected=described.expected)
    bandwidth = arguments.node_bandwidth
    estimate = estimate_indexing(
        tasks,
        store=store,
        format=shard_format,
        looks=True,
        request_seconds=arguments.latency,
        bytes_per_second=None if bandwidth is None else parse_bytes(bandwidth, "--node-bandwidth"),
        processors=arguments.workers,
    )
    bare = [task.name for task in tasks if task.index is None] if any(task.index for task in tasks) else []
    record: dict[str, Any] = {
        "format": shard_format.name,
        "num_shards": estimate.num_shards,
        "num_bytes": estimate.num_bytes,
        "index_there": _index_beside(described.source, store),
        "num_described_shards": len(described.expected),
        "samples_found_by": dict(estimate.ways),
        "num_looked_at": estimate.num_looked,
        "least": _cost(estimate.least, arguments),
        "most": _cost(estimate.most, arguments),
    }
    if arguments.json:
        output.emit({**record, "shards_without_index_of_another_tool": bare}, as_json=True)
        return 0
    least, most = record.pop("least"), record.pop("most")
    record["samples_found_by"] = ", ".join(f"{way} ({number:,})" for way, number in estimate.ways.items())
    if bare:
        more = f" and {len(bare) - _MOST_NAMED:,} more" if len(bare) > _MOST_NAMED else ""
        record["have no such index"] = ", ".join(bare[:_MOST_NAMED]) + more
    formats: dict[str, Callable[[float], str]] = {
        "num_requests": format_count, "read_bytes": format_bytes, "seconds": format_seconds,
        "price": lambda price: f"{price:,.4g}",
    }  # fmt: skip
    for name, formatted in formats.items():
        if most.get(name):
            low, high = formatted(least[name]), formatted(most[name])
            label = name.removeprefix("num_").replace("read_bytes", "bytes read")
            record[label] = low if low == high else f"{low} to {high}"
    output.emit(output.without_usual(record, num_described_shards=0))
    return 0


def _cost(cost: IndexingCost, arguments: argparse.Namespace) -> dict[str, Any]:
    by_request, by_gigabyte = arguments.get_price or 0.0, arguments.gigabyte_price or 0.0
    price = cost.num_requests * by_request / 1000 + cost.read_bytes * by_gigabyte / 1e9
    return {"num_requests": cost.num_requests, "read_bytes": cost.read_bytes, "seconds": cost.seconds, "price": price}


def _index_beside(shards: Source, store: Store) -> str | None:
    """Return the path of the index beside the shards; None for a missing index, or if the store cannot check."""
    if shards.root.endswith("://"):  # shards of several hosts or buckets
        return None
    try:
        info = store.find(join(shards.root, INDEX_NAME))
        return None if info is None or is_sent_instead(info.path, store) else info.path
    except StorageError:
        return None

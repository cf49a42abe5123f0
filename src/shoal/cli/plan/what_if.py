"""The what-if table of a plan: each row is the plan with one thing changed, as the options in the row ask for it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shoal.cli.output import format_value
from shoal.cli.plan.asked_plan import asked_plan
from shoal.cli.plan.planned import Planned
from shoal.cli.plan.planned_cache import least_cache_bytes
from shoal.errors import UsageError


class Row(NamedTuple):
    """A change of a plan: its name, the options that ask for it, and the values of the plan that they give.

    The options replace those of the order that the plan was asked for; None stands for an option that is left out.
    """

    name: str
    options: Mapping[str, Any]
    record: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The options as they are typed."""
        given = {name: value for name, value in self.options.items() if value is not None}
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in given.items())


def what_if_rows(arguments: argparse.Namespace, plan: Planned) -> Iterator[Row]:
    """Yield the plan with one thing changed at a time; changes that cannot be are left out."""
    for name, options in _changes(arguments, plan):
        changed = argparse.Namespace(**{**vars(arguments), **options})
        try:
            record = asked_plan(changed, plan.data).plan.record()
        except UsageError:  # chunks below an extent, say, or fewer samples than a batch
            continue
        if record["vr"]:
            yield Row(name, options, record)


def what_if(arguments: argparse.Namespace, plan: Planned) -> list[list[str]]:
    """Return the plan with one thing changed at a time, as a table with its heads."""
    rows = [Row("this plan", {}, plan.record()), *what_if_rows(arguments, plan)]
    columns: dict[str, tuple[str, Any]] = {
        "Window": ("window_bytes", None),
        "Chunk": ("chunk_bytes", None),
        "VR": ("vr", lambda ratios: f"{next(iter(ratios.values())):.2f}"),
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
        [row.name, *(said(row.record.get(key)) if said else format_value(key, row.record[key])
                     for key, said in columns.values()), row.text]
        for row in rows
    ]  # fmt: skip
    return [["Change", *columns, "Options"], *texts]


def _changes(arguments: argparse.Namespace, plan: Planned) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each change and its options, with those that keep the order of the plan."""
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
    """Return the bytes of a second epoch against those of the first."""
    if node_epochs is None:
        return "100%"
    first, second = node_epochs
    return f"{second['read_bytes'] / first['read_bytes']:.0%}"

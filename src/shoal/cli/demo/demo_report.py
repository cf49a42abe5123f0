"""Report the demonstration as text, as a record and as a picture."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.cli.demo.demo_data import LARGEST_BYTES, FileSet
from shoal.cli.demo.demo_run import BATCH, Comparison, Resumed
from shoal.figures import format_bytes, format_count, format_seconds
from shoal.hints import pip_install
from shoal.tools.reports.marks import Drawing
from shoal.tools.reports.mixing_picture import mixing_picture

_SHOWN_BATCHES = (64, 256, 1024)
_AS_GOOD_AS_PERFECT = 1.05
_WIDTH = 100


def data_text(library: FileSet, facts: Mapping[str, Any], *, source: str) -> str:
    """Return the text about packing and indexing."""
    left_out = f"{library.num_large} larger than {format_bytes(LARGEST_BYTES)}"
    if library.num_unreadable:
        left_out += f" and {library.num_unreadable} unreadable ones"
    pack_seconds, index_seconds = facts["pack_seconds"], facts["index_seconds"]
    packed = f"{format_seconds(pack_seconds)}, {format_bytes(facts['shard_bytes'] / pack_seconds)}/s"
    indexed = f"{format_seconds(index_seconds)}, {format_count(facts['num_files'] / index_seconds)} samples/s"
    shards = f"{facts['num_shards']} tar shards, {format_bytes(facts['shard_bytes'])}"
    extents = (
        f"{facts['num_extents']:,} extents of about {format_bytes(facts['extent_bytes'])} (small, like the dataset)"
    )
    lines = [
        f"data       {source}, {format_bytes(library.num_bytes)}, {facts['num_packages']} packages",
        f"           ({left_out} left out; single modules count as one package)",
        f"packed     in sorted order into {shards}: {packed}",
        f"indexed    {extents}: {indexed}",
    ]
    return "\n".join(lines)


def comparison_text(comparison: Comparison, *, expected_distinct: float, num_epochs: int) -> str:
    """Return a table of the orders, and its explanation."""
    window, buffer = comparison.orders["window"], comparison.orders["buffer"]
    sizes = [size for size in _SHOWN_BATCHES if size in window.mixing.variance_ratios]
    rows = [["order", "memory", *(f"VR({size})" for size in sizes), "packages", "correlation", "samples/s"]]
    for name, order in comparison.orders.items():
        held = comparison.buffer_bytes if order is buffer else order.held_bytes
        ratios = [f"{order.mixing.variance_ratios[size]:,.2f}" for size in sizes]
        measured = [f"{order.mixing.distinct:.1f}", f"{order.mixing.correlation:.2f}"]
        rows.append([name, format_bytes(held), *ratios, *measured, format_count(int(order.samples_per_second))])
    read_bytes = buffer.read_bytes / buffer.num_reads
    more_reads = comparison.orders["full"].num_reads / window.num_reads
    measure = f"how much the packages in a batch of b vary, against a perfect shuffle (VR 1); {num_epochs} epochs"
    same = f"{comparison.num_buffer_samples} samples, as many as fill the window and its read-ahead"
    pinned = f"kept as views of reads of {format_bytes(read_bytes)}, they pinned {format_bytes(buffer.held_bytes)}"
    cost = f"{more_reads:.1f} times the window's reads here, hundreds of times if chunks hold hundreds of samples"
    notes = [
        f"VR(b): {measure}.",
        f"packages: different ones in a batch of {BATCH}; a perfect shuffle has {expected_distinct:.1f} on average.",
        "correlation: of a sample's position in storage and in the epoch.",
        f"buffer: {same}; {pinned}.",
        f"window: ds.{window.call}",
        f"full: a perfect shuffle, with a read for every sample: {cost}.",
    ]
    streamed = "streamed   every file once in each order, each with the bytes it has (checked)"
    wrapped = [textwrap.fill(note, _WIDTH, subsequent_indent="  ", break_on_hyphens=False) for note in notes]
    return "\n".join([streamed, "", _table(rows), "", *wrapped, ""])


def resumed_text(resumed: Resumed) -> str:
    """Return the text about the stop, the resumption, and their agreement."""
    text = json.dumps(resumed.state)
    total = resumed.num_before + resumed.num_after
    verdict = (
        f"the same: {resumed.num_equal_batches} of {resumed.num_batches} global batches hold the same files"
        if resumed.num_equal_batches == resumed.num_batches
        else f"NOT THE SAME: only {resumed.num_equal_batches} of {resumed.num_batches} global batches are equal"
    )
    once = "every file came once" if resumed.every_sample_once else "NOT every file came once"
    ranks = f"{resumed.world_size} ranks, global batches of {resumed.global_batch} as before"
    lines = [
        f"stopped    1 rank, after {resumed.num_before:,} of {total:,} samples; the state is {len(text)} bytes:",
        textwrap.fill(text, _WIDTH, initial_indent=" " * 11, subsequent_indent=" " * 11, break_on_hyphens=False),
        f"resumed    {ranks}, compared with the run that went on:",
        f"           {verdict}; {once}",
    ]
    return "\n".join(lines)


def closing_text(picture: Path | None, *, elapsed_seconds: float) -> str:
    """Return the text about the picture and the next step."""
    drawn = f"{picture}" if picture is not None else f"needs matplotlib: {pip_install('matplotlib')}"
    return "\n".join(
        [
            f"picture    {drawn}",
            f"took       {format_seconds(elapsed_seconds)}",
            "",
            'Next, on shards of yours:  ds = shoal.open("shards/*.tar").shuffle(seed=0, window="1GiB").batch(256)',
            "                           print(ds.resolved); next(iter(ds)); print(ds.state_dict())",
        ]
    )


def _title(comparison: Comparison) -> str:
    """Return a title of the picture that the numbers support."""
    orders = comparison.orders
    same = format_bytes(orders["window"].held_bytes)
    window, buffer = (orders[name].mixing.variance_ratios.get(BATCH, float("nan")) for name in ("window", "buffer"))
    if window <= _AS_GOOD_AS_PERFECT and buffer >= 2 * window:
        return f"In the same {same}, a window mixes batches of {BATCH} perfectly; a buffer does not"
    return f"How well a buffer and a window mix in the same {same}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Align a table, text left and numbers right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    )


def picture_of(comparison: Comparison, *, subtitle: str, expected_distinct: float) -> Drawing:
    """Draw the mixing of the orders."""
    details = {
        "none": "storage order",
        "buffer": f"{comparison.num_buffer_samples} samples, {format_bytes(comparison.buffer_bytes)} held",
        "window": f"{comparison.num_window_chunks} chunks, {format_bytes(comparison.orders['window'].held_bytes)} held",
        "full": "one read for each sample",
    }
    return mixing_picture(
        [
            replace(order.mixing, name="perfect" if name == "full" else name, detail=details[name])
            for name, order in comparison.orders.items()
        ],
        title=_title(comparison),
        subtitle=subtitle,
        label="packages",
        batch=BATCH,
        expected_distinct=expected_distinct,
    )


def record_of(comparison: Comparison, resumed: Resumed, *, expected_distinct: float) -> dict[str, Any]:
    """Return all numbers of the comparison and of the resumed run."""
    rows = [
        {
            "order": name,
            "call": order.call,
            "held_bytes": order.held_bytes,
            "num_reads": order.num_reads,
            "read_bytes": order.read_bytes,
            "samples_per_second": order.samples_per_second,
            "variance_ratios": order.mixing.variance_ratios,
            "distinct_per_batch": order.mixing.distinct,
            "correlation": order.mixing.correlation,
        }
        for name, order in comparison.orders.items()
    ]
    return {
        "batch": BATCH,
        "expected_distinct_per_batch": expected_distinct,
        "orders": rows,
        "num_buffer_samples": comparison.num_buffer_samples,
        "buffer_record_bytes": comparison.buffer_bytes,
        "state": resumed.state,
        "global_batch": resumed.global_batch,
        "resumed_world_size": resumed.world_size,
        "num_samples_before": resumed.num_before,
        "num_samples_after": resumed.num_after,
        "num_batches_after": resumed.num_batches,
        "num_equal_batches": resumed.num_equal_batches,
        "every_sample_once": resumed.every_sample_once,
        "resumed_exactly": resumed.exact,
    }

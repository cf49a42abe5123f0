"""The text of the demonstration: turns its numbers into lines."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.cli.demo.demo_data import LARGEST_BYTES, Found
from shoal.cli.demo.demo_run import BATCH, Comparison, Resumed
from shoal.figures import format_bytes, format_count, format_seconds
from shoal.hints import pip_install

_TOLD_BATCHES = (64, 256, 1024)
_AS_GOOD_AS_PERFECT = 1.05
_WIDTH = 100


def data_text(found: Found, made: Mapping[str, Any], *, source: str) -> str:
    """Return the text on what was packed and how it was indexed."""
    left_out = f"{found.num_large} larger than {format_bytes(LARGEST_BYTES)}"
    if found.num_unreadable:
        left_out += f" and {found.num_unreadable} unreadable ones"
    pack_seconds, index_seconds = made["pack_seconds"], made["index_seconds"]
    packed = f"{format_seconds(pack_seconds)}, {format_bytes(made['shard_bytes'] / pack_seconds)}/s"
    indexed = f"{format_seconds(index_seconds)}, {format_count(made['num_files'] / index_seconds)} samples/s"
    shards = f"{made['num_shards']} tar shards, {format_bytes(made['shard_bytes'])}"
    extents = (
        f"{made['num_extents']:,} extents of about {format_bytes(made['extent_bytes'])} (small, as the dataset is)"
    )
    lines = [
        f"data       {source}, {format_bytes(found.num_bytes)}, {made['num_packages']} packages",
        f"           ({left_out} left out; single modules count as one package)",
        f"packed     in sorted order into {shards}: {packed}",
        f"indexed    {extents}: {indexed}",
    ]
    return "\n".join(lines)


def comparison_text(comparison: Comparison, *, expected_distinct: float, num_epochs: int) -> str:
    """Return the orders as a table, and an explanation of it."""
    window, buffer = comparison["window"], comparison["buffer"]
    sizes = [size for size in _TOLD_BATCHES if size in window.variance_ratios]
    rows = [["order", "memory", *(f"VR({size})" for size in sizes), "packages", "correlation", "samples/s"]]
    for order in comparison.orders:
        held = comparison.buffer_bytes if order.name == "buffer" else order.held_bytes
        ratios = [f"{order.variance_ratios[size]:,.2f}" for size in sizes]
        measured = [f"{order.distinct:.1f}", f"{order.correlation:.2f}", format_count(int(order.samples_per_second))]
        rows.append([order.name, format_bytes(held), *ratios, *measured])
    read_bytes, more_reads = buffer.read_bytes / buffer.num_reads, comparison["full"].num_reads / window.num_reads
    measure = (
        f"how much the packages in a batch of b vary, against a perfect shuffle, whose VR is 1; {num_epochs} epochs"
    )
    same = f"{comparison.num_buffer_samples} samples, as records what the window held with all it read ahead"
    pinned = f"kept as views of reads of {format_bytes(read_bytes)}, they pinned {format_bytes(buffer.held_bytes)}"
    cost = f"{more_reads:.1f} times the window's reads here, hundreds of times where chunks hold hundreds of samples"
    notes = [
        f"VR(b): {measure}.",
        f"packages: different ones in a batch of {BATCH}; a perfect shuffle has {expected_distinct:.1f} on average.",
        "correlation: of a sample's place in storage and in the epoch.",
        f"buffer: {same}; {pinned}.",
        f"window: ds.{window.call}",
        f"full: a perfect shuffle, with a read for every sample: {cost}.",
    ]
    streamed = "streamed   every file once in each order, each with the bytes it has (checked)"
    wrapped = [textwrap.fill(note, _WIDTH, subsequent_indent="  ", break_on_hyphens=False) for note in notes]
    return "\n".join([streamed, "", _table(rows), "", *wrapped, ""])


def resumed_text(resumed: Resumed) -> str:
    """Return the text on what was stopped, what was resumed, and whether both agree."""
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
    """Return the text on where the picture is and what to do next."""
    drawn = f"{picture}" if picture is not None else f"needs matplotlib: {pip_install('report')}"
    return "\n".join(
        [
            f"picture    {drawn}",
            f"took       {format_seconds(elapsed_seconds)}",
            "",
            'Next, on shards of yours:  ds = shoal.open("shards/*.tar").shuffle(seed=0, window="1GiB").batch(256)',
            "                           print(ds.resolved); next(iter(ds)); print(ds.state_dict())",
        ]
    )


def title_of(comparison: Comparison) -> str:
    """Return the title of the picture, which claims no more than the numbers support."""
    same = format_bytes(comparison["window"].held_bytes)
    window, buffer = (comparison[name].variance_ratios.get(BATCH, float("nan")) for name in ("window", "buffer"))
    if window <= _AS_GOOD_AS_PERFECT and buffer >= 2 * window:
        return f"In the same {same}, a window mixes batches of {BATCH} perfectly; a buffer does not"
    return f"How well a buffer and a window mix in the same {same}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Align a table: text to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) if place else cell.ljust(width) for place, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    )

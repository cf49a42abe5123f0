"""The `shoal bench` command: stream for a while, and show the throughput and the bottleneck."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from typing import Any

import numpy as np

from shoal.cli import output
from shoal.cli.options.argument_types import at_least_one, at_least_zero
from shoal.cli.options.source_options import add_json_argument, add_source_arguments
from shoal.cli.options.stream_options import (
    add_decode_argument,
    add_order_arguments,
    add_skip_argument,
    decoded,
    requested_dataset,
)
from shoal.figures import format_bytes, format_count
from shoal.indexing.opened_dataset import Opened
from shoal.order.partition import Partition
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.schedule.lifetimes import first_uses
from shoal.stream.dataset import Dataset

_DEFAULT_SECONDS = 10.0
_ADVICE = {
    "storage": "the storage: larger chunks make larger reads; a larger window reads further ahead",
    "stages": "the stages (opening records, decoding, making batches): more ranks or worker processes",
    "consumer": "this program itself; the stream is fast enough",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.epilog = (
        "The batches are not used, so a training step cannot get more than this. Run the command twice: the second "
        "time, local files come from memory if they fit."
    )
    add_source_arguments(parser)
    until = parser.add_argument_group("duration", "the first limit ends the run, or the end of the epoch")
    until.add_argument("--seconds", type=_seconds, metavar="S", help="stop after S seconds (default: 10)")
    until.add_argument("--stop-after", type=at_least_one, metavar="N", help="stop after N samples")
    parser.add_argument("--batch-size", type=at_least_one, metavar="B", default=64, help="batch size (default: 64)")
    parser.add_argument("--rank", type=at_least_zero, metavar="R", default=0, help="rank to stream as (default: 0)")
    parser.add_argument("--world-size", type=at_least_one, metavar="W", default=1, help="number of ranks (default: 1)")
    parser.add_argument("--trace", metavar="FILE", help="write requests, waits and stages for ui.perfetto.dev")
    add_decode_argument(parser)
    add_skip_argument(parser)
    add_order_arguments(parser, default="default: shuffle()")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Stream, compare with plain reads if the store reads ahead, and show the result."""
    dataset = requested_dataset(arguments).partition(rank=arguments.rank, world_size=arguments.world_size)
    stream = decoded(dataset, arguments).batch(arguments.batch_size)
    stream = stream.reading(progress=True, on_error=arguments.on_error, trace=arguments.trace)
    most_seconds = arguments.seconds or (None if arguments.stop_after else _DEFAULT_SECONDS)
    ended = _streamed(stream, most_seconds=most_seconds, most_samples=arguments.stop_after)
    stats = stream.stats()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    record: dict[str, Any] = {"order": str(dataset.resolved), "ended_by": ended, **stats}
    record["consumer_share"] = 1 - (stats["wait_share"] or 0) - (stats["stages_share"] or 0)
    record["peak_process_bytes"] = peak if sys.platform == "darwin" else peak * 1024
    record["plain_bytes_per_second"] = None
    opened = dataset.stream.spec.opened
    if isinstance(opened, Opened) and opened.store.reads_ahead:
        record["plain_bytes_per_second"] = plain_bytes_per_second(
            opened,
            dataset.resolved,
            Partition(arguments.batch_size * arguments.world_size, arguments.world_size),
            rank=arguments.rank,
            num_steps=stats["num_batches"],
            most_seconds=max(1.0, stats["elapsed_seconds"]),
        )
    output.emit(record if arguments.json else _for_people(record), as_json=arguments.json)
    return 0


def _streamed(stream: Dataset, *, most_seconds: float | None, most_samples: int | None) -> str:
    """Stream until a limit, and return its name: "samples", "time" or "epoch"."""
    began, num_batches, batch_size = time.monotonic(), 0, 0
    with iter(stream) as batches:
        for batch in batches:
            num_batches += 1
            batch_size = batch_size or len(next(iter(batch.values())))
            if most_samples is not None and num_batches * batch_size >= most_samples:
                return "samples"
            if most_seconds is not None and time.monotonic() - began >= most_seconds:
                return "time"
    return "epoch"


def _for_people(record: dict[str, Any]) -> dict[str, Any]:
    """Return the main values of the record as text."""
    count, size = format_count, format_bytes
    shown: dict[str, Any] = {name: record[name] for name in ("order", "num_samples", "elapsed_seconds")}
    shown["delivered"] = f"{count(record['samples_per_second'])} samples/s"
    shown["order"] = shown["order"].partition("\n")[0]  # the order of a mixture has a line for each source
    requests = count(record["requests_per_second"])
    shown["read"] = f"{size(record['read_bytes_per_second'])}/s, in {requests} requests/s"
    if record["plain_bytes_per_second"] is not None:
        share = record["read_bytes_per_second"] / record["plain_bytes_per_second"]
        plain = size(record["plain_bytes_per_second"])
        shown["plain_reads"] = f"{plain}/s for the same bytes, read without the stream; the stream had {share:.1%}"
    if record["peak_in_flight_bytes"]:
        shown["in_flight_at_most_bytes"] = record["peak_in_flight_bytes"]
    for name in ("num_skipped", "num_rereads", "num_retries", "num_throttled", "num_corrupt"):
        if record[name]:
            shown[name] = record[name]
    shown["held_at_most_bytes"] = record["peak_held_bytes"]
    shown["process_at_most_bytes"] = record["peak_process_bytes"]
    shares = {"waiting for bytes": "wait_share", "in stages": "stages_share", "in this program": "consumer_share"}
    shown["time"] = ", ".join(f"{record[name] or 0:.0%} {text}" for text, name in shares.items())
    shown["bottleneck"] = _ADVICE[record["bottleneck"] or "consumer"]
    return shown


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"a positive number of seconds is needed, not {text!r}")
    return number


_READS_AT_ONCE = 256


def plain_bytes_per_second(
    opened: Opened, resolved: ResolvedOrder, partition: Partition, *, rank: int, num_steps: int, most_seconds: float
) -> float:
    """Measure the bytes per second of plain reads of the units of a rank's first steps of epoch 0.

    One thread reads each unit once, in the order of first use, for at most ``most_seconds``.
    """
    share = partition.share(resolved.epoch(0), rank, 0, num_steps)
    units = resolved.units.of(share.ids, share.chunks)
    first = first_uses(units, np.zeros(0, dtype=np.int64))
    num_bytes, began = 0, time.perf_counter()
    for start in range(0, len(first), _READS_AT_ONCE):
        for read in resolved.units.reads(first[start : start + _READS_AT_ONCE]):
            num_bytes += len(opened.store.read_range(opened.paths[read.shard], read.first_byte, read.end_byte))
        if time.perf_counter() - began > most_seconds:
            break
    return num_bytes / max(time.perf_counter() - began, 1e-9)

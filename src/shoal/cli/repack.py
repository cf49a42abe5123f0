"""The `shoal repack` command: makes new shards of shards, in another format, of another size, or mixed."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import Any

from shoal.cli import output
from shoal.cli.options.numbers import at_least_one
from shoal.cli.options.source_options import (
    ShowBytes,
    add_json_argument,
    add_source_arguments,
    open_with_samples,
    source_of,
    storage_options_of,
)
from shoal.cli.preview import printable
from shoal.cli.progress import Progress
from shoal.errors import UsageError
from shoal.figures import counted
from shoal.formats.writing.written_formats import WRITTEN_FORMATS
from shoal.index.cutting import EXTENT_BYTES
from shoal.order.seeds import check_seed
from shoal.order.window.sizing_by_bytes import parse_bytes
from shoal.pack.destination import check_apart
from shoal.pack.from_shards.mixing_gain import mixedness
from shoal.pack.from_shards.repacking import MIX_MEMORY_BYTES, Repacked, RepackRequest, repack_opened
from shoal.storage.stores import options_of_sides

_MOST_LISTED = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.epilog = (
        "Without --mix, samples stay in their order. A run that was killed is taken up by the same command. rho says "
        "how alike the samples of a chunk are (1: all of one kind), VR how much more the means of global batches will "
        "vary than in a perfect shuffle, for `shuffle(window=...)` of the old shards and of the new ones. Without "
        "--mix, rho changes with the chunks alone."
    )
    add_source_arguments(parser)
    parser.add_argument("destination", metavar="DST", help="a directory or a URL, without shards as yet")
    formats = ", ".join(name for name in WRITTEN_FORMATS if "." not in name)
    text = f"format of the new shards (as the old; tar for files of a folder): {formats}; those of rows also compressed"
    text += ", as in jsonl.zst"
    parser.add_argument("--to", metavar="NAME", help=text)
    text = "bytes that the samples of a new shard take in the old ones, 256MiB for instance (by a rule)"
    parser.add_argument("--shard-bytes", metavar="BYTES", help=text)
    text = "for the rule: ranks, times workers of each, that may want a shard of their own (1)"
    parser.add_argument("--readers", type=at_least_one, metavar="N", default=1, help=text)
    parser.add_argument("--mix", action="store_true", help="mix the samples, in one pass and a window of --memory")
    parser.add_argument("--seed", type=int, metavar="N", default=0, help="of --mix (0)")
    parser.add_argument("--memory", metavar="BYTES", default=str(MIX_MEMORY_BYTES), help="window of --mix (1GiB)")
    text = "decode fields by their suffix first: txt, cls, json, npy; images stay what they are"
    parser.add_argument("--decode", action="store_true", help=text)
    text = "what else goes into the index, with commas between: a field, or a path into JSON; NAME=PATH names it"
    parser.add_argument("--columns", metavar="NAMES", action="append", default=[], help=text)
    parser.add_argument("--prefix", metavar="NAME", default="shard", help="shards are named NAME-000000 (shard)")
    text = "smallest ranges that the new index tells apart (64KiB): a chunk is at least one"
    parser.add_argument("--extent-bytes", metavar="BYTES", default=str(EXTENT_BYTES), help=text)
    text = "a sample that is damaged, or that the format cannot hold, ends the run, or is left out and listed (raise)"
    parser.add_argument("--on-error", choices=("raise", "skip"), default="raise", help=text)
    text = "processes (one per processor; one below 256 MiB, and one with --mix, or each would read a window)"
    parser.add_argument("--workers", type=at_least_one, metavar="N", help=text)
    text = "samples of a global batch, for the VR that is predicted (256)"
    parser.add_argument("--global-batch", type=at_least_one, metavar="N", default=256, help=text)
    parser.add_argument("--window", metavar="BYTES", help="of the shuffle to come, for the same (512MiB)")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Repack, and report what it gained."""
    began_seconds = time.monotonic()
    request = RepackRequest(
        format=arguments.to,
        shard_bytes=None if arguments.shard_bytes is None else parse_bytes(arguments.shard_bytes, "--shard-bytes"),
        num_readers=arguments.readers,
        mix=arguments.mix,
        seed=check_seed(arguments.seed),
        memory_bytes=parse_bytes(arguments.memory, "--memory"),
        decode=arguments.decode,
        columns=[name for names in arguments.columns for name in names.split(",")],
        prefix=arguments.prefix,
        extent_bytes=parse_bytes(arguments.extent_bytes, "--extent-bytes"),
        on_error=arguments.on_error,
        num_workers=arguments.workers,
    )
    if arguments.window is not None:
        parse_bytes(arguments.window, "--window")
    check_apart(source_of(arguments), arguments.destination)
    given = storage_options_of(arguments)
    here, there = options_of_sides(source_of(arguments), arguments.destination, given)
    if given and not here:
        arguments = argparse.Namespace(**{**vars(arguments), "storage_option": []})
    opened = open_with_samples(arguments)
    with Progress(total=None, label="repacking", unit="bytes") as progress:
        made = repack_opened(
            opened,
            arguments.destination,
            request,
            storage_options=there,
            progress=ShowBytes(progress),
        )
    elapsed_seconds = time.monotonic() - began_seconds
    record = _record(made, elapsed_seconds)
    try:
        found = mixedness(made.source, made.index, batch=arguments.global_batch, window=arguments.window)
    except UsageError as error:  # the shards exist, whether or not their mixing can be predicted
        found = []
        output.complain(f"note: no shuffle is predicted: {error.message}")
    if skipped := made.summary.skipped:
        listed = skipped if arguments.json else skipped[:_MOST_LISTED]
        record["skipped"] = [{"name": name, "reason": printable(reason)} for name, reason in listed]
    if not made.num_workers and not arguments.json:
        del record["num_workers"]  # nothing was left to do
    if renamed := made.summary.num_renamed:
        words = "came right behind another of the same key, which a tar would join: ~2 is added to its key"
        output.complain(f"note: {counted(renamed, 'sample')} {words}")
    elif not arguments.json:
        del record["num_renamed"]
    if not arguments.json and (looked_at := record.pop("num_looked_at")):
        output.complain(f"note: {counted(looked_at, 'sample')} were looked at first, to know all columns of the tables")
    if found:
        record["mixedness"] = [asdict(one) for one in found]
        if None in (found[0].rho_before, found[0].rho_after):
            chunks = f"{counted(found[0].num_chunks_before, 'chunk')} before and {found[0].num_chunks_after} after"
            output.complain(f"note: rho compares chunks with each other, and says nothing of so few: {chunks}")
    output.emit(record, as_json=arguments.json)
    if len(skipped) > _MOST_LISTED and not arguments.json:
        output.complain(f"note: {len(skipped) - _MOST_LISTED} more were skipped; --json lists them all")
    return 0


def _record(made: Repacked, elapsed_seconds: float) -> dict[str, Any]:
    summary = made.summary
    made_now = sum(shard.num_samples for shard in summary.shards if not shard.done_before)
    return {
        "output": printable(summary.url),
        "format": summary.format,
        "num_samples": summary.num_samples,
        "num_bytes": summary.num_bytes,
        "num_shards": len(summary.shards),
        "num_shards_of_earlier_runs": sum(shard.done_before for shard in summary.shards),
        "shard_bytes": made.sizing.shard_bytes,
        "shard_bytes_because": made.sizing.reason,
        "order": str(made.source),
        "num_skipped": len(summary.skipped),
        "num_renamed": summary.num_renamed,
        "num_looked_at": made.num_looked_at,
        "num_workers": made.num_workers,
        "peak_memory_bytes": made.peak_bytes,
        "fingerprint": summary.fingerprint,
        "digest": summary.digest,
        "elapsed_seconds": elapsed_seconds,
        "samples_per_second": made_now / max(elapsed_seconds, 1e-9),
    }

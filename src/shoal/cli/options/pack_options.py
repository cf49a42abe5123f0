"""Options and reports of `shoal pack` and `shoal repack`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from shoal.cli import output
from shoal.cli.options.argument_types import at_least_one, names
from shoal.cli.options.engine_options import Engine
from shoal.errors import UsageError
from shoal.figures import parse_bytes
from shoal.formats.folder.class_directories import CLASS_FIELD
from shoal.formats.writing.written_formats import WRITTEN_FORMATS
from shoal.order.seeds import check_seed
from shoal.pack.from_shards.repacking import Repacked
from shoal.pack.inputs.repeats import ClassCount, parse_factor
from shoal.pack.output.commit import PackSummary
from shoal.pack.packing import Packed
from shoal.tools.samples.preview import printable

_MOST_LISTED = 20


def format_names() -> str:
    """Return the formats that can be written, as a help text."""
    formats = ", ".join(name for name in WRITTEN_FORMATS if "." not in name)
    return f"{formats}; rows also compressed, as in jsonl.zst"


def add_shard_arguments(
    parser: argparse.ArgumentParser, *, shard_bytes: str, columns: str, on_error: str, workers: str
) -> None:
    """Declare the options of the new shards; the arguments are parts of help texts that differ between verbs."""
    text = f"{shard_bytes}, such as 256MiB (default: by the size of the data and --readers)"
    parser.add_argument("--shard-bytes", metavar="BYTES", help=text)
    text = "ranks times workers, each with at least one shard (default: 1)"
    parser.add_argument("--readers", type=at_least_one, metavar="N", default=1, help=text)
    parser.add_argument(
        "--prefix", metavar="NAME", default="shard", help="shards are NAME-000000, ... (default: shard)"
    )
    text = "size of the smallest ranges of the index (default: 64KiB, and more above 655 GB, as in shoal index)"
    parser.add_argument("--extent-bytes", metavar="BYTES", help=text)
    text = f"{columns}, separated by commas; NAME=PATH renames a column; may be repeated"
    parser.add_argument("--columns", type=names, action="extend", metavar="NAMES", default=[], help=text)
    text = f"{on_error}: raise ends the run (default), skip drops and lists it"
    parser.add_argument("--on-error", choices=("raise", "skip"), default="raise", help=text)
    parser.add_argument("--workers", type=at_least_one, metavar="N", help=f"processes (default: {workers})")


def add_dedup_argument(group: argparse._ArgumentGroup, *, key: str, content: str) -> None:
    """Declare the option for duplicates; the arguments define equality."""
    text = f"leave out duplicates, and count them; key: {key}; content: {content}"
    group.add_argument("--dedup", choices=("key", "content"), help=text)


def add_repeat_arguments(group: argparse._ArgumentGroup, *, columns: str) -> None:
    """Declare the repeats of classes; ``columns`` names the class of a sample, if not its directory."""
    text = "repeat the samples of a class, as in zebra=3 or zebra=2.5; may be repeated"
    group.add_argument("--oversample", metavar="CLASS=TIMES", action="append", default=[], help=text)
    text = f"class for --oversample: cls (the directory), or {columns} (default: cls)"
    group.add_argument("--oversample-key", metavar="KEY", default=CLASS_FIELD, help=text)
    text = f"repeat rarer classes until all have equally many samples, by cls or by {columns}"
    group.add_argument("--balance", metavar="KEY", help=text)


def _factors_of(arguments: argparse.Namespace) -> dict[str, Fraction]:
    """Return the factor of each class in ``--oversample``; raise `UsageError` if a class has two."""
    factors: dict[str, Fraction] = {}
    for text in arguments.oversample:
        name, times = parse_factor(text)
        if name in factors:
            msg = f"the class {name!r} is to be oversampled {factors[name]} times and {times} times"
            raise UsageError(msg, hint="name each class once")
        factors[name] = times
    return factors


def shard_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a `ShardRequest` for the given options."""
    shard_bytes, extent_bytes = arguments.shard_bytes, arguments.extent_bytes
    return {
        "shard_bytes": None if shard_bytes is None else parse_bytes(shard_bytes, "--shard-bytes"),
        "num_readers": arguments.readers,
        "extent_bytes": None if extent_bytes is None else parse_bytes(extent_bytes, "--extent-bytes"),
        "columns": arguments.columns,
        "prefix": arguments.prefix,
        "seed": check_seed(arguments.seed),
        "oversample": _factors_of(arguments),
        "oversample_key": arguments.oversample_key,
        "balance": arguments.balance,
        "dedup": arguments.dedup,
        "on_error": arguments.on_error,
        "num_workers": arguments.workers,
    }


def classes_record(classes: Sequence[ClassCount]) -> list[dict[str, Any]]:
    """Return the samples of each class before and after, and the planned number if samples were left out."""
    has_left_out = any(entry.num_left_out for entry in classes)
    return [
        {
            "class": printable(entry.name),
            "num_inputs": entry.num_inputs,
            **({"num_promised": entry.num_samples} if has_left_out else {}),
            "num_samples": entry.num_samples - entry.num_left_out,
        }
        for entry in classes
    ]


def packed_record(
    packed: Packed | Repacked, more: dict[str, Any], *, elapsed_seconds: float, engine: Engine | None = None
) -> dict[str, Any]:
    """Return the report of packed shards, with ``more`` facts after the format.

    The processes and the memory of a cluster are unknown: ``driver_peak_memory_bytes`` belongs to this process.
    """
    summary = packed.summary
    num_new = sum(shard.num_samples for shard in summary.shards if not shard.done_before)
    num_done_before = sum(shard.done_before for shard in summary.shards)
    if engine is None:
        ran: dict[str, Any] = {"num_workers": packed.num_workers, "peak_memory_bytes": packed.peak_bytes}
    else:
        num_units = {"num_units_done_before": num_done_before, "num_units_run": len(summary.shards) - num_done_before}
        ran = {**engine.record(), **num_units, "driver_peak_memory_bytes": packed.peak_bytes}
    return {
        "output": printable(summary.url),
        "format": summary.format,
        **more,
        "num_samples": summary.num_samples,
        "num_bytes": summary.num_bytes,
        "num_shards": len(summary.shards),
        "num_shards_of_earlier_runs": num_done_before,
        "shard_limit_bytes": packed.sizing.shard_bytes,
        "shard_limit_because": packed.sizing.reason,
        "num_skipped": len(summary.skipped),
        **_duplicates(summary),
        **ran,
        "fingerprint": summary.fingerprint,
        "digest": summary.digest,
        "elapsed_seconds": elapsed_seconds,
        "samples_per_second": num_new / max(elapsed_seconds, 1e-9),
    }


def _duplicates(summary: PackSummary) -> dict[str, Any]:
    """Return the facts about duplicates; empty without --dedup."""
    if (duplicates := summary.duplicates) is None:
        return {}
    first = [{"name": printable(name), "same_as": printable(earlier)} for name, earlier in duplicates.first]
    facts = {"dedup": duplicates.by, "num_duplicates": duplicates.num_samples}
    return facts | ({"first_duplicates": first} if first else {})


def emit_packed(record: dict[str, Any], skipped: Sequence[tuple[str, str]], *, as_json: bool) -> None:
    """Print the record and the skipped inputs; people see only the first inputs."""
    if not as_json:
        if record.get("num_workers") == 0:
            output.complain(f"note: {record['output']} was already finished; nothing was done")
            del record["samples_per_second"]
        for name in ("num_workers", "address"):  # unknown without remaining work, or chosen by the engine
            if name in record and not record[name]:
                del record[name]
    if skipped:
        listed = skipped if as_json else skipped[:_MOST_LISTED]
        record["skipped"] = [{"name": printable(name), "reason": printable(reason)} for name, reason in listed]
    output.emit(record, as_json=as_json)
    if len(skipped) > _MOST_LISTED and not as_json:
        output.complain(f"note: {len(skipped) - _MOST_LISTED} more inputs were skipped; --json lists all")

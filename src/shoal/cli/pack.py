"""The `shoal pack` command: packs many files, or rows, into shards with their index."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from shoal.cli import output
from shoal.cli.field_notes import counts_text, first_text
from shoal.cli.options.numbers import at_least_one
from shoal.cli.options.source_options import ShowBytes, add_deadline_argument, add_json_argument, storage_options_of
from shoal.cli.preview import printable
from shoal.cli.progress import Progress
from shoal.errors import UsageError
from shoal.formats.writing.written_formats import WRITTEN_FORMATS
from shoal.index.cutting import EXTENT_BYTES
from shoal.order.seeds import check_seed
from shoal.order.window.sizing_by_bytes import parse_bytes
from shoal.pack.destination import check_apart
from shoal.pack.inputs.file_inputs import InputTable
from shoal.pack.inputs.input_sources import inputs_of
from shoal.pack.inputs.repeats import ClassCount, Repeats, parse_factor
from shoal.pack.inputs.tree_inputs import TreeInputs
from shoal.pack.packing import Packed, PackRequest, bytes_of, pack_inputs, repeats_of
from shoal.pack.shard_sizes import ShardSizing, shard_sizing

_MOST_LISTED = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.epilog = (
        "Nothing looks finished before it is: shards get their names when they are whole, and the index comes last. A "
        "run that was killed, or found the disk full, is taken up by the same command."
    )
    source = "a directory of files, a glob, a manifest (.csv, .tsv, .jsonl, .parquet), or what save_to_disk has written"
    parser.add_argument("source", metavar="SRC", help=source)
    parser.add_argument("destination", metavar="DST", help="a directory or a URL, without shards as yet")
    formats = ", ".join(name for name in WRITTEN_FORMATS if "." not in name)
    text = f"format of the shards: {formats}; those of rows also compressed, as in jsonl.zst (tar)"
    parser.add_argument("--format", metavar="NAME", default="tar", help=text)
    parser.add_argument("--shard-bytes", metavar="BYTES", help="size of a shard, 256MiB for instance (by a rule)")
    text = "for the rule: ranks, times workers of each, that may want a shard of their own (1)"
    parser.add_argument("--readers", type=at_least_one, metavar="N", default=1, help=text)
    parser.add_argument("--prefix", metavar="NAME", default="shard", help="shards are named NAME-000000 (shard)")
    text = "smallest ranges that the index tells apart (64KiB): a chunk is at least one"
    parser.add_argument("--extent-bytes", metavar="BYTES", default=str(EXTENT_BYTES), help=text)
    _add_what_is_packed(parser)
    _add_order(parser)
    text = "processes (default: one per processor, fewer where there is little to do)"
    parser.add_argument("--workers", type=at_least_one, metavar="N", help=text)
    option = "what the store of a URL should know: region=eu-west-1; may be repeated"
    parser.add_argument("--storage-option", metavar="KEY=VALUE", action="append", default=[], help=option)
    add_deadline_argument(parser)
    add_json_argument(parser)


def _add_what_is_packed(parser: argparse.ArgumentParser) -> None:
    text = "files that differ only in what follows the first dot of their names are one sample"
    parser.add_argument("--group", action="store_true", help=text)
    labels = parser.add_mutually_exclusive_group()
    text = "the first directory is the class of a file, or the run ends (by default where all files lie in one)"
    labels.add_argument("--label", dest="labelled", action="store_const", const=True, help=text)
    labels.add_argument(
        "--no-label", dest="labelled", action="store_const", const=False, help="directories are no classes"
    )
    parser.add_argument("--path-column", metavar="NAME", help="the column of a manifest that has the paths")
    text = (
        "what goes into the index, with commas between: label, length, a field, or a path into JSON; NAME=PATH gives "
        "it another name; may be repeated"
    )
    parser.add_argument("--columns", metavar="NAMES", action="append", default=[], help=text)
    text = (
        "fields that every sample must have, with commas between, by the suffixes of files, and cls for the class; "
        "jpg;png is either: what lacks one ends the run before it begins, or is left out, as --on-error says"
    )
    parser.add_argument("--require", metavar="FIELDS", action="append", default=[], help=text)
    text = "an input that cannot be read or written ends the run, or is left out, counted and listed (raise)"
    parser.add_argument("--on-error", choices=("raise", "skip"), default="raise", help=text)


def _add_order(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shuffle", action="store_true", help="mix all samples, in no more memory than without")
    parser.add_argument("--seed", type=int, metavar="N", default=0, help="of --shuffle, --oversample, --balance (0)")
    text = "repeat a class: zebra=3, or zebra=2.5; may be repeated"
    parser.add_argument("--oversample", metavar="CLASS=TIMES", action="append", default=[], help=text)
    text = "what --oversample goes by: the label, or a column (label)"
    parser.add_argument("--oversample-key", metavar="KEY", default="label", help=text)
    text = "repeat the rarer classes until all have as many samples: by the label, or a column"
    parser.add_argument("--balance", metavar="KEY", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Pack the source, and report."""
    began_seconds = time.monotonic()
    check_seed(arguments.seed)
    factors = _factors(arguments.oversample)
    check_apart(arguments.source, arguments.destination)
    with Progress(total=None, label="looking at inputs", unit="inputs") as progress:
        progress.update(0)
        inputs = inputs_of(
            arguments.source,
            format=arguments.format,
            grouped=arguments.group,
            labelled=arguments.labelled,
            path_column=arguments.path_column,
            require=[name for names in arguments.require for name in names.split(",")],
            on_error=arguments.on_error,
            num_workers=arguments.workers,
        )
        if isinstance(inputs, TreeInputs) and (suffix := inputs.shard_suffix()) is not None:
            output.complain(
                f"note: all {len(inputs):,} inputs end in {suffix}, as shards do; each becomes one sample as it is. "
                f"`shoal repack {printable(arguments.source)} {printable(arguments.destination)}` packs what is in them"
            )
        repeats = repeats_of(
            inputs, oversample=factors, balance=arguments.balance, key=arguments.oversample_key, seed=arguments.seed
        )
    sizing = _sizing(arguments, inputs, repeats)
    request = PackRequest(
        format=arguments.format,
        shard_bytes=sizing.shard_bytes,
        columns=[name for names in arguments.columns for name in names.split(",")],
        prefix=arguments.prefix,
        extent_bytes=parse_bytes(arguments.extent_bytes, "--extent-bytes"),
        on_error=arguments.on_error,
        shuffle=arguments.shuffle,
        seed=arguments.seed,
        num_workers=arguments.workers,
    )
    with Progress(total=None, label="packing", unit="bytes") as progress:
        packed = pack_inputs(
            inputs,
            arguments.destination,
            request,
            repeats=repeats,
            storage_options=storage_options_of(arguments),
            progress=ShowBytes(progress),
        )
    _report(packed, sizing, time.monotonic() - began_seconds, as_json=arguments.json)
    return 0


def _factors(texts: list[str]) -> dict[str, Fraction]:
    factors: dict[str, Fraction] = {}
    for text in texts:
        name, times = parse_factor(text)
        if name in factors:
            msg = f"the class {name!r} is to be oversampled {factors[name]} times and {times} times"
            raise UsageError(msg, hint="say it once")
        factors[name] = times
    return factors


def _sizing(arguments: argparse.Namespace, inputs: InputTable, repeats: Repeats | None) -> ShardSizing:
    """Return the size of a shard, as requested or by the rule."""
    if arguments.shard_bytes is not None:
        return ShardSizing(parse_bytes(arguments.shard_bytes, "--shard-bytes"), None, 0.0, "as asked for")
    return shard_sizing(bytes_of(inputs, repeats), num_readers=arguments.readers)


def _report(packed: Packed, sizing: ShardSizing, elapsed_seconds: float, *, as_json: bool) -> None:
    summary = packed.summary
    made_before = sum(shard.done_before for shard in summary.shards)
    made_now = sum(shard.num_samples for shard in summary.shards if not shard.done_before)
    record: dict[str, Any] = {
        "output": printable(summary.url),
        "format": summary.format,
        "num_inputs": packed.num_inputs,
        "num_samples": summary.num_samples,
        "num_bytes": summary.num_bytes,
        "num_shards": len(summary.shards),
        "num_shards_of_earlier_runs": made_before,
        "shard_bytes": sizing.shard_bytes,
        "shard_bytes_because": sizing.reason,
        "num_skipped": len(summary.skipped),
        "num_workers": packed.num_workers,
        "peak_memory_bytes": packed.peak_bytes,
        "fingerprint": summary.fingerprint,
        "digest": summary.digest,
        "elapsed_seconds": elapsed_seconds,
        "samples_per_second": made_now / max(elapsed_seconds, 1e-9),
    }
    if not packed.num_workers and not as_json:
        del record["num_workers"]  # nothing was left to do
    fields = summary.fields
    if fields is not None and as_json:
        record |= {
            "fields": fields.counts,
            "usual_fields": fields.usual,
            "num_without_usual_fields": fields.num_without_usual,
            "first_without_usual_fields": list(map(printable, fields.first_without_usual)),
        }
    elif fields is not None:
        record["fields"] = counts_text(fields)
    if packed.classes:
        record["classes"] = _classes(packed.classes)
    skipped = [{"name": printable(name), "reason": printable(reason)} for name, reason in summary.skipped]
    if skipped:
        record["skipped"] = skipped if as_json else skipped[:_MOST_LISTED]
    output.emit(record, as_json=as_json)
    if fields is not None and fields.num_without_usual and not as_json:
        output.complain(
            f"note: {fields.num_without_usual:,} of {summary.num_samples:,} samples lack fields that most have "
            f"({', '.join(map(printable, fields.usual))}): {first_text(fields)}. A batch with one becomes lists; "
            f"--require {printable(fields.usual[0])} refuses them, with --on-error skip it leaves them out"
        )
    if len(skipped) > _MOST_LISTED and not as_json:
        output.complain(f"note: {len(skipped) - _MOST_LISTED} more were skipped; --json lists them all")


def _classes(classes: Sequence[ClassCount]) -> list[dict[str, Any]]:
    """Return the samples of each class before and after, and the number due if some were left out."""
    are_less = any(entry.num_left_out for entry in classes)
    return [
        {
            "class": printable(entry.name),
            "num_inputs": entry.num_inputs,
            **({"num_promised": entry.num_samples} if are_less else {}),
            "num_samples": entry.num_samples - entry.num_left_out,
        }
        for entry in classes
    ]

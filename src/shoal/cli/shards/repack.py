"""The `shoal repack` command: rewrite shards in another format, with another size, or mixed."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from shoal.cli import output
from shoal.cli.display.progress_bar import Progress
from shoal.cli.options.argument_types import at_least_one
from shoal.cli.options.engine_options import Engine, add_engine_arguments, engine_of
from shoal.cli.options.pack_options import (
    add_dedup_argument,
    add_repeat_arguments,
    add_shard_arguments,
    classes_record,
    emit_packed,
    format_names,
    packed_record,
    shard_arguments,
)
from shoal.cli.options.source_options import (
    add_json_argument,
    add_source_arguments,
    open_with_samples,
    refuse_mixture,
    source_of,
    storage_options_of,
)
from shoal.errors import ShardError, UsageError
from shoal.figures import counted, parse_bytes
from shoal.indexing.opened_dataset import Opened
from shoal.pack.from_shards.mixing_gain import FEWEST_CHUNKS, mixedness
from shoal.pack.from_shards.repack_settings import MIX_MEMORY_BYTES, RepackRequest
from shoal.pack.from_shards.repacking import repack_opened
from shoal.pack.output.output_names import check_apart
from shoal.pipeline.stages.tokens.tokenizing import tokenize_with
from shoal.storage.store_of_url import options_of_sides
from shoal.tools.samples.preview import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.epilog = (
        "Without --mix, samples keep their order. The same command continues a killed run. rho is the similarity of "
        "the samples of a chunk (1: all of one kind). VR is the predicted variance of the means of global batches "
        "relative to a perfect shuffle, for `shuffle(window=...)` of the old and the new shards. Without --mix, only "
        "the chunks change rho."
    )
    add_source_arguments(parser)
    parser.add_argument("destination", metavar="DST", help="a directory or URL without shards")
    text = f"format of the new shards: {format_names()} (default: the old format; tar for a folder of files)"
    parser.add_argument("--to", metavar="NAME", help=text)
    add_shard_arguments(
        parser,
        shard_bytes="bytes of the old samples in a new shard",
        columns="additional columns of the index: a field, or a path into JSON",
        on_error="a damaged sample, or a sample that does not fit the format",
        workers="one per processor; one below 256 MiB or with --mix",
    )
    text = "decode txt, cls, json and npy fields; images stay encoded"
    parser.add_argument("--decode", action="store_true", help=text)
    group = parser.add_argument_group("tokens")
    text = "replace texts by their tokens; FILE is a tokenizer.json of the tokenizers library"
    group.add_argument("--tokenize", metavar="FILE", help=text)
    group.add_argument("--text-field", metavar="NAME", default="text", help="field of the text (default: text)")
    mix = parser.add_argument_group("mixing")
    mix.add_argument("--mix", action="store_true", help="mix the samples in one pass, in a window of --memory")
    mix.add_argument("--seed", type=int, metavar="N", default=0, help="seed of all random choices (default: 0)")
    mix.add_argument("--memory", metavar="BYTES", default=str(MIX_MEMORY_BYTES), help="window of --mix (default: 1GiB)")
    text = "samples of a global batch, for the predicted VR (default: 256)"
    mix.add_argument("--global-batch", type=at_least_one, metavar="N", default=256, help=text)
    mix.add_argument("--window", metavar="BYTES", help="window of a shuffle, for the predicted VR (default: 512MiB)")
    group = parser.add_argument_group("selection")
    add_dedup_argument(
        group,
        key="samples with the same __key__ or key (read first; of tars only the headers)",
        content="samples with equal other fields (all samples are read first)",
    )
    add_repeat_arguments(group, columns="another column of the index of SOURCE")
    add_engine_arguments(parser, planned="this machine writes the index; with --mix, every shard reads its own window")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Repack the source, and report the gain."""
    refuse_mixture(arguments)
    began_seconds = time.monotonic()
    engine = engine_of(arguments, label="repacking", unit="shards")
    request = _request(arguments)
    if arguments.window is not None:
        parse_bytes(arguments.window, "--window")
    check_apart(source_of(arguments), arguments.destination)
    storage_options = storage_options_of(arguments)
    sides = options_of_sides(source_of(arguments), arguments.destination, storage_options)
    if storage_options and not sides[0]:
        arguments = argparse.Namespace(**{**vars(arguments), "storage_option": []})
    return repack_and_report(
        _opened(arguments),
        arguments.destination,
        request,
        sides[1],
        engine=engine,
        began_seconds=began_seconds,
        batch=arguments.global_batch,
        window=arguments.window,
        as_json=arguments.json,
    )


def repack_and_report(
    opened: Opened,
    destination: str,
    request: RepackRequest,
    storage_options: Mapping[str, Any] | None,
    *,
    engine: Engine | None,
    began_seconds: float,
    batch: int = 256,
    window: str | None = None,
    as_json: bool,
) -> int:
    """Repack a dataset, and report the gain for a global ``batch`` and the ``window`` of a shuffle."""
    with Progress(label="repacking", unit="bytes") as progress:
        repacked = repack_opened(
            opened,
            destination,
            request,
            storage_options=storage_options,
            progress=progress.show_bytes,
            engine=None if engine is None else engine.run,
        )
    summary, gains = repacked.summary, []
    try:
        gains = mixedness(repacked.source, repacked.index, batch=batch, window=window)
    except UsageError as error:  # the shards exist even if their mixing cannot be predicted
        output.complain(f"note: no shuffle is predicted: {error.message}")
    more = {"order": str(repacked.source), "num_renamed": summary.num_renamed, "num_looked_at": repacked.num_looked_at}
    record = packed_record(repacked, more, elapsed_seconds=time.monotonic() - began_seconds, engine=engine)
    if opened.left_out:
        record["left_out"] = dict(opened.left_out)
        counts = ", ".join(f"{count:,} x {printable(suffix)}" for suffix, count in opened.left_out.items())
        output.complain(f"note: left out by their suffixes: {counts}; a glob includes these files")
    if num_empty := opened.index.notes.get("empty_files", 0):
        output.complain(f"note: left out {counted(num_empty, 'empty file')}")
    if summary.num_renamed:
        words = "followed a sample with the same key, and a tar would join both samples: ~2 is added to the second key"
        output.complain(f"note: {counted(summary.num_renamed, 'sample')} {words}")
    elif not as_json:
        del record["num_renamed"]
    if not as_json and (num_read := record.pop("num_looked_at")):
        output.complain(f"note: {counted(num_read, 'sample')} were read first, to find all columns")
    if repacked.classes:
        record["classes"] = classes_record(repacked.classes)
    if gains:
        record["mixedness"] = [asdict(gain) for gain in gains]
        if None in (gains[0].rho_before, gains[0].rho_after):
            chunks = f"{counted(gains[0].num_chunks_before, 'chunk')} before and {gains[0].num_chunks_after} after"
            output.complain(f"note: rho needs {FEWEST_CHUNKS} chunks; there are {chunks}")
    emit_packed(record, summary.skipped, as_json=as_json)
    return 0


def _request(arguments: argparse.Namespace) -> RepackRequest:
    tokenizer, field = arguments.tokenize, arguments.text_field
    return RepackRequest(
        format=arguments.to,
        mix=arguments.mix,
        memory_bytes=parse_bytes(arguments.memory, "--memory"),
        decode=arguments.decode,
        tokenize=None if tokenizer is None else tokenize_with(tokenizer, field=field),
        **shard_arguments(arguments),
    )


def _opened(arguments: argparse.Namespace) -> Opened:
    """Open the input; an error about the format of the input mentions --to."""
    try:
        return open_with_samples(arguments)
    except ShardError as error:
        if isinstance(arguments.format, str) and arguments.to is None:
            hint = f"--format is the format of the input; --to {arguments.format} writes shards of that format"
            error.hint = f"{hint}; {error.hint}" if error.hint else hint
        raise

"""The `shoal repack` command: makes new shards of shards, in another format, of another size, or mixed."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from shoal.cli import output
from shoal.cli.display.preview import printable
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
from shoal.pipeline.stages.tokenizing import tokenize_with
from shoal.storage.store_of_url import options_of_sides


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.epilog = (
        "Without --mix, samples keep their order. The same command continues a run that was killed. rho says how alike "
        "the samples of a chunk are (1: all of one kind), VR how much more the means of global batches will vary than "
        "in a perfect shuffle, for `shuffle(window=...)` of the old shards and of the new ones. Without --mix, rho "
        "changes with the chunks alone."
    )
    add_source_arguments(parser)
    parser.add_argument("destination", metavar="DST", help="a directory or URL that holds no shards yet")
    text = f"format of the new shards: {format_names()} (default: as the old; tar for a folder of files)"
    parser.add_argument("--to", metavar="NAME", help=text)
    add_shard_arguments(
        parser,
        shard_bytes="bytes that the samples of a new shard have in the old ones",
        columns="further columns of the index: a field, or a path into JSON",
        on_error="a sample that is damaged, or that the format cannot hold,",
        workers="one per processor; one below 256 MiB, and with --mix, since each would read a window",
    )
    text = "decode fields by their suffix first: txt, cls, json, npy; images stay as they are"
    parser.add_argument("--decode", action="store_true", help=text)
    group = parser.add_argument_group("tokens")
    text = "replace texts by their tokens; a tokenizer.json, as the tokenizers library saves it"
    group.add_argument("--tokenize", metavar="FILE", help=text)
    text = "field of the text (default: text)"
    group.add_argument("--text-field", metavar="NAME", default="text", help=text)
    mix = parser.add_argument_group("mixing")
    mix.add_argument("--mix", action="store_true", help="mix the samples, in one pass and a window of --memory")
    text = "seed of --mix, --oversample and --balance (default: 0)"
    mix.add_argument("--seed", type=int, metavar="N", default=0, help=text)
    mix.add_argument("--memory", metavar="BYTES", default=str(MIX_MEMORY_BYTES), help="window of --mix (default: 1GiB)")
    text = "samples of a global batch, for the predicted VR (default: 256)"
    mix.add_argument("--global-batch", type=at_least_one, metavar="N", default=256, help=text)
    text = "window of the shuffle to come, for the predicted VR (default: 512MiB)"
    mix.add_argument("--window", metavar="BYTES", help=text)
    group = parser.add_argument_group("selection")
    add_dedup_argument(
        group,
        key="samples of the same __key__, or key (read first; of tars, only the headers are)",
        content="samples whose other fields are equal (all are read first)",
    )
    add_repeat_arguments(group, columns="another column of the index of SOURCE")
    planned = "the index is written by this machine; with --mix, every shard reads a window of its own"
    add_engine_arguments(parser, planned=planned)
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Repack, and report what it gained."""
    refuse_mixture(arguments)
    began_seconds = time.monotonic()
    engine = engine_of(arguments, label="repacking", unit="shards")
    request = _request(arguments)
    if arguments.window is not None:
        parse_bytes(arguments.window, "--window")
    check_apart(source_of(arguments), arguments.destination)
    given = storage_options_of(arguments)
    here, there = options_of_sides(source_of(arguments), arguments.destination, given)
    if given and not here:
        arguments = argparse.Namespace(**{**vars(arguments), "storage_option": []})
    return repack_and_report(
        _opened(arguments),
        arguments.destination,
        request,
        there,
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
    """Repack what was opened, and report what it gained, for a global ``batch`` and a shuffle's ``window``."""
    with Progress(label="repacking", unit="bytes") as progress:
        made = repack_opened(
            opened,
            destination,
            request,
            storage_options=storage_options,
            progress=progress.show_bytes,
            engine=None if engine is None else engine.run,
        )
    summary, found = made.summary, []
    try:
        found = mixedness(made.source, made.index, batch=batch, window=window)
    except UsageError as error:  # the shards exist, whether or not their mixing can be predicted
        output.complain(f"note: no shuffle is predicted: {error.message}")
    more = {"order": str(made.source), "num_renamed": summary.num_renamed, "num_looked_at": made.num_looked_at}
    record = packed_record(made, more, elapsed_seconds=time.monotonic() - began_seconds, engine=engine)
    if opened.left_out:
        record["left_out"] = dict(opened.left_out)
        counts = ", ".join(f"{count:,} x {printable(suffix)}" for suffix, count in opened.left_out.items())
        output.complain(f"note: left out by their suffixes: {counts}; a glob names them")
    if num_empty := opened.index.notes.get("empty_files", 0):
        output.complain(f"note: left out {counted(num_empty, 'empty file')}")
    if summary.num_renamed:
        words = "came right behind another of the same key, which a tar would join: ~2 is added to its key"
        output.complain(f"note: {counted(summary.num_renamed, 'sample')} {words}")
    elif not as_json:
        del record["num_renamed"]
    if not as_json and (num_read := record.pop("num_looked_at")):
        output.complain(f"note: {counted(num_read, 'sample')} were read first, to know all columns of the tables")
    if made.classes:
        record["classes"] = classes_record(made.classes)
    if found:
        record["mixedness"] = [asdict(one) for one in found]
        if None in (found[0].rho_before, found[0].rho_after):
            chunks = f"{counted(found[0].num_chunks_before, 'chunk')} before and {found[0].num_chunks_after} after"
            output.complain(f"note: rho is known from {FEWEST_CHUNKS} chunks up; there are {chunks}")
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
    """Open the input; if it is not of the format that --format names, the error tells it from --to."""
    try:
        return open_with_samples(arguments)
    except ShardError as error:
        if isinstance(arguments.format, str) and arguments.to is None:
            meant = f"--format is that of the input; --to {arguments.format} makes shards of that format"
            error.hint = f"{meant}; {error.hint}" if error.hint else meant
        raise

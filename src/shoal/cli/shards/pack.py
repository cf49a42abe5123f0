"""The `shoal pack` command: pack files, rows or tokens of texts into shards with their index."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Mapping

from shoal.cli import output
from shoal.cli.display.progress_bar import Progress
from shoal.cli.options.argument_types import names
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
from shoal.cli.options.source_options import add_json_argument, add_store_arguments, storage_options_of
from shoal.cli.shards.repack import repack_and_report
from shoal.errors import UsageError
from shoal.figures import counted
from shoal.indexing.open_source import open_source
from shoal.pack.from_shards.repack_settings import RepackRequest
from shoal.pack.from_shards.text_sources import Documents, documents_format
from shoal.pack.inputs.input_sources import inputs_of
from shoal.pack.inputs.sample_fields import SampleFields
from shoal.pack.inputs.tree_inputs import shard_suffix
from shoal.pack.output.cleaning import GRACE_SECONDS, clean
from shoal.pack.output.output_names import check_apart
from shoal.pack.packing import Packed, pack_inputs
from shoal.pack.requests import PackRequest
from shoal.pipeline.stages.tokens.tokenizing import tokenize_with
from shoal.storage.store_of_url import options_of_sides
from shoal.tools.samples.preview import field_counts_text, printable, without_usual_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.epilog = (
        "Shards get their names when complete, and the index is written last. The same command continues a run after "
        "a kill or a full disk."
    )
    text = "a directory of files, a glob, a manifest (.csv, .tsv, .jsonl, .parquet), or a dataset of save_to_disk"
    parser.add_argument("source", metavar="SRC", nargs="?", help=text)
    parser.add_argument("destination", metavar="DST", nargs="?", help="a directory or URL without shards")
    text = f"format of the shards: {format_names()} (default: tar); with --tokenize also text or folder, for SRC"
    parser.add_argument("--format", metavar="NAME", help=text)
    add_shard_arguments(
        parser,
        shard_bytes="size of a shard",
        columns="columns of the index: length, a field, or a path into JSON",
        on_error="an input that cannot be read or written",
        workers="one per processor, fewer for little data",
    )
    _add_input_arguments(parser)
    _add_token_arguments(parser)
    _add_order_arguments(parser)
    add_engine_arguments(parser, planned="this machine lists the inputs (with --workers) and writes the index")
    group = parser.add_argument_group("cleaning")
    group.add_argument("--clean", metavar="DST", help="only remove the shards and records of an unfinished job")
    text = "seconds without records until a job counts as dead (default: 86400, a day)"
    group.add_argument("--grace", metavar="SECONDS", type=float, default=GRACE_SECONDS, help=text)
    add_store_arguments(parser)
    add_json_argument(parser)


def _add_input_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("inputs")
    group.add_argument("--group", action="store_true", help="join files with equal names up to the first dot")
    labels = group.add_mutually_exclusive_group()
    text = "the first directory is the class of a file; every file needs a directory (default: if all have one)"
    labels.add_argument("--label", dest="labelled", action="store_const", const=True, help=text)
    labels.add_argument("--no-label", dest="labelled", action="store_const", const=False, help="ignore directories")
    group.add_argument("--path-column", metavar="NAME", help="column of a manifest with the paths")
    text = (
        "required fields of every sample, separated by commas: suffixes of files, or cls for the class; jpg;png means "
        "either; --on-error handles samples without the fields, before any writes; may be repeated"
    )
    group.add_argument("--require", type=names, action="extend", metavar="FIELDS", default=[], help=text)
    add_dedup_argument(
        group,
        key="files of the same sample, otherwise an error",
        content="inputs with the same files, class and columns (reads all files of equal size first)",
    )


def _add_order_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("order")
    group.add_argument("--shuffle", action="store_true", help="mix all samples; takes no more memory")
    group.add_argument("--seed", type=int, metavar="N", default=0, help="seed of all random choices (default: 0)")
    add_repeat_arguments(group, columns="a column of the manifest or dataset")


def run(arguments: argparse.Namespace) -> int:
    """Pack the source, and report."""
    if arguments.clean is not None:
        return _clean(arguments)
    if arguments.destination is None:
        msg = "SRC and DST are missing: the files to pack, and the directory of the shards"
        raise UsageError(msg, hint="for example: shoal pack photos/ packed/")
    if arguments.tokenize is not None:
        return _pack_tokens(arguments)
    if arguments.documents is not None:
        msg = "--documents divides texts into documents, but --tokenize is not given"
        raise UsageError(msg, hint="--tokenize tokenizer.json")
    began_seconds = time.monotonic()
    engine = engine_of(arguments, label="packing", unit="shards")
    request = PackRequest(
        format=arguments.format or "tar",
        shuffle=arguments.shuffle,
        grouped=arguments.group,
        labelled=arguments.labelled,
        path_column=arguments.path_column,
        require=arguments.require,
        **shard_arguments(arguments),
    )
    check_apart(arguments.source, arguments.destination)
    with Progress(label="looking at inputs", unit="inputs") as progress:
        progress.update(0)
        inputs = inputs_of(arguments.source, request, progress=progress.show_bytes)
        if (suffix := shard_suffix(inputs)) is not None:
            output.complain(
                f"note: all {len(inputs):,} inputs end in {suffix}, like shards; each input becomes one sample. "
                f"`shoal repack {printable(arguments.source)} {printable(arguments.destination)}` packs their samples"
            )
    with Progress(label="packing", unit="bytes") as progress:
        packed = pack_inputs(
            inputs,
            arguments.destination,
            request,
            storage_options=storage_options_of(arguments),
            progress=progress.show_bytes,
            engine=None if engine is None else engine.run,
        )
    _report(packed, engine, time.monotonic() - began_seconds, as_json=arguments.json)
    return 0


def _clean(arguments: argparse.Namespace) -> int:
    if arguments.source is not None:
        raise UsageError("--clean packs nothing, and takes no SRC", hint="shoal pack --clean DST")
    cleaned = clean(arguments.clean, grace_seconds=arguments.grace, storage_options=storage_options_of(arguments))
    names = {"removed": list(map(printable, cleaned.removed)), "kept": list(map(printable, cleaned.kept))}
    record = {"output": printable(arguments.clean), "num_removed": len(cleaned.removed), "num_bytes": cleaned.num_bytes}
    output.emit(record | names if arguments.json else record, as_json=arguments.json)
    if not cleaned.removed:
        output.complain(f"note: there is nothing to remove in {printable(arguments.clean)}")
    if cleaned.kept:
        output.complain(f"note: not removed, because the job did not write their bytes: {', '.join(names['kept'])}")
    return 0


def _report(packed: Packed, engine: Engine | None, elapsed_seconds: float, *, as_json: bool) -> None:
    summary, fields = packed.summary, packed.summary.fields
    record = packed_record(packed, {"num_inputs": packed.num_inputs}, elapsed_seconds=elapsed_seconds, engine=engine)
    if fields is not None and as_json:
        record |= {
            "fields": fields.counts,
            "usual_fields": fields.usual,
            "num_without_usual_fields": fields.num_without_usual,
            "first_without_usual_fields": list(map(printable, fields.first_without_usual)),
        }
    elif fields is not None:
        record["fields"] = field_counts_text(fields)
    if packed.classes:
        record["classes"] = classes_record(packed.classes)
    emit_packed(record, summary.skipped, as_json=as_json)
    if fields is not None and not as_json:
        _note_fields(fields, summary.num_samples)


def _note_fields(fields: SampleFields, num_samples: int) -> None:
    """Note samples without a usual field, and pictures under several suffixes."""
    for field in (field for field in fields.usual if ";" in field):
        counts = ", ".join(f"{name} {fields.counts[name]:,}" for name in field.split(";"))
        output.complain(
            f"note: {printable(counts)} are one field with several names; a batch with several names becomes lists. "
            f'.rename(image="{printable(field)}") after decode() gives the field one name'
        )
    if fields.num_without_usual:
        usual = printable(fields.usual[0])
        output.complain(
            f"note: {fields.num_without_usual:,} of {counted(num_samples, 'sample')} lack fields that most have "
            f"({', '.join(map(printable, fields.usual))}): {without_usual_text(fields)}. A batch with such a sample "
            f"becomes lists; --require {shlex.quote(usual)} refuses such samples, or skips them with --on-error skip"
        )


# Formats for reading only: with these, --format names the format of SRC, and its documents.
_DOCUMENTS_OF_FORMAT: Mapping[str, Documents] = {"text": "line", "folder": "file"}
_FORMAT_OF_TOKENS = "mds"
_FILE_OPTIONS = {
    "--group": "group", "--label": "labelled", "--path-column": "path_column", "--require": "require",
    "--shuffle": "shuffle",
}  # fmt: skip


def _add_token_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tokens")
    text = (
        "pack the tokens of texts, in mds or the --format; FILE is a tokenizer.json of the tokenizers library. SRC is "
        "then shards (JSON Lines, Parquet and others), or plain text (.txt, or a glob)"
    )
    group.add_argument("--tokenize", metavar="FILE", help=text)
    group.add_argument("--text-field", metavar="NAME", default="text", help="field of the text (default: text)")
    text = (
        "SRC is plain text, of any suffix in a glob ('DIR/**/*.md'), and a document is a file (default) or a line that "
        "is not empty; the same as --format folder and --format text"
    )
    group.add_argument("--documents", choices=("file", "line"), help=text)


def _formats(arguments: argparse.Namespace) -> tuple[str, Documents | None]:
    """Return the format to write, and the documents of SRC, or None if unknown."""
    documents = _DOCUMENTS_OF_FORMAT.get(arguments.format)
    if documents is None:
        return arguments.format or _FORMAT_OF_TOKENS, arguments.documents
    if arguments.documents not in (None, documents):
        other = f"--documents {arguments.documents}"
        msg = f"--format {arguments.format} takes each {documents} for a document, but {other} does not"
        raise UsageError(msg, hint="leave out one of them; without --format, tokens are written in mds")
    return _FORMAT_OF_TOKENS, documents


def _pack_tokens(arguments: argparse.Namespace) -> int:
    """Tokenize and pack the texts of the source, and report."""
    began_seconds = time.monotonic()
    if wrong := [option for option, name in _FILE_OPTIONS.items() if getattr(arguments, name)]:
        msg = f"--tokenize packs texts, but {', '.join(wrong)} does not apply to texts"
        raise UsageError(msg, hint="tokens are mixed by `shoal repack --mix`, or when they are read")
    engine = engine_of(arguments, label="packing", unit="shards")
    check_apart(arguments.source, arguments.destination)
    source_options, output_options = options_of_sides(
        arguments.source, arguments.destination, storage_options_of(arguments)
    )
    field = arguments.text_field
    format_of_tokens, documents = _formats(arguments)
    request = RepackRequest(
        format=format_of_tokens, tokenize=tokenize_with(arguments.tokenize, field=field), **shard_arguments(arguments)
    )
    format = documents_format(arguments.source, documents, field=field, storage_options=source_options)  # noqa: A001
    opened = open_source(arguments.source, format=format, storage_options=source_options)
    return repack_and_report(
        opened,
        arguments.destination,
        request,
        output_options,
        engine=engine,
        began_seconds=began_seconds,
        as_json=arguments.json,
    )

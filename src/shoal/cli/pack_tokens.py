"""`shoal pack --tokenize`: token shards of texts, made as `shoal repack --tokenize` makes them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping

from shoal.cli.options.engine_options import engine_of
from shoal.cli.options.pack_options import shard_arguments
from shoal.cli.options.source_options import storage_options_of
from shoal.cli.repack import repack_and_report
from shoal.errors import UsageError
from shoal.indexing.open_source import open_source
from shoal.pack.from_shards.repack_settings import RepackRequest
from shoal.pack.from_shards.text_sources import Documents, documents_format
from shoal.pack.output.output_names import check_apart
from shoal.pipeline.stages.tokenizing import tokenize_with
from shoal.storage.store_of_url import options_of_sides

DOCUMENTS_OF_FORMAT: Mapping[str, Documents] = {"text": "line", "folder": "file"}
"""What a document is in formats that are read and never written: there ``--format`` is that of SRC."""
_WRITTEN = "mds"
_OF_FILES = {
    "--group": "group", "--label": "labelled", "--path-column": "path_column", "--require": "require",
    "--shuffle": "shuffle",
}  # fmt: skip


def add_token_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options about tokens."""
    group = parser.add_argument_group("tokens")
    text = (
        "pack the tokens of texts, in mds unless --format says otherwise; a tokenizer.json, as the tokenizers library "
        "saves it. SRC are then shards (JSON Lines, Parquet and others), or plain text (.txt, or what a glob names)"
    )
    group.add_argument("--tokenize", metavar="FILE", help=text)
    text = "field of the text (default: text)"
    group.add_argument("--text-field", metavar="NAME", default="text", help=text)
    text = (
        "SRC is plain text, of any suffix if a glob names it ('DIR/**/*.md'), and a document is a file (default), or a "
        "line that is not empty; --format folder and --format text say the same"
    )
    group.add_argument("--documents", choices=("file", "line"), help=text)


def _formats(arguments: argparse.Namespace) -> tuple[str, Documents | None]:
    """Return the format to write, and what a document is, if that was said."""
    said = DOCUMENTS_OF_FORMAT.get(arguments.format)
    if said is None:
        return arguments.format or _WRITTEN, arguments.documents
    if arguments.documents not in (None, said):
        other = f"--documents {arguments.documents}"
        msg = f"--format {arguments.format} takes each {said} for a document, and {other} does not"
        raise UsageError(msg, hint="leave out one of them; tokens are written in mds unless --format names another one")
    return _WRITTEN, said


def run_tokens(arguments: argparse.Namespace) -> int:
    """Tokenize and pack the texts that the source names, and report."""
    began_seconds = time.monotonic()
    if asked := [option for option, name in _OF_FILES.items() if getattr(arguments, name)]:
        msg = f"--tokenize packs texts, to which {', '.join(asked)} does not apply"
        raise UsageError(msg, hint="tokens are mixed by `shoal repack --mix`, or when they are read")
    engine = engine_of(arguments, label="packing", unit="shards")
    check_apart(arguments.source, arguments.destination)
    here, there = options_of_sides(arguments.source, arguments.destination, storage_options_of(arguments))
    field = arguments.text_field
    written, documents = _formats(arguments)
    request = RepackRequest(
        format=written,
        tokenize=tokenize_with(arguments.tokenize, field=field),
        **shard_arguments(arguments),
    )
    format = documents_format(arguments.source, documents, field=field, storage_options=here)  # noqa: A001
    opened = open_source(arguments.source, format=format, storage_options=here)
    return repack_and_report(
        opened,
        arguments.destination,
        request,
        there,
        engine=engine,
        began_seconds=began_seconds,
        as_json=arguments.json,
    )

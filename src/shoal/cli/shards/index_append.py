"""`shoal index --append`: new shards are added to an existing index, and known shards are not read."""

from __future__ import annotations

import argparse
from functools import partial

from shoal.cli import output
from shoal.cli.display.progress_bar import Progress
from shoal.cli.options.index_output import IndexOutput
from shoal.errors import UsageError
from shoal.figures import counted
from shoal.formats.shard_format import Format
from shoal.index.table import Index
from shoal.indexing.generations.appending import Appended, append_shards
from shoal.indexing.index_files import made_on_purpose
from shoal.indexing.manifests_beside import Described
from shoal.indexing.open_source import format_of_index
from shoal.pipeline.sample_columns.appended_columns import columns_as_in
from shoal.storage.store_protocol import Store
from shoal.tools.samples.preview import printable


def add_append_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of an append."""
    group = parser.add_argument_group("append", "add new shards to an existing index")
    text = "add shards that the index lacks, after its other shards; old sample ids and states stay valid"
    group.add_argument("--append", action="store_true", help=text)
    text = "with --append: leave out shards of the index that SOURCE lacks; later samples get other ids"
    group.add_argument("--drop-missing", action="store_true", help=text)


def check_append_arguments(arguments: argparse.Namespace) -> None:
    """Raise `UsageError` for an argument that does not go with the others."""
    if arguments.drop_missing and not arguments.append:
        raise UsageError("--drop-missing belongs to --append", hint="`shoal index` indexes the shards that exist")
    others = {
        "--extent-bytes": arguments.extent_bytes, "--columns": arguments.columns, "--checksum": arguments.checksum,
        "--plan": arguments.plan,
    }  # fmt: skip
    if arguments.append and (wrong := [option for option, value in others.items() if value]):
        msg = f"--append makes new shards like the shards of the index, but {wrong[0]} asks for something else"
        raise UsageError(msg, hint=f"leave out {wrong[0]}: the index determines extents, columns and checksums")


def append(
    arguments: argparse.Namespace, target: IndexOutput, before: Index | None, described: Described, store: Store
) -> Index:
    """Return the index of the target with new shards, and print the appended shards and the missing shards."""
    if before is None:
        msg = f"{printable(target.path)}: there is no index to append to"
        raise UsageError(msg, hint="`shoal index` without --append makes an index; --output names another file")
    chosen: Format = format_of_index(before, target.path, arguments.format)
    with Progress(label="indexing", unit="bytes") as progress, Progress(label="columns", unit="bytes") as columns:
        result: Appended = append_shards(
            before, described.source, store=store, format=chosen, drop_missing=arguments.drop_missing,
            add_columns=partial(columns_as_in, progress=columns.show_bytes), progress=progress.show_bytes,
            workers=arguments.workers, expected=described.expected,
        )  # fmt: skip
    if result.dropped:
        first = printable(result.dropped[0])
        output.complain(
            f"note: {counted(len(result.dropped), 'shard')} left out, first {first}; later samples have new ids"
        )
    output.complain(f"note: {counted(len(result.new_names), 'new shard')} appended")
    return made_on_purpose(result.index)

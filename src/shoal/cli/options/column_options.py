"""Columns for an index, as `shoal index` is asked for them, and the reading of them from the samples."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from shoal.cli import output
from shoal.cli.display.preview import printable
from shoal.cli.display.progress_bar import Progress
from shoal.cli.options.argument_types import names
from shoal.errors import UsageError
from shoal.figures import counted
from shoal.formats.column_paths import Column
from shoal.index.table import Index
from shoal.indexing.opened_dataset import Opened
from shoal.pipeline.sample_columns.added_columns import COLUMN_SOURCES, add_columns, new_columns


def add_column_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the columns, and the values for samples that lack one."""
    text = (
        "read columns from all samples into the index: fields, paths into JSON such as meta.lang, or lengths such as "
        "tokens:len, separated by commas; NAME=PATH gives another name; an index that is there gets them added"
    )
    parser.add_argument("--columns", type=names, action="extend", metavar="NAMES", default=[], help=text)
    text = "value of a column for samples that have none, which are refused otherwise; may be repeated"
    parser.add_argument("--missing", metavar="NAME=VALUE", action="append", default=[], help=text)


def missing_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the values for missing ones by column."""
    pairs = [word.partition("=") for word in arguments.missing]
    if wrong := [word for word, (name, sign, _) in zip(arguments.missing, pairs, strict=True) if not (name and sign)]:
        raise UsageError(f"--missing takes NAME=VALUE; got {wrong[0]!r}", hint="--missing label=-1")
    return {name: value for name, _, value in pairs}


def columns_added(opened: Opened, columns: Sequence[Column], missing: Mapping[str, str]) -> Index:
    """Return the index with those columns that it lacks, and tell how many samples had no value."""
    wanted = {column.name for column in new_columns(opened.index, columns, missing)}
    with Progress(label="columns", unit="bytes") as progress:
        index = add_columns(opened, columns, missing=missing, progress=progress.show_bytes)
    for name in wanted:
        about = index.metadata[COLUMN_SOURCES][name]
        if num_missing := about.get("num_missing"):
            what = f"{num_missing:,} of {counted(index.num_samples, 'sample')} have no {about['asked']!r}"
            output.complain(f"note: {what}, and {about['missing']!r} in the column {printable(name)!r}")
    return index

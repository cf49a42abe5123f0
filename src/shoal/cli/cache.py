"""The `shoal cache` command: show or remove the caches of this machine."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from shoal.cli import output
from shoal.cli.options.argument_types import at_least_zero
from shoal.cli.options.source_options import add_json_argument
from shoal.errors import ShoalError
from shoal.storage.chunk_cache.cache_status import (
    chunk_cache_status,
    clear_chunks,
    clear_indexes,
    index_cache_status,
    recorded_chunk_caches,
)

_DAY_SECONDS = 86_400
_EXIT_REFUSED = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.epilog = (
        "Without a DIRECTORY: the indexes built by this machine, and every chunk cache of this user. Removed files can "
        "be built again, and running processes are not disturbed."
    )
    parser.add_argument("directory", metavar="DIRECTORY", nargs="*", help="chunk cache of shoal.open(cache=DIRECTORY)")
    removal = parser.add_mutually_exclusive_group()
    removal.add_argument("--clear", action="store_true", help="remove everything")
    removal.add_argument("--prune", action="store_true", help="remove files unused for --days, or of killed processes")
    parser.add_argument("--days", type=at_least_zero, default=30, metavar="N", help="days for --prune (default: 30)")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the caches, or remove them and show the removed entries."""
    known = not arguments.directory
    directories = recorded_chunk_caches() if known else arguments.directory
    if arguments.clear or arguments.prune:
        unused_seconds = None if arguments.clear else float(arguments.days * _DAY_SECONDS)
        removed = [clear_indexes(unused_seconds=unused_seconds)] if known else []
        rows, is_whole = _of_each(directories, known, lambda path: clear_chunks(path, unused_seconds=unused_seconds))
        record: dict[str, Any] = {"removed": [*map(asdict, removed), *rows]}
    else:
        rows, is_whole = _of_each(directories, known, chunk_cache_status)
        record = {"indexes": asdict(index_cache_status())} if known else {}
        record["chunk_caches"] = rows
    if arguments.json:
        output.emit(record, as_json=True)
    else:
        _show(record)
    return 0 if is_whole else _EXIT_REFUSED


def _of_each(directories: list[str], known: bool, query: Any) -> tuple[list[dict[str, Any]], bool]:  # noqa: FBT001
    """Apply ``query`` to each directory; an error in an unnamed directory does not hide the other directories."""
    rows, is_whole = [], True
    for directory in directories:
        try:
            rows.append(asdict(query(directory)))
        except ShoalError as error:
            if not known:
                raise
            output.complain(f"error: {error}")
            is_whole = False
    return rows, is_whole


def _show(record: dict[str, Any]) -> None:
    if "removed" in record:
        output.emit({"removed": record["removed"]})
        return
    if "indexes" in record:
        facts = dict(record["indexes"])
        output.emit({"indexes": facts.pop("path"), **output.without_usual(facts)})
    for number, row in enumerate(record["chunk_caches"]):
        if number or "indexes" in record:
            output.say()
        facts = dict(row)
        output.emit({"chunk cache": facts.pop("path"), **output.without_usual(facts)})

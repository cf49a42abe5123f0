"""The `shoal demo` command: shuffle real files three ways in equal memory, measure, draw, stop and resume."""

from __future__ import annotations

import argparse
import contextlib
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from shoal.cli import output
from shoal.cli.demo.demo_data import SHARD_PREFIX, FileSet, find_files, pack
from shoal.cli.demo.demo_report import closing_text, comparison_text, data_text, picture_of, record_of, resumed_text
from shoal.cli.demo.demo_run import BATCH, measure_orders, resume_elsewhere
from shoal.cli.display.pages import check_picture, write_picture
from shoal.cli.display.progress_bar import Progress
from shoal.cli.options.source_options import add_json_argument
from shoal.errors import UsageError
from shoal.formats.format_registry import format_named
from shoal.index.table import Index
from shoal.indexing.build import build_index
from shoal.indexing.index_files import save_index
from shoal.quality.metrics import expected_distinct
from shoal.storage.files.local_store import LocalStore
from shoal.storage.sources.shard_selection import INDEX_NAME
from shoal.storage.sources.source import expand
from shoal.tools.reports.rendering import has_matplotlib

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of the demonstration.

    A tiny dataset needs tiny chunks: extents of 32 KiB, half the usual size, hold one or two files, and a window of
    5 MiB holds about 170 extents, nearly three for each of the 64 samples of a batch.
    """

    num_shards: int = 8
    extent_bytes: int = 32 << 10
    window: str = "5MiB"
    num_epochs: int = 100
    global_batch: int = 48
    world_size: int = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    text = "directory of the shards (default: a temporary directory)"
    parser.add_argument("directory", nargs="?", type=Path, metavar="DIRECTORY", help=text)
    text = "picture, .png, .svg or .pdf (default: %(default)s)"
    parser.add_argument("--picture", type=Path, default=Path("shoal-demo.png"), metavar="FILE", help=text)
    parser.add_argument("--keep", action="store_true", help="keep the temporary directory, and print its path")
    add_json_argument(parser, "print one JSON object with all numbers")


def run(arguments: argparse.Namespace) -> int:
    """Demonstrate shoal on the standard library of the running Python."""
    check_picture(arguments.picture)
    with _directory(arguments.directory, keep=arguments.keep) as directory:
        library = find_files(Path(sysconfig.get_paths()["stdlib"]))
        code = show(library, directory, picture=arguments.picture, as_json=arguments.json, scale=Scale())
        if arguments.keep and arguments.directory is None and not arguments.json:
            output.say(f"kept       {directory}")
        return code


def show(library: FileSet, directory: Path, *, picture: Path, as_json: bool, scale: Scale) -> int:
    """Pack, index, shuffle, measure, draw, stop and resume; return 0, or 1 if the resumed run differs."""

    def say(text: str) -> None:
        if not as_json:
            output.say(text)

    began_seconds = time.perf_counter()
    index, facts = _pack_and_index(library, directory, scale)
    source = f"{len(library.files):,} files of Python {_PYTHON}'s standard library"
    say(data_text(library, facts, source=source))
    labels = np.array([file.package for file in library.files])
    comparison = measure_orders(
        shoal.open(directory),
        labels,
        window=scale.window,
        chunk=scale.extent_bytes,
        sample_bytes=index.num_bytes / index.num_samples,
        num_epochs=scale.num_epochs,
    )
    expected = expected_distinct(labels, BATCH)
    say(comparison_text(comparison, expected_distinct=expected, num_epochs=scale.num_epochs))
    resumed = resume_elsewhere(
        lambda: shoal.open(directory).shuffle(seed=0, window=scale.window, chunk=scale.extent_bytes),
        global_batch=scale.global_batch,
        world_size=scale.world_size,
    )
    say(resumed_text(resumed))
    drawn = picture.suffix.lower() == ".svg" or has_matplotlib()
    if drawn:
        data = f"{source}, {facts['num_shards']} tar shards in sorted order, labelled by package.  "
        data += f"Ratios and counts over {scale.num_epochs} epochs."
        write_picture(picture, picture_of(comparison, subtitle=data, expected_distinct=expected))
    elapsed_seconds = time.perf_counter() - began_seconds
    say(closing_text(picture if drawn else None, elapsed_seconds=elapsed_seconds))
    if as_json:
        record = {**facts, **record_of(comparison, resumed, expected_distinct=expected)}
        more = {"elapsed_seconds": elapsed_seconds, "picture": str(picture) if drawn else None}
        output.emit(record | more, as_json=True)
    return 0 if resumed.exact else 1


@contextlib.contextmanager
def _directory(path: Path | None, *, keep: bool) -> Iterator[Path]:
    """Yield an empty directory for the shards, without removing files of the user."""
    if path is not None:
        names = [file.name for file in path.iterdir()] if path.is_dir() else []
        if strangers := [name for name in names if name != INDEX_NAME and not name.startswith(SHARD_PREFIX)]:
            msg = f"{path}: the demonstration needs an empty directory; this directory holds {min(strangers)}"
            raise UsageError(msg, hint="name a new directory")
        for name in names:
            (path / name).unlink()  # shards of an earlier demonstration
        yield path
    elif keep:
        yield Path(tempfile.mkdtemp(prefix="shoal-demo-"))
    else:
        with tempfile.TemporaryDirectory(prefix="shoal-demo-") as name:
            yield Path(name)


def _pack_and_index(library: FileSet, directory: Path, scale: Scale) -> tuple[Index, dict[str, Any]]:
    """Pack and index the files; return the index, and facts about sizes and times."""
    if len(library.files) < 4 * BATCH:
        msg = f"the standard library of this Python is {len(library.files)} files; the demonstration needs {4 * BATCH}"
        raise UsageError(msg, hint="run a Python whose standard library is not in an archive")
    began_seconds = time.perf_counter()
    with Progress(total=library.num_bytes, label="packing", unit="bytes") as progress:
        paths = pack(library.files, directory, num_shards=scale.num_shards, progress=progress.advance)
    packed_seconds = time.perf_counter()
    store = LocalStore()
    shards = expand(str(directory), suffixes=(".tar",))
    index = build_index(shards, store=store, format=format_named("tar"), extent_bytes=scale.extent_bytes)
    indexed_seconds = time.perf_counter()
    save_index(index, directory, store=store)
    facts = {
        "num_files": len(library.files),
        "file_bytes": library.num_bytes,
        "num_large_files": library.num_large,
        "num_unreadable_files": library.num_unreadable,
        "num_packages": len({file.package for file in library.files}),
        "num_shards": len(paths),
        "shard_bytes": sum(path.stat().st_size for path in paths),
        "pack_seconds": packed_seconds - began_seconds,
        "num_extents": index.num_extents,
        "extent_bytes": scale.extent_bytes,
        "index_seconds": indexed_seconds - packed_seconds,
    }
    return index, facts

"""The `shoal demo` command: shuffles real files three ways in equal memory, measures, draws, stops and resumes."""

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
from shoal.cli.demo.demo_data import SHARD_PREFIX, Found, find_files, pack
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

    The dataset is tiny, so its chunks must be too: extents of 32 KiB, half the usual size, hold one or two files, and
    a window of 3 MiB holds about a hundred extents, more than the 64 samples of a batch.
    """

    num_shards: int = 8
    extent_bytes: int = 32 << 10
    window: str = "3MiB"
    num_epochs: int = 100
    global_batch: int = 48
    world_size: int = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    text = "keep the shards here (default: a temporary directory, which is removed)"
    parser.add_argument("directory", nargs="?", type=Path, metavar="DIRECTORY", help=text)
    text = "write the picture to this .png, .svg or .pdf (default: %(default)s)"
    parser.add_argument("--picture", type=Path, default=Path("shoal-demo.png"), metavar="FILE", help=text)
    parser.add_argument("--keep", action="store_true", help="keep the temporary directory, and say where it is")
    add_json_argument(parser, "print one JSON object with all numbers")


def run(arguments: argparse.Namespace) -> int:
    """Demonstrate shoal on the standard library of the Python that runs it."""
    check_picture(arguments.picture)
    with _directory(arguments.directory, keep=arguments.keep) as directory:
        library = find_files(Path(sysconfig.get_paths()["stdlib"]))
        code = show(library, directory, picture=arguments.picture, as_json=arguments.json, scale=Scale())
        if arguments.keep and arguments.directory is None and not arguments.json:
            output.say(f"kept       {directory}")
        return code


def show(found: Found, directory: Path, *, picture: Path, as_json: bool, scale: Scale) -> int:
    """Pack, index, shuffle, measure, draw, stop and resume; return 0, or 1 if the resumed run differs."""

    def say(text: str) -> None:
        if not as_json:
            output.say(text)

    began_seconds = time.perf_counter()
    index, made = _make(found, directory, scale)
    source = f"{len(found.files):,} files of Python {_PYTHON}'s standard library"
    say(data_text(found, made, source=source))
    labels = np.array([file.package for file in found.files])
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
        data = f"{source}, {made['num_shards']} tar shards in sorted order, labelled by package.  "
        data += f"Ratios and counts over {scale.num_epochs} epochs."
        write_picture(picture, picture_of(comparison, subtitle=data, expected_distinct=expected))
    elapsed_seconds = time.perf_counter() - began_seconds
    say(closing_text(picture if drawn else None, elapsed_seconds=elapsed_seconds))
    if as_json:
        record = {**made, **record_of(comparison, resumed, expected_distinct=expected)}
        more = {"elapsed_seconds": elapsed_seconds, "picture": str(picture) if drawn else None}
        output.emit(record | more, as_json=True)
    return 0 if resumed.exact else 1


@contextlib.contextmanager
def _directory(asked: Path | None, *, keep: bool) -> Iterator[Path]:
    """Yield the directory for the shards; no existing file is lost."""
    if asked is not None:
        names = [path.name for path in asked.iterdir()] if asked.is_dir() else []
        if strangers := [name for name in names if name != INDEX_NAME and not name.startswith(SHARD_PREFIX)]:
            msg = f"{asked}: the demonstration writes into an empty directory; this one holds {min(strangers)}"
            raise UsageError(msg, hint="name a new directory")
        for name in names:
            (asked / name).unlink()  # from an earlier demonstration
        yield asked
    elif keep:
        yield Path(tempfile.mkdtemp(prefix="shoal-demo-"))
    else:
        with tempfile.TemporaryDirectory(prefix="shoal-demo-") as made:
            yield Path(made)


def _make(found: Found, directory: Path, scale: Scale) -> tuple[Index, dict[str, Any]]:
    """Pack and index; return the index, and a record of what was made and how fast."""
    if len(found.files) < 4 * BATCH:
        msg = f"the standard library of this Python is {len(found.files)} files; the demonstration needs {4 * BATCH}"
        raise UsageError(msg, hint="a Python that does not keep its library in one archive")
    begun = time.perf_counter()
    with Progress(total=found.num_bytes, label="packing", unit="bytes") as progress:
        paths = pack(found.files, directory, num_shards=scale.num_shards, progress=progress.advance)
    packed = time.perf_counter()
    store = LocalStore()
    shards = expand(str(directory), suffixes=(".tar",))
    index = build_index(shards, store=store, format=format_named("tar"), extent_bytes=scale.extent_bytes)
    indexed = time.perf_counter()
    save_index(index, directory, store=store)
    made = {
        "num_files": len(found.files),
        "file_bytes": found.num_bytes,
        "num_large_files": found.num_large,
        "num_unreadable_files": found.num_unreadable,
        "num_packages": len({file.package for file in found.files}),
        "num_shards": len(paths),
        "shard_bytes": sum(path.stat().st_size for path in paths),
        "pack_seconds": packed - begun,
        "num_extents": index.num_extents,
        "extent_bytes": scale.extent_bytes,
        "index_seconds": indexed - packed,
    }
    return index, made

"""Processor time of `shoal index --append`: a few new shards beside many known ones, and indexing all of them anew.

python bench/append_index.py [--known 100000] [--new 10] [--samples 20]``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import shoal
from shoal.formats.format_registry import format_named
from shoal.indexing.build import build_index
from shoal.indexing.generations.appending import append_shards
from shoal.indexing.index_files import load_index, save_index
from shoal.storage.files.local_store import LocalStore
from shoal.storage.sources.source import expand


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--known", type=int, default=100_000)
    parser.add_argument("--new", type=int, default=10)
    parser.add_argument("--samples", type=int, default=20, help="samples of a shard")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        rows = [("indexing", "shards", "new", "processor seconds", "seconds")]
        for known in (arguments.known // 10, arguments.known):
            rows += measure(Path(home, str(known)), known, arguments.new, arguments.samples)
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |", flush=True)


def measure(directory: Path, known: int, new: int, num_samples: int) -> list[tuple[Any, ...]]:
    """Index some shards, and then a few more, by appending and anew."""
    directory.mkdir()
    text = "".join(json.dumps({"id": i, "text": "x" * 400}) + "\n" for i in range(num_samples))
    for number in range(known):
        Path(directory, f"{number:07d}.jsonl").write_text(text)
    store, format = LocalStore(), format_named("jsonl")  # noqa: A001
    path = str(directory / "shoal.index")

    def listed() -> Any:
        return expand(directory, suffixes=(".jsonl",))

    def built() -> Any:
        return build_index(listed(), store=store, format=format, workers=0)

    def append() -> None:
        index = load_index(path, store=store)
        save_index(append_shards(index, listed(), store=store, format=format, workers=0).index, path, store=store)

    rows = [timed("all", known, known, lambda: save_index(built(), path, store=store))]
    for number in range(known, known + new):
        Path(directory, f"{number:07d}.jsonl").write_text(text)
    rows.append(timed("appending", known + new, new, append))
    rows.append(timed("appending none", known + new, 0, append))
    assert shoal.open(directory).num_samples == (known + new) * num_samples
    return rows


def timed(what: str, num_shards: int, num_new: int, call: Any) -> tuple[Any, ...]:
    """Return a row with the processor time and the time of a call."""
    began, began_seconds = time.process_time(), time.perf_counter()
    call()
    spent, seconds = time.process_time() - began, time.perf_counter() - began_seconds
    return what, f"{num_shards:,}", f"{num_new:,}", f"{spent:.2f}", f"{seconds:.2f}"


if __name__ == "__main__":
    main()

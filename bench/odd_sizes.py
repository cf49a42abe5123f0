"""Costs that grew with the wrong thing: filters that keep little, tiny sources of mixtures, an index read over http.

python bench/odd_sizes.py
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import shoal
from shoal.formats.format_registry import format_named
from shoal.indexing.build import build_index
from shoal.indexing.index_files import save_index
from shoal.storage.files.local_store import LocalStore
from shoal.storage.sources.source import expand
from shoal.stream.workers import packed_work
from shoal.testing import RangeServer


def is_third(sample: dict[str, Any]) -> bool:
    """Keep one sample of all."""
    return bool(sample["x"] == 3)


def written(path: Path, num_lines: int) -> Path:
    """Write JSON lines."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f'{{"x": {number}}}\n' for number in range(num_lines)))
    return path


def timed(what: str, batches: Any) -> None:
    """Print how long it takes to go through all batches."""
    began = time.perf_counter()
    num_batches = sum(1 for _ in batches)
    print(f"{what}: {num_batches} batches in {time.perf_counter() - began:.2f} s")


def main() -> None:
    """Measure all three."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        os.environ["SHOAL_CACHE_DIR"] = str(home / "cache")
        few, many, one = (written(home / f"{size}.jsonl", size) for size in (900, 20_000, 1))
        timed("a filter that keeps 1 of 900", shoal.open(few).shuffle(seed=0).filter(is_third).batch(1))
        sources = {"many": shoal.open(many), "one": shoal.open(one)}
        mixture = shoal.mix(sources, weights={"many": 1, "one": 1}, ends="all").shuffle(seed=0)
        timed("a mixture of 20,000 samples and 1, 40,000 positions", mixture.batch(64))
        data = written(home / "far" / "far.jsonl", 400_000)
        found = expand(str(data), suffixes=(".jsonl",))
        index = build_index(found, store=LocalStore(), format=format_named("jsonl"), extent_bytes=32)
        path = save_index(index, home / "far" / "shoal.index", store=LocalStore())
        with RangeServer(home / "far") as server:
            work = shoal.open(f"{server.url}/shoal.index").batch(64).stream.iterator_spec().work
            num_bytes = len(packed_work.pack(work)[0])
        print(
            f"an index of {Path(path).stat().st_size:,} bytes over http: each worker process gets {num_bytes:,} bytes"
        )


if __name__ == "__main__":
    main()

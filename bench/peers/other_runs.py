"""Rows that other scripts of bench/ measure: shards without an index (growing.py), and a large index (scale.py)."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import growing
from rows import Row
from servers.quick import Quick

SHARDS, SHARD_BYTES = 1024, 1_000_000
INDEX_SAMPLES, SAMPLE_BYTES = 3 * 10**8, 100_000
BENCH = Path(growing.__file__).parent


class OtherRuns(NamedTuple):
    """The samples of a workload, their bytes, and a function that runs a row with a seed; it raises RuntimeError."""

    num_samples: int
    num_bytes: int
    read: Callable[[Row, int], dict[str, Any]]


@contextmanager
def growing_runs(scratch: Path, source: Path, python_of: Callable[[str], Path]) -> Iterator[OtherRuns]:
    """Serve tars of small members, and run epochs and jobs of `growing.Bench` on them."""
    data = scratch / "growing"
    num_bytes = growing.make_tars(data, SHARDS, SHARD_BYTES)
    with Quick(data, 20.0, 60.0) as server:
        bench = growing.Bench(scratch, server, SHARDS, num_bytes, is_cold=True)
        bench.pythons["webdataset"] = str(python_of("webdataset"))
        bench.source = str(source)
        indexed = scratch / "growing-indexed"
        indexed.mkdir()
        first = bench.run("indexed", 1, 0, seed=0, is_epoch=True, cache=str(indexed))

        def read(row: Row, seed: int) -> dict[str, Any]:
            kind, is_epoch = row.variant or row.library, row.way == "epoch"
            cache = str(indexed) if kind == "indexed" else None
            found = bench.run(kind, 1 if is_epoch else 4, row.workers, seed=seed, is_epoch=is_epoch, cache=cache)
            return {"seconds": found["rest" if is_epoch else "first"], "cpu_seconds": found["cpu"], "peak_bytes": 0}

        yield OtherRuns(first["num_samples"], num_bytes, read)


@contextmanager
def index_runs(scratch: Path, source: Path, python_of: Callable[[str], Path]) -> Iterator[OtherRuns]:
    """Make an index of many samples by scale.py, and open it."""
    directory = scratch / "scale" / str(INDEX_SAMPLES)

    def read(_: Row, __: int) -> dict[str, Any]:
        if not (BENCH / "scale.py").exists():
            msg = "bench/scale.py, which makes the index, is not there"
            raise RuntimeError(msg)
        if not directory.exists():
            importlib.import_module("scale").make_dataset(directory, INDEX_SAMPLES, is_fine=False)
        command = [str(python_of("shoal")), str(BENCH / "scale.py"), str(scratch), "--step"]
        settings = os.environ | {"PYTHONPATH": str(source)}
        ran = subprocess.run(
            [*command, str(directory), str(INDEX_SAMPLES)], env=settings, capture_output=True, text=True, check=False
        )
        if ran.returncode:
            raise RuntimeError(ran.stderr.strip().splitlines()[-1])
        found = json.loads(ran.stdout)
        peak_mib = max(found["process_mib"], found["opening_mib"])
        return {"seconds": found["open"], "cpu_seconds": found["open"], "peak_bytes": peak_mib * 2**20}

    yield OtherRuns(INDEX_SAMPLES, INDEX_SAMPLES * SAMPLE_BYTES, read)


OTHERS = {"growing": growing_runs, "index": index_runs}
"""The workloads that other scripts measure."""

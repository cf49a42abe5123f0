"""Packing with Ray beside processes of this machine, on two cores; and Ray Data's sink beside its own writers.

    PYTHONPATH=src .integration/ray-python3.11/bin/python bench/ray_engine.py engine|sink [--rows 200000] [--rounds 3]

CPU seconds are those of this process and all below it, by /proc; Ray is started before they are counted, and has run a
task on each core. Rounds are interleaved.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.data

import shoal.pack.ray
from shoal.pack import pack, plan_repack, repack
from shoal.pack.ray import ShoalDatasink, ShoalDatasource

SHARD_BYTES = 4_000_000
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """CPU seconds of this process and its descendants, of those that have ended if their parents have waited."""
    parents, ticks = {}, {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            parents[int(status.parent.name)] = int(fields[1])
            ticks[int(status.parent.name)] = sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {number for number, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[number] for number in ours) / TICKS


def idle() -> None:
    """Keep a core for a moment."""
    time.sleep(0.5)


def measured(runs: dict[str, Callable[[str], Any]], home: str, *, rows: int, rounds: int) -> None:
    """Run all in turn, and print the wall and CPU seconds of each."""
    for number in range(rounds):
        for name, run in runs.items():
            out = f"{home}/{name.replace(' ', '-')}-{number}"
            cpu, began = cpu_seconds(), time.monotonic()
            run(out)
            wall, cpu = time.monotonic() - began, cpu_seconds() - cpu
            num_bytes = sum(path.stat().st_size for path in Path(out).rglob("*") if path.is_file())
            print(f"{name:32} {wall:6.2f} s wall {cpu:6.2f} s CPU  {rows / cpu:9,.0f} rows per s of CPU"
                  f"  {num_bytes / 1e6:7.1f} MB", flush=True)  # fmt: skip
            shutil.rmtree(out)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["engine", "sink"])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    home = tempfile.mkdtemp(prefix="ray-")
    os.environ["RAY_TMPDIR"] = home
    began = time.monotonic(), cpu_seconds()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=500_000_000)
    ray.get([ray.remote(idle).remote() for _ in range(2)])
    print(f"Ray is up after {time.monotonic() - began[0]:.1f} s, {cpu_seconds() - began[1]:.1f} s CPU")
    moments = np.random.default_rng(0)
    words = np.array(["shoal", "packs", "shards", "of", "samples", "with", "an", "index", "beside", "them"])
    texts = [" ".join(moments.choice(words, 80)) for _ in range(1000)]
    rows = ({"id": str(number), "text": texts[number % 1000]} for number in range(given.rows))
    pack(rows, f"{home}/in", format="jsonl", shard_bytes=SHARD_BYTES)
    options: dict[str, Any] = {"shard_bytes": SHARD_BYTES, "format": "mds"}
    try:
        if given.what == "engine":
            runs: dict[str, Callable[[str], Any]] = {
                "repack, two processes": lambda out: repack(f"{home}/in", out, num_workers=2, **options),
                "repack, Ray": lambda out: shoal.pack.ray.run(plan_repack(f"{home}/in", out, **options)),
            }
        else:
            ds = ray.data.read_datasource(ShoalDatasource(f"{home}/in")).materialize()
            ds.context.execution_options.preserve_order = True
            runs = {
                "write_json": ds.write_json,
                "ShoalDatasink jsonl": lambda out: ds.write_datasink(
                    ShoalDatasink(out, format="jsonl", shard_bytes=SHARD_BYTES)
                ),
                "write_parquet": lambda out: ds.write_parquet(out, compression="zstd"),
                "ShoalDatasink parquet": lambda out: ds.write_datasink(
                    ShoalDatasink(out, format="parquet", shard_bytes=SHARD_BYTES)
                ),
                "ShoalDatasink mds": lambda out: ds.write_datasink(ShoalDatasink(out, **options)),
                "write_webdataset": ds.write_webdataset,
                "ShoalDatasink tar": lambda out: ds.write_datasink(
                    ShoalDatasink(out, format="tar", shard_bytes=SHARD_BYTES)
                ),
            }
        measured(runs, home, rows=given.rows, rounds=given.rounds)
    finally:
        ray.shutdown()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()

"""Seconds and memory to list and open very many shards: of a directory, of an S3-like store, and by braces over http.

``python bench/list_many_shards.py --shards 100000`` runs each step in a process of its own, which prints wall time, CPU
time (its own, and that of its workers) and the peak memory beyond the imports. Remote shards are behind 20 ms, on a
server of one process.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from servers.many_objects import BUCKET, ManyObjects, one_tar

import shoal
from shoal.formats.format_registry import format_named
from shoal.indexing.build import scan_tasks
from shoal.indexing.indexing_estimate import estimate_indexing
from shoal.storage.retry import with_retries
from shoal.storage.sources.source import expand
from shoal.storage.store_of_url import open_store

STEPS = {
    "directory": ("list", "estimate", "open", "open again", "open, index beside"),
    "s3": ("list", "estimate", "open", "open again"),
    "braces": ("list", "estimate", "open", "open again"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--kinds", nargs="*", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--step", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        run(*arguments.step)
        return
    with tempfile.TemporaryDirectory() as temporary, ManyObjects(arguments.shards, arguments.latency_ms) as server:
        print(f"{arguments.shards:,} shards, {arguments.latency_ms:g} ms away")
        for kind in arguments.kinds:
            source = server.url
            if kind == "directory":
                source = write(Path(temporary, "data"), arguments.shards)
            elif kind == "braces":
                source = f"{server.url}/{BUCKET}/train-{{000000..{arguments.shards - 1:06d}}}.tar"
            for step in STEPS[kind]:
                command = [sys.executable, __file__, "--step", kind, step, f"{source} {Path(temporary, kind)}"]
                print(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip(), flush=True)


def write(directory: Path, num_shards: int) -> str:
    directory.mkdir()
    data = one_tar()
    for number in range(num_shards):
        (directory / f"train-{number:06d}.tar").write_bytes(data)
    return str(directory)


def run(kind: str, step: str, words: str) -> None:
    logging.getLogger("shoal").setLevel(logging.ERROR)
    source, _, cache = words.rpartition(" ")
    options: dict[str, Any] = {}
    if kind == "s3":
        options = {"endpoint": source, "anonymous": True, "region": "us-east-1"}
        source = f"s3://{BUCKET}"
    tasks: list[Any] = []

    def listed() -> int:
        store = with_retries(open_store(source, options), options)
        found = expand(source, suffixes=(".tar",), store=store)
        tasks.extend(scan_tasks(found, store=store, format=format_named("tar")))
        return len(tasks)

    def estimated() -> str:
        listed()
        store = with_retries(open_store(source, options), options)
        return str(estimate_indexing(tasks, store=store, format=format_named("tar"), looks=True))

    def opened() -> int:
        return shoal.open(source, storage_options=options).num_samples

    calls: dict[str, Callable[[], object]] = {"list": listed, "estimate": estimated}
    if step == "open, index beside":
        subprocess.run([sys.executable, "-m", "shoal", "index", source], check=True, capture_output=True)
        cache += "-other"
    os.environ["SHOAL_CACHE_DIR"] = cache
    _ = shoal.open  # imported here, not below
    before = peak()
    began, cpu = time.perf_counter(), time.process_time()
    said = calls.get(step, opened)()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    of_workers = workers.ru_utime + workers.ru_stime
    used = f"{cpu:7.2f} + {of_workers:6.2f} s of CPU {peak() - before:6.0f} MB"
    print(f"{kind:10} {step:20} {seconds:7.2f} s {used}  {said}")


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()

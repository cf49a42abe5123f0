"""Time and memory of the process that drives a packing of very many shards: plan, missing, finish.

    python bench/pack_job_at_scale.py DIRECTORY_OR_URL [--shards 100000] [--samples 200] [--moto] [--step plan]

The shards and their parts of the index are simulated: each shard is a file of zeros, 2 KiB a sample (one byte a sample
in an object store), and its part has sizes, a checksum and a column of 8 bytes for each sample. With ``--moto`` an S3
server of a process of its own is started, and the URL is ``s3://jobs``. Each step is a process of its own, so that its
peak of memory is its own.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.index.assembly import ScannedShard, assemble
from shoal.index.shard_scan import ShardScan
from shoal.pack import Output, PackJob, Shard, plan
from shoal.pack.jobs.pack_job import Units
from shoal.pack.output.output_names import names_of_shards
from shoal.pack.shards.shard_plan import PackPlan
from shoal.storage.urls import scheme_of

PLAN = "ab" * 16


@dataclass(frozen=True)
class SimulatedUnits(Units):
    """Units whose shards are there already."""

    def given(self, number: int) -> Any:
        """Not needed: nothing is run."""
        raise NotImplementedError(number)


def job_of(arguments: argparse.Namespace, options: dict[str, Any]) -> PackJob:
    """The job whose units have run."""
    names = names_of_shards("shard", ".tar", range(arguments.shards))
    cuts = np.arange(arguments.shards + 1) * arguments.samples
    units = SimulatedUnits(PackPlan(cuts, np.full(arguments.shards, 2048 * arguments.samples)), names, Shard("", "tar"))
    return PackJob(Output(arguments.url, plan=PLAN, storage_options=options), units)


def make(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    """Lay out shards and records, as if all units had run."""
    os.fsync = lambda _: None
    job = job_of(arguments, options)
    out, is_local = job.out, not scheme_of(arguments.url)
    out.journal.begin({})
    each = arguments.samples
    starts, crcs = np.arange(each + 1) * (2048 if is_local else 1), np.arange(each, dtype=np.uint32)
    common = assemble("tar", [ScannedShard("x", int(starts[-1]), "", ShardScan(starts, crcs))])

    def lay(number: int) -> None:
        name, digest = job.units.names[number], f"{number:032x}"
        about = {"plan": PLAN, "digest": digest, "skipped": [], "skipped_places": [], "texts": {}, "frame": number}
        columns = {"label": np.arange(each) % 10, "record_crc32": crcs + np.uint32(number)}
        sums = np.zeros(common.num_extents, np.uint32)
        metadata = {**common.metadata, **about}
        out.journal.made(name, digest)
        if is_local:
            with Path(arguments.url, name).open("wb") as file:
                file.truncate(int(starts[-1]))
        else:
            out.store.put(f"{arguments.url}/{name}", bytes(int(starts[-1])))
        out.journal.keep(replace(common, shard_names=(name,), extent_checksum=sums, columns=columns, metadata=metadata))

    with ThreadPoolExecutor(1 if is_local else 8) as threads:
        return sum(1 for _ in threads.map(lay, range(arguments.shards)))


def plan_files(directory: Path, num_files: int) -> int:
    """Plan a job of small files, each a shard of its own, and print what is shipped."""
    for number in range(0 if (directory / "in").exists() else num_files):
        path = directory / "in" / f"{number // 1000:03d}" / f"{number % 1000:03d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(100))
    began_cpu = time.process_time()
    job = plan(directory / "in", directory / "out", shard_bytes=1, labelled=False)
    planned_cpu = time.process_time()
    some = range(0, job.num_units, max(1, job.num_units // 1000))
    task_bytes = [len(pickle.dumps(job.task(number))) for number in some]
    task_us = (time.process_time() - planned_cpu) / len(some) * 1e6
    job_bytes = len(pickle.dumps(job))
    print(f"planned in {planned_cpu - began_cpu:.1f} s of CPU; the pickled job has {job_bytes:,} bytes")
    print(f"a task has {max(task_bytes):,} bytes at most, pickled in {task_us:.0f} us")
    return job.num_units


def step(name: str, arguments: argparse.Namespace, options: dict[str, Any]) -> None:
    """One step in this process."""
    before = peak_mib()
    began, began_cpu = time.monotonic(), time.process_time()
    if name == "make":
        found = make(arguments, options)
    elif name == "plan":
        found = plan_files(Path(arguments.url), arguments.shards)
    elif name == "missing":
        found = len(job_of(arguments, options).missing())
    else:
        found = job_of(arguments, options).finish().num_samples
    seconds, cpu_seconds = time.monotonic() - began, time.process_time() - began_cpu
    print(
        f"{name:8} {arguments.shards:,} shards of {arguments.samples:,} samples: {seconds:7.1f} s, {cpu_seconds:6.1f} "
        f"s of CPU, peak {peak_mib():,.0f} MiB ({before:,.0f} MiB at its start), result {found:,}",
        flush=True,
    )


def peak_mib() -> float:
    """Peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--moto", action="store_true")
    parser.add_argument("--step")
    parser.add_argument("--options", default="{}")
    arguments = parser.parse_args()
    if arguments.step:
        step(arguments.step, arguments, json.loads(arguments.options))
        return
    server = None
    words = [sys.executable, __file__, arguments.url, f"--shards={arguments.shards}", f"--samples={arguments.samples}"]
    if arguments.moto:
        port = "5123"
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-p", port], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(5)
        options = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
        options["endpoint"] = f"http://127.0.0.1:{port}"
        import boto3  # noqa: PLC0415  # optional

        boto3.client(
            "s3", endpoint_url=options["endpoint"], aws_access_key_id="a", aws_secret_access_key="b",
            region_name="us-east-1",
        ).create_bucket(Bucket="jobs")  # fmt: skip
        words.append(f"--options={json.dumps(options)}")
    else:
        Path(arguments.url).mkdir(parents=True, exist_ok=True)
    try:
        for name in ("make", "missing", "finish"):
            subprocess.run([*words, f"--step={name}"], check=True)
    finally:
        if server is not None:
            server.terminate()


if __name__ == "__main__":
    main()

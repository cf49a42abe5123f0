"""Time and memory of the index of many small shards as a job: its plan, one unit, all units, its end, and opening.

``python bench/many_shards.py --shards 100000`` writes jsonl shards of ten samples into a temporary directory; each step
runs in a process of its own, whose CPU time and peak memory are printed.
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import shoal

SAMPLES = 10
STEPS = ("plan", "unit", "units", "missing", "finish", "open", "verify plan", "verify unit", "verify finish")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--directory", type=Path, help="where the shards are, or are written")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        step(arguments.step, arguments.directory)
        return
    with tempfile.TemporaryDirectory() as temporary:
        home = arguments.directory or Path(temporary)
        write(home / "data", arguments.shards)
        print(f"{arguments.shards:,} shards of {SAMPLES} samples; without the {baseline():.0f} MB of the imports")
        for name in STEPS:
            command = [sys.executable, __file__, "--directory", str(home), "--step", name]
            print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip(), flush=True)


def write(directory: Path, num_shards: int) -> None:
    if directory.exists():
        return
    directory.mkdir(parents=True)
    for number in range(num_shards):
        lines = (f'{{"id": {number * SAMPLES + sample}}}\n' for sample in range(SAMPLES))
        (directory / f"part-{number:06d}.jsonl").write_text("".join(lines))


def step(name: str, home: Path) -> None:
    before = peak()
    job = None
    if name in ("unit", "units", "missing", "finish"):
        job = pickle.loads((home / "job").read_bytes())
    began, cpu = time.perf_counter(), time.process_time()
    said = ""
    if name == "plan":
        job = shoal.plan_index(home / "data")
        said = f"{job.num_units} units"
    elif job is not None and name == "unit":
        task = job.task(0)
        said = f"{len(pickle.dumps(task)):,} bytes of task, {task().num_shards} shards"
    elif job is not None and name == "units":
        said = f"{sum(job.task(number)().num_shards for number in job.missing()):,} shards"
    elif job is not None and name == "missing":
        said = f"{len(job.missing())} missing"
    elif job is not None and name == "finish":
        done = job.finish()
        said = f"{done.num_samples:,} samples, index of {Path(done.path).stat().st_size:,} bytes"
    elif name == "open":
        said = f"{shoal.open(home / 'data').num_samples:,} samples"
    elif name.startswith("verify") and hasattr(shoal, "plan_verify"):
        job = shoal.plan_verify(home / "data")
        if name == "verify plan":
            said = f"{job.num_units} units"
        elif name == "verify unit":
            said = f"{len(pickle.dumps(job.task(0))):,} bytes of task"
            job.task(0)()
        else:
            for number in job.missing():
                job.task(number)()
            began, cpu = time.perf_counter(), time.process_time()
            said = json.dumps(len(job.finish().damages)) + " damages"
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    print(f"{name:14} {seconds:8.2f} s  {cpu:8.2f} s of CPU  {peak() - before:8.0f} MB  {said}")
    if name == "plan":
        (home / "job").write_bytes(pickle.dumps(job))


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def baseline() -> float:
    code = "import resource, shoal; shoal.open, shoal.plan_index; print(resource.getrusage(0).ru_maxrss / 1024)"
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()

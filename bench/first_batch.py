"""How long the first batch of an epoch takes, from local files and from a remote store.

``python bench/first_batch.py`` makes tars of 4 KiB members, serves them from a process of its own that answers after
20 ms and sends 60 MB/s over each connection, and times from ``iter()`` to the first batch, the best and the median of
some seeds; and then by `shoal.torch.DataLoader` without and with two workers, at the start of an epoch and from a state
at 99 % of it. The index was made before. Compare two versions by ``--source``, which is run in turn.

``python bench/first_batch.py --extents 10000000`` takes an index of so many extents instead: one shard of JSON lines
under thousands of names. Each step is a line, near and far, in a process of its own that has imported shoal: opening,
the first batch of an epoch, the first one after a resume at 99 %, and the same with two workers; below, what bounds
them. Beside the time are the CPU seconds of all processes, and the memory of the largest that it shares with no file
(Linux). ``--only first`` takes the steps whose names hold that, ``--near`` leaves out the remote ones.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from remote import BUCKET, NUM_SHARDS, make_tars
from servers.quick import Quick

from shoal.index.assembly import fingerprint
from shoal.index.index_file import encode
from shoal.storage.files.local_store import LocalStore

WINDOWS = (("16MiB", 64), ("64MiB", 256), ("64MiB", 512), ("64MiB", 1024))
LOADERS = (("16MiB", 64, 0, 0.0), ("16MiB", 64, 0, 0.99), ("16MiB", 64, 2, 0.0), ("16MiB", 64, 2, 0.99))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--source", nargs="+", default=["src"], help="directories that hold the package to measure")
    parser.add_argument("--extents", type=int, help="of an index, instead")
    parser.add_argument("--only", default="", help="steps of an index")
    parser.add_argument("--near", action="store_true", help="no remote steps of an index")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        print(json.dumps(costs_of_step(*json.loads(arguments.step))))
        return
    if arguments.extents:
        measure_large(arguments)
        return
    if arguments.measure:
        url, window, batch, *loader, seed = json.loads(arguments.measure)
        measured = seconds_of_loader if loader else seconds_to_first_batch
        print(json.dumps(measured(url, window, batch, *loader, seed)))
        return
    with tempfile.TemporaryDirectory() as directory:
        os.environ["SHOAL_CACHE_DIR"] = str(Path(directory, "cache"))
        make_tars(Path(directory, BUCKET), 4096, arguments.megabytes * 10**6 // 4096)
        with Quick(Path(directory), 20.0, 60.0) as server:
            for url in (f"{directory}/{BUCKET}", f"{server.url}/{BUCKET}"):
                for case in (*WINDOWS, *LOADERS):
                    print_times(arguments, url, *case)


def print_times(arguments: argparse.Namespace, url: str, window: str, batch: int, *loader: float) -> None:
    found: dict[str, list[float]] = {source: [] for source in arguments.source}
    for seed in range(-1, arguments.rounds):  # the first makes the index
        for source in arguments.source:
            command = [sys.executable, __file__, "--measure", json.dumps([url, window, batch, *loader, max(0, seed)])]
            environment = os.environ | {"PYTHONPATH": str(Path(source).resolve())}
            run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            found[source] += [json.loads(run.stdout)] if seed >= 0 else []
    where = "remote" if url.startswith("http") else "local"
    by = "loader, {} workers, from {:3.0%}".format(*loader) if loader else ""
    for source, times in found.items():
        best, middle = min(times) * 1000, statistics.median(times) * 1000
        case = f"{where:6}  window {window:6}  batch {batch:5}"
        print(f"{case}  best {best:6.1f} ms  median {middle:6.1f} ms  {source}  {by}")
    sys.stdout.flush()


def dataset_of(url: str, window: str, batch: int, seed: int) -> Any:
    import shoal  # noqa: PLC0415  # the package of --source

    opened = shoal.open(f"{url}/train-{{000000..{NUM_SHARDS - 1:06d}}}.tar")
    return opened.shuffle(seed=seed, window=window).batch(batch)


def seconds_to_first_batch(url: str, window: str, batch: int, seed: int) -> float:
    dataset = dataset_of(url, window, batch, seed)
    begin = time.perf_counter()
    next(iter(dataset))
    return time.perf_counter() - begin


def seconds_of_loader(url: str, window: str, batch: int, num_workers: int, share: float, seed: int) -> float:
    """From the loader's construction, with a state if it is not at the start."""
    import shoal.torch  # noqa: PLC0415  # the package of --source

    dataset = dataset_of(url, window, batch, seed)
    state = dataset.state_at(int(dataset.num_samples * share))
    begin = time.perf_counter()
    loader = shoal.torch.DataLoader(dataset, num_workers=num_workers)
    if share:
        loader.load_state_dict(state)
    next(iter(loader))
    return time.perf_counter() - begin


def measure_large(arguments: argparse.Namespace) -> None:
    """A table of steps of a dataset with so many extents, and their limits."""
    num_extents, rounds = arguments.extents, arguments.rounds
    with tempfile.TemporaryDirectory() as home:
        os.environ["SHOAL_CACHE_DIR"] = str(Path(home, "cache"))
        data = Path(home, "data")
        names = write_large(data, num_extents)
        size = (data / "shoal.index").stat().st_size
        print(f"{num_extents:,} extents, {names:,} shards, an index of {size / 1e6:,.0f} MB; medians of {rounds}")
        with Quick(data, 20.0, 60.0) as server:
            far = f"{server.url}/part-{{00000..{names - 1:05d}}}.jsonl"
            for step in ("open", "open again", "first batch", "from 99 %", "2 workers", "2 workers, from 99 %"):
                for where, url in (("near", f"{data}/*.jsonl"), ("far", far))[: 1 if arguments.near else 2]:
                    if arguments.only in step:
                        print_step(where, url, step, 1 if step == "open" else rounds, arguments.source)
        for limit in ("read index", "import torch", "workers forked", "workers by a fork server"):
            if arguments.only in limit:
                print_step("limit", str(data / "shoal.index"), limit, rounds, arguments.source[:1])


def print_step(where: str, url: str, step: str, rounds: int, sources: list[str]) -> None:
    command = [sys.executable, __file__, "--step", json.dumps([url, step])]
    found: dict[str, list[list[float]]] = {source: [] for source in sources}
    for _ in range(rounds):
        for source in sources:
            environment = os.environ | {"PYTHONPATH": str(Path(source).resolve())}
            run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, start_new_session=True)
            found[source].append(json.loads(run.stdout))
    for source, runs in found.items():
        times, cpus, memory = zip(*runs, strict=True)
        spread = f"{statistics.median(times):7.3f} s ({min(times):.3f} to {max(times):.3f})"
        used = f"CPU {statistics.median(cpus):6.2f} s  memory {max(memory):5.0f} MiB"
        print(f"{where:6} {step:24} {spread}  {used}  {source}", flush=True)


def write_large(data: Path, num_extents: int) -> int:
    """One shard of lines under many names, and the index of all; return the number of names."""
    import shoal  # noqa: PLC0415  # in the steps it is that of --source

    data.mkdir()
    first = data / "part-00000.jsonl"
    line = json.dumps({"text": "x" * 4000}) + "\n"
    first.write_text(line * (64 << 10))
    index = shoal.open(str(first)).stream.opened.index
    names = [f"part-{number:05d}.jsonl" for number in range(-(-num_extents // index.num_extents))]
    for name in names[1:]:
        os.link(first, data / name)
    columns = {
        name: np.tile(column, len(names))
        for name in ("shard_bytes", *(each for each in index.__slots__ if each.startswith("extent_")))
        if name not in ("extent_first_sample", "extent_shard") and (column := getattr(index, name)) is not None
    }
    columns["extent_shard"] = np.repeat(np.arange(len(names), dtype=np.int32), index.num_extents)
    columns["extent_first_sample"] = np.zeros(0, dtype=np.int64)  # follows from the counts
    own = ("extent_shard", "extent_first_byte", "extent_end_byte", "extent_num_samples")
    rest = {"shard_names": names, "shard_versions": list(index.shard_versions) * len(names), "sample_bytes": None}
    rest["fingerprint"] = fingerprint(names, *(columns[name] for name in own))
    LocalStore().put(str(data / "shoal.index"), encode(replace(index, **columns, **rest)))
    return len(names)


def costs_of_step(url: str, step: str) -> tuple[float, float, float]:
    """Seconds, CPU seconds of all processes of the step, and MiB of the largest of them."""
    seconds, held = seconds_of_step(url, step)
    cpu_seconds, most = 0.0, 0.0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            stat = (process / "stat").read_text().rpartition(")")[2].split()
            if int(stat[3]) == os.getsid(0):
                cpu_seconds += (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
                rows = (process / "smaps_rollup").read_text().splitlines()[1:]
                most = max(most, *(int(row.split()[1]) / 1024 for row in rows if row.startswith("Anonymous:")))
        except OSError:  # it ended, or this is no Linux
            continue
    del held  # the processes were its own
    return seconds, cpu_seconds, most


def seconds_of_step(url: str, step: str) -> tuple[float, Any]:
    """How long a step took, and what keeps its processes."""
    if "workers" in step:
        importlib.import_module("torch.utils.data")  # what is measured begins after it
    import shoal  # noqa: PLC0415  # as above

    _ = shoal.open
    if url.endswith("shoal.index"):
        return seconds_of_limit(url, step), None
    begin = time.perf_counter()
    dataset = shoal.open(url).shuffle(seed=0, window="16MiB").batch(64)
    if step.startswith("open"):
        return time.perf_counter() - begin, dataset
    begin = time.perf_counter()
    state = dataset.state_at(dataset.num_samples * 99 // 100) if "99" in step else None
    made: Any = dataset
    if "workers" in step:
        import shoal.torch  # noqa: PLC0415  # as above

        made = shoal.torch.DataLoader(dataset, num_workers=2)
    if state is not None:
        made.load_state_dict(state)
    iterator = iter(made)
    next(iterator)
    return time.perf_counter() - begin, iterator


def seconds_of_limit(path: str, limit: str) -> float:
    begin = time.perf_counter()
    if limit == "read index":
        np.fromfile(path, np.uint8)
    elif limit == "import torch":
        subprocess.run([sys.executable, "-c", "import torch.utils.data"], check=True)
    else:
        from torch.utils.data import DataLoader  # noqa: PLC0415  # for this one alone

        way = "fork" if "forked" in limit else "forkserver"
        next(iter(DataLoader([0, 1], batch_size=None, num_workers=2, multiprocessing_context=way)))  # type: ignore[arg-type]
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()

"""How long the first batch of an epoch takes, from local files and from a remote store.

``python bench/first_batch.py`` makes tars of 4 KiB members, serves them from a process of its own that answers after
20 ms and sends 60 MB/s over each connection, and times from ``iter()`` to the first batch, the best and the median of
some seeds; and then by `shoal.torch.DataLoader` without and with two workers, at the start of an epoch and from a state
at 99 % of it. The index was made before. Compare two versions by ``--source``, which is run in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from remote import BUCKET, NUM_SHARDS, make_tars
from servers.quick import Quick

WINDOWS = (("16MiB", 64), ("64MiB", 256), ("64MiB", 512), ("64MiB", 1024))
LOADERS = (("16MiB", 64, 0, 0.0), ("16MiB", 64, 0, 0.99), ("16MiB", 64, 2, 0.0), ("16MiB", 64, 2, 0.99))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--source", nargs="+", default=["src"], help="directories that hold the package to measure")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
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


if __name__ == "__main__":
    main()

"""How long the first batch of an epoch takes, from local files and from a remote store.

``python bench/first_batch.py`` makes tars of 4 KiB members, serves them from a process of its own that answers after
20 ms and sends 60 MB/s over each connection, and times from ``iter()`` to the first batch, the best and the median of
some seeds. The index was made before. Compare two versions by ``--source``, which is run in turn.
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

from remote import BUCKET, NUM_SHARDS, make_tars
from servers.quick import Quick

WINDOWS = (("16MiB", 64), ("64MiB", 256), ("64MiB", 512), ("64MiB", 1024))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--source", nargs="+", default=["src"], help="directories that hold the package to measure")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        url, window, batch, seed = json.loads(arguments.measure)
        print(json.dumps(seconds_to_first_batch(url, window, batch, seed)))
        return
    with tempfile.TemporaryDirectory() as directory:
        os.environ["SHOAL_CACHE_DIR"] = str(Path(directory, "cache"))
        make_tars(Path(directory, BUCKET), 4096, arguments.megabytes * 10**6 // 4096)
        with Quick(Path(directory), 20.0, 60.0) as server:
            for url in (f"{directory}/{BUCKET}", f"{server.url}/{BUCKET}"):
                for window, batch in WINDOWS:
                    print_times(arguments, url, window, batch)


def print_times(arguments: argparse.Namespace, url: str, window: str, batch: int) -> None:
    found: dict[str, list[float]] = {source: [] for source in arguments.source}
    for seed in range(-1, arguments.rounds):  # the first makes the index
        for source in arguments.source:
            command = [sys.executable, __file__, "--measure", json.dumps([url, window, batch, max(0, seed)])]
            environment = os.environ | {"PYTHONPATH": str(Path(source).resolve())}
            run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            found[source] += [json.loads(run.stdout)] if seed >= 0 else []
    where = "remote" if url.startswith("http") else "local"
    for source, times in found.items():
        best, middle = min(times) * 1000, statistics.median(times) * 1000
        print(f"{where:6}  window {window:6}  batch {batch:5}  best {best:6.1f} ms  median {middle:6.1f} ms  {source}")
    sys.stdout.flush()


def seconds_to_first_batch(url: str, window: str, batch: int, seed: int) -> float:
    import shoal  # noqa: PLC0415  # the package of --source

    dataset = (
        shoal.open(f"{url}/train-{{000000..{NUM_SHARDS - 1:06d}}}.tar").shuffle(seed=seed, window=window).batch(batch)
    )
    begin = time.perf_counter()
    next(iter(dataset))
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()

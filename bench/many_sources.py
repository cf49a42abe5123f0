"""What a mixture of many small sources costs: opening, mixing, the first batch, an epoch.

``python bench/many_sources.py`` writes sources of JSON Lines, makes their indexes, and times a process of its own for
each round, in seconds of CPU. Compare two versions by ``--source``, which are run in turn.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import shoal

STEPS = ("open", "mix", "first batch", "rest of epoch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=int, default=300)
    parser.add_argument("--samples", type=int, default=1000, help="of each source")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--source", nargs="+", default=["src"], help="directories that hold the package to measure")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(seconds_by_step(Path(arguments.measure))))
        return
    with tempfile.TemporaryDirectory() as directory:
        for number in range(arguments.sources):
            path = Path(directory, "data", f"s{number:05}", "a.jsonl")
            path.parent.mkdir(parents=True)
            text = f"of source {number} " + "word " * 20
            path.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i in range(arguments.samples)))
        found: dict[str, list[list[float]]] = {source: [] for source in arguments.source}
        for turn in range(arguments.rounds + 1):
            for source, times in found.items():
                environment = os.environ | {"PYTHONPATH": source, "SHOAL_CACHE_DIR": str(Path(directory, "cache"))}
                command = [sys.executable, __file__, "--measure", directory]
                result = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
                if turn:  # the first one makes the indexes
                    times.append(json.loads(result.stdout))
    for source, times in found.items():
        steps = zip(STEPS, zip(*times, strict=True), strict=True)
        print(f"{source}:", ", ".join(f"{step} {statistics.median(each):.2f} s" for step, each in steps))


def seconds_by_step(directory: Path) -> list[float]:
    """Seconds of CPU of each step, imports left out."""
    paths = sorted((directory / "data").iterdir())
    shoal.open(paths[0]).batch(2)  # which imports what is needed
    clock = [time.process_time()]
    sources = {path.name: shoal.open(path) for path in paths}
    clock.append(time.process_time())
    ds = shoal.mix(sources).shuffle(seed=0).batch(256)
    clock.append(time.process_time())
    batches = iter(ds)
    next(batches)
    clock.append(time.process_time())
    for _ in batches:
        pass
    clock.append(time.process_time())
    return [end - begin for begin, end in itertools.pairwise(clock)]


if __name__ == "__main__":
    main()

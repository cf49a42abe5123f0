"""Sequences by shoal and by Grain of the same documents: how full, how fast, how large a state.

python bench/sequence_packers.py [--documents 40000] [--rounds 3]

Each line is an epoch in a process of its own, the rounds in turn: batches of 8 sequences of 4,096 tokens, documents of
log-normal lengths (mean 665), read from local files that the page cache holds: MDS for shoal, ArrayRecord for Grain.
The state is the largest of those after every 50 batches, as JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.compat.peers.environments import python_of, title_of  # noqa: E402  # after the path to it

import shoal  # noqa: E402

THEIRS = Path(__file__).parent / "sequence_peers" / "grain_sequences.py"
LENGTH, BATCH = 4_096, 8
BINS = (64, 1_024)


def write(directory: Path, count: int) -> None:
    """Write the documents as they are, and as MDS."""
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(6, 1, count).astype(np.int64).clip(1, LENGTH)
    tokens = rng.integers(1, 50_000, lengths.sum(), dtype=np.uint16)
    tokens.tofile(directory / "tokens.bin")
    (directory / "lengths.json").write_text(json.dumps(lengths.tolist()))
    ends = np.cumsum(lengths).tolist()
    documents = (
        {"tokens": tokens[end - size : end], "num_tokens": size}
        for end, size in zip(ends, lengths.tolist(), strict=True)
    )
    shoal.pack.pack(documents, directory / "mds", format="mds", shard_bytes="8MiB", columns=["num_tokens"])


def epoch(directory: Path, strategy: str) -> dict[str, Any]:
    """An epoch by shoal."""
    warnings.simplefilter("ignore")
    ds = shoal.open(directory / "mds").shuffle(seed=0).pack_sequences(LENGTH, strategy=strategy).batch(BATCH)
    filled = places = state = 0
    began, worked = time.perf_counter(), time.process_time()
    first = 0.0
    for step, found in enumerate(ds, 1):
        first = first or time.perf_counter() - began
        filled += int(np.count_nonzero(found["segment_ids"]))
        places += found["tokens"].size
        state = max(state, len(json.dumps(ds.state_dict()))) if step % 50 == 0 else state
    seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    return {"tokens": filled, "places": places, "seconds": seconds, "cpu": cpu, "first": first, "state": state}


def main() -> None:
    """Print a line for each packer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epoch", nargs=2, metavar=("DIRECTORY", "STRATEGY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.epoch:
        print(json.dumps(epoch(Path(arguments.epoch[0]), arguments.epoch[1])))
        return
    theirs = python_of("grain")
    with tempfile.TemporaryDirectory(prefix="lengths-") as name:
        write(Path(name), arguments.documents)
        commands = {}
        for strategy in ("concat", "first_fit", "best_fit"):
            commands[f"shoal {strategy}"] = [sys.executable, __file__, "--epoch", name, strategy]
            for bins in (0,) if strategy == "concat" else BINS:
                how = [strategy, str(bins), str(LENGTH), str(BATCH)]
                title = f"{title_of('grain')} {strategy}" + (f", {bins} bins" if bins else "")
                commands[title] = [str(theirs), str(THEIRS), name, *how]
        found: dict[str, list[dict[str, Any]]] = {title: [] for title in commands}
        subprocess.run(list(commands.values())[1], check=True, capture_output=True)  # writes Grain's files
        for _ in range(arguments.rounds):
            for title, command in commands.items():
                ran = subprocess.run(command, check=True, capture_output=True, text=True)
                found[title].append(json.loads(ran.stdout.splitlines()[-1]))
        print("                                  filled   tokens a CPU second: median (least to most)   first   state")
        for title, rounds in found.items():
            speed = sorted(each["tokens"] / each["cpu"] / 1e6 for each in rounds)
            last = rounds[-1]
            first = sorted(each["first"] for each in rounds)[len(rounds) // 2]
            print(
                f"{title:34}{last['tokens'] / last['places']:6.4f}   {speed[len(speed) // 2]:6.1f} M"
                f" ({speed[0]:.1f} to {speed[-1]:.1f}){first:26.2f} s {last['state']:7} bytes"
            )


if __name__ == "__main__":
    main()

"""Three kinds of dataset over the same samples: mixing, memory, speed, and the price of a resume.

``python bench/dataset_kinds.py`` writes 64 JSON Lines files of samples of 1 KB, sorted into 16 classes (and the same
samples in random order), and delivers them to batches of 64: in a full permutation, through a window, and as live
streams through a buffer of as many bytes. Each run is a process of its own, of which the best of some rounds counts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 64
NUM_FILES = 64
KINDS = ("full", "window", "followed", "followed, mixed", "replayed", "kept")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=1 << 17)
    parser.add_argument("--memory", default="16MiB")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measured(*json.loads(arguments.measure))))
        return
    with tempfile.TemporaryDirectory(prefix="live-kinds-") as directory:
        os.environ["SHOAL_CACHE_DIR"] = str(Path(directory, "cache"))
        write(Path(directory, "sorted"), np.arange(arguments.samples))
        write(Path(directory, "mixed"), np.random.default_rng(0).permutation(arguments.samples))
        runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        for number in range(arguments.rounds + 1):  # the first makes indexes
            for kind, found in runs.items():
                command = [sys.executable, __file__, "--measure"]
                command.append(json.dumps([kind, directory, arguments.samples, arguments.memory]))
                run = subprocess.run(command, capture_output=True, text=True, check=True)
                found.extend([json.loads(run.stdout)] if number else [])
    for kind, found in runs.items():
        best = {name: min(run[name] for run in found) for name in found[0]}
        print(f"{kind:16}", *(f"{name} {value:,.2f}  " for name, value in best.items()))


def write(directory: Path, order: np.ndarray[Any, Any]) -> None:
    directory.mkdir()
    for number, ids in enumerate(np.split(order, NUM_FILES)):
        lines = (json.dumps({"id": int(each), "text": text_of(int(each))}) + "\n" for each in ids)
        (directory / f"{number:03d}.jsonl").write_text("".join(lines))


def text_of(number: int) -> str:
    return hashlib.shake_128(str(number).encode()).hexdigest(485)


class Lines:
    """The lines of some files, with the number of the next one as a state."""

    def __init__(self, directory: str) -> None:
        self.paths, self.next = sorted(Path(directory).iterdir()), 0

    def __iter__(self) -> Any:
        skipped = 0
        for path in self.paths:
            with path.open() as file:
                for line in file:
                    if skipped < self.next:
                        skipped += 1
                        continue
                    self.next = skipped = self.next + 1
                    yield json.loads(line)

    def state_dict(self) -> dict[str, int]:
        """Return the number of the next line."""
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on at that line."""
        self.next = state["next"]


def made(kind: str, directory: str, memory: str) -> Any:
    import shoal  # noqa: PLC0415  # by the measured process alone

    if kind in ("full", "window"):
        ds = shoal.open(f"{directory}/sorted")
        return (ds.shuffle("full", seed=0) if kind == "full" else ds.shuffle(seed=0, window=memory)).batch(BATCH)
    if kind.startswith("followed"):
        live = shoal.follow(f"{directory}/{'mixed' if 'mixed' in kind else 'sorted'}", idle_seconds=0)
    elif kind == "replayed":
        live = shoal.from_iterable(lambda: iter(Lines(f"{directory}/sorted")), replay=True)
    else:
        live = shoal.from_iterable(Lines(f"{directory}/sorted"))
    return live.shuffle(seed=0, buffer=memory).batch(BATCH)


def measured(kind: str, directory: str, num_samples: int, memory: str) -> dict[str, float]:
    import shoal  # noqa: PLC0415

    made(kind, directory, memory)
    before = resource.getrusage(resource.RUSAGE_SELF)
    ds = made(kind, directory, memory)
    ids, state = [], None
    for batch in ds:
        ids.append(batch["id"])
        if len(ids) == num_samples * 9 // 10 // BATCH:
            began = time.perf_counter()
            state = ds.state_dict(contents=True) if kind == "kept" else ds.state_dict()
            saving = time.perf_counter() - began
            text = json.dumps(state)
    after = resource.getrusage(resource.RUSAGE_SELF)
    labels = np.arange(num_samples) * 16 // num_samples
    audit = shoal.measure.audit(np.concatenate(ids), labels=labels, batch=BATCH)
    again = made(kind, directory, memory)
    began = time.perf_counter()
    again.load_state_dict(json.loads(text))
    first = next(iter(again))["id"]
    resuming = time.perf_counter() - began
    assert (first == ids[num_samples * 9 // 10 // BATCH]).all()
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "VR": audit.vr[BATCH],
        "MB": (after.ru_maxrss - before.ru_maxrss) / 1000,
        "us": 1e6 * seconds / num_samples,
        "state KB": len(text) / 1000,
        "saving ms": 1000 * saving,
        "resuming ms": 1000 * resuming,
    }


if __name__ == "__main__":
    main()

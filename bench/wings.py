"""What a sample costs in CPU seconds with and without each wing: mixtures, sequences, refilled batches, and the like.

``python bench/wings.py`` writes tars of members of 1 to 3 KiB to a temporary directory and streams them, after a first
epoch, in each of the ways below. Printed are the median and the least CPU microseconds a stored sample of the rounds.
To compare two versions, run it in turn with one and the other in PYTHONPATH, on one ``--data`` directory.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import shoal

NUM_SHARDS, SAMPLES_PER_SHARD, BATCH, LENGTH = 8, 2500, 64, 4096
WINDOW: dict[str, Any] = {"seed": 0, "window": "8MiB", "chunk": "256KiB"}


def write(directory: Path) -> None:
    """Write the tars, unless they are there."""
    dice = np.random.default_rng(0)
    for shard in range(NUM_SHARDS):
        path = directory / f"{shard:03d}.tar"
        if path.exists():
            continue
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(SAMPLES_PER_SHARD):
                info = tarfile.TarInfo(f"{shard * SAMPLES_PER_SHARD + number:06d}.bin")
                info.size = int(dice.integers(1024, 3072))
                tar.addfile(info, io.BytesIO(dice.bytes(info.size)))


def ways(paths: list[str]) -> dict[str, Callable[[], Any]]:
    """Return what makes a dataset of each kind."""
    half = len(paths) // 2

    def shuffled(**index: Any) -> Any:
        return shoal.open(paths, **index).shuffle(**WINDOW)

    def mixed() -> Any:
        sources = {"a": shoal.open(paths[:half]), "b": shoal.open(paths[half:])}
        return shoal.mix(sources, epoch_size=NUM_SHARDS * SAMPLES_PER_SHARD).shuffle(**WINDOW)

    def documents(**index: Any) -> Any:
        return shuffled(**index).map(_tokens)

    return {
        "samples": shuffled,
        "batches": lambda: shuffled().batch(BATCH),
        "batches of a full permutation": lambda: shoal.open(paths).shuffle("full", seed=0).batch(BATCH),
        "batches after map()": lambda: shuffled().map(_as_it_is).batch(BATCH),
        "samples of a mixture": mixed,
        "batches of a mixture": lambda: mixed().batch(BATCH),
        "sampled": lambda: (
            shoal.open(paths).sample(num_samples=NUM_SHARDS * SAMPLES_PER_SHARD).shuffle(**WINDOW).batch(BATCH)
        ),
        "growing order": lambda: shuffled(index="grow").batch(BATCH),
        "refilled": lambda: shuffled().filter(_is_kept, refill=True).batch(BATCH),
        "sequences": lambda: documents(index_columns=["bin:len"]).pack_sequences(LENGTH, lengths="bin:len").batch(8),
        "packed as they come": lambda: documents().pack_sequences(LENGTH, lengths=None).batch(8),
    }


def _as_it_is(sample: Any) -> Any:
    return sample


def _is_kept(_: Any) -> bool:
    return True


def _tokens(sample: Any) -> Any:
    return {"tokens": np.frombuffer(sample["bin"], dtype=np.uint8)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="keep the tars here, and use those that are there")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.data or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        write(directory)
        paths = sorted(map(str, directory.glob("*.tar")))
        datasets = {name: make() for name, make in ways(paths).items()}
        spent: dict[str, list[float]] = {name: [] for name in datasets}
        for number in range(arguments.rounds + 1):
            for name, dataset in datasets.items():
                began = time.process_time()
                for _ in dataset:
                    pass
                if number:  # the first epoch opens files and checks shards
                    spent[name].append(time.process_time() - began)
    print(f"{'CPU us a stored sample':32} {'median':>7} {'least':>7}")
    for name, seconds in spent.items():
        each = [1e6 * one / (NUM_SHARDS * SAMPLES_PER_SHARD) for one in seconds]
        print(f"{name:32} {statistics.median(each):7.2f} {min(each):7.2f}")


if __name__ == "__main__":
    main()

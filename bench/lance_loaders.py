"""An epoch of a Lance table through shoal and through Lance's own loaders: speed, bytes, mixing and resuming.

``.compat/lance-python3.11/bin/python bench/lance_loaders.py [--rows 40000] [--rounds 3]`` (`tests/compat/lance/run.py`
makes the environment) writes rows of 47 classes, sorted by class, into fragments of 5000 rows, and reads batches of 64
with ``label`` and ``image``. Each loader runs in a process of its own, loaders take turns, and medians are printed.
Bytes are those that the process read from files, which the page cache holds.
"""

# ruff: noqa: PLC0415  # each loader imports its own library, in a process of its own

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

CLASSES, BATCH, IMAGE_BYTES, FRAGMENT = 47, 64, 4096, 5000
COLUMNS = ["id", "label", "image"]


def write(path: str, num_rows: int) -> None:
    """Write the table: images are noise, which no codec compresses."""
    import lance
    import pyarrow as pa

    generator = np.random.default_rng(0)
    ids = np.arange(num_rows)
    images = pa.array([generator.bytes(IMAGE_BYTES) for _ in range(num_rows)])
    table = pa.table({"id": ids, "label": ids * CLASSES // num_rows, "image": images})
    lance.write_dataset(table, path, max_rows_per_file=FRAGMENT)


def of_shoal(path: str, order: Any, **how: Any) -> Iterator[Any]:
    import shoal

    ds = shoal.open(path).columns(*COLUMNS)
    for batch in (ds.shuffle(seed=0, **how) if order is None else ds.shuffle(order, seed=0)).batch(BATCH):
        yield batch["id"], batch["label"]


def of_lance_torch(path: str, *, sampler: bool) -> Iterator[Any]:
    from lance.sampler import ShardedBatchSampler
    from lance.torch import data

    chosen = ShardedBatchSampler(0, 1, randomize=True) if sampler else None
    keep = lambda batch, **_: batch  # noqa: E731  # without the conversion to tensors, which it cannot do for images
    for batch in data.LanceDataset(path, BATCH, columns=COLUMNS, sampler=chosen, to_tensor_fn=keep):
        batch["image"].to_pylist()
        yield batch["id"].to_numpy(), batch["label"].to_numpy()


def of_safe_dataset(path: str) -> Iterator[Any]:
    import torch
    from lance.torch import data

    rows = data.SafeLanceDataset(path)
    sampler = torch.utils.data.RandomSampler(rows, generator=torch.Generator().manual_seed(0))
    loader = torch.utils.data.DataLoader(rows, batch_size=BATCH, sampler=sampler, collate_fn=lambda samples: samples)
    for samples in loader:
        yield np.array([sample["id"] for sample in samples]), np.array([sample["label"] for sample in samples])


def of_permutation(path: str, clump: int | None) -> Iterator[Any]:
    import lancedb
    from lancedb.permutation import Permutation, permutation_builder

    database = lancedb.connect(str(Path(path).parent))
    table = database.open_table(Path(path).stem)
    shuffled = permutation_builder(table).shuffle(seed=0, clump_size=clump).execute()
    rows = Permutation.from_tables(table, shuffled).select_columns(COLUMNS).with_format("arrow")
    for batch in rows.iter(BATCH):
        batch["image"].to_pylist()
        yield batch["id"].to_numpy(), batch["label"].to_numpy()


LOADERS = {
    "shoal, window of 16 MiB": lambda path: of_shoal(path, None, window="16MiB"),
    "shoal, window of 64 MiB": lambda path: of_shoal(path, None, window="64MiB"),
    "shoal, window of 64 MiB, chunk of 1 MiB": lambda path: of_shoal(path, None, window="64MiB", chunk="1MiB"),
    "shoal, order full": lambda path: of_shoal(path, "full"),
    "lance.torch LanceDataset": lambda path: of_lance_torch(path, sampler=False),
    "LanceDataset, ShardedBatchSampler(randomize)": lambda path: of_lance_torch(path, sampler=True),
    "SafeLanceDataset, RandomSampler": of_safe_dataset,
    "lancedb Permutation": lambda path: of_permutation(path, None),
    "lancedb Permutation, clumps of 13": lambda path: of_permutation(path, 13),
}
RESUMES = {
    "shoal": "a position: exact, at once",
    "lance.torch": "no state",
    "LanceDataset": "no state; its batches are random",
    "SafeLanceDataset": "with a sampler that has a state",
    "lancedb": "skip(n) of a kept permutation table",
}


def run(name: str, path: str) -> dict[str, float]:
    """Read an epoch, after some batches that pay for imports."""
    batches = LOADERS[name](path)
    next(batches)
    batches.close()
    read = rchar()
    began, cpu = time.perf_counter(), time.process_time()
    ids, labels, sizes = [], [], []
    for batch_ids, batch_labels in LOADERS[name](path):
        ids.append(np.asarray(batch_ids))
        labels.append(len(np.unique(batch_labels)))
        sizes.append(len(batch_ids))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    all_ids = np.concatenate(ids)
    whole = [count for count, size in zip(labels, sizes, strict=True) if size == BATCH]
    return {
        "samples_per_second": len(all_ids) / seconds,
        "cpu_us": 1e6 * cpu / len(all_ids),
        "bytes": (rchar() - read) / len(all_ids),
        "classes": float(np.mean(whole)),
        "twice_or_missed": float(len(all_ids) - len(np.unique(all_ids))),
    }


def rchar() -> int:
    """Return the bytes that this process has read by system calls."""
    return int(Path("/proc/self/io").read_text().split()[1])


def main() -> None:
    """Write the table, run loaders in turn, and print a table of Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run", nargs=2, metavar=("LOADER", "TABLE"))
    asked = parser.parse_args()
    if asked.run:
        print(json.dumps(run(*asked.run)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "images.lance"))
        write(path, asked.rows)
        results: dict[str, list[dict[str, float]]] = {name: [] for name in LOADERS}
        for _ in range(asked.rounds):
            for name, all_ in results.items():
                command = [sys.executable, __file__, "--run", name, path]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    print(f"<!-- {name}: {done.stderr.strip().splitlines()[-1]} -->")
                else:
                    all_.append(json.loads(done.stdout.splitlines()[-1]))
    print("| loader | samples/s | CPU us a sample | bytes a sample | classes in a batch of 64 | twice | resumes |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, all_ in results.items():
        if not all_:
            continue
        middle = {key: statistics.median(one[key] for one in all_) for key in all_[0]}
        resumes = next(text for start, text in RESUMES.items() if name.startswith(start))
        print(
            f"| {name} | {middle['samples_per_second']:,.0f} | {middle['cpu_us']:.1f} | {middle['bytes']:,.0f} "
            f"| {middle['classes']:.1f} | {middle['twice_or_missed']:.0f} | {resumes} |"
        )


if __name__ == "__main__":
    main()

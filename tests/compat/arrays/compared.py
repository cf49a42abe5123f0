"""Compares what shoal reads of random HDF5 files and Zarr groups with h5py and zarr; runs where the packages are.

``python compared.py DIRECTORY [SEEDS]`` prints a line for each kind, and ends with an error if anything differs.
"""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tests.compat.arrays.random_arrays import Rows, write_hdf5, write_zarr

import shoal
from shoal.formats import Format
from shoal.testing import check_format
from shoal.testing.known_shards import same

_DAMAGED_EACH, _CHECKED_BYTES = 12, 200_000


def streams(source: str, rows: Rows) -> str:
    """Compare the rows in order, shuffled, resumed, in batches and of two ranks; return what differs."""
    ds = shoal.open(source)
    if ds.num_samples != len(rows):
        return f"{ds.num_samples} samples instead of {len(rows)}"
    for number, (row, expected) in enumerate(zip(ds, rows, strict=True)):
        if not same(row, expected):
            return f"sample {number} is {row!r:.300} instead of {expected!r:.300}"
    mixed = ds.shuffle(seed=len(rows), window="1MiB")
    whole = list(mixed)
    begun = ds.shuffle(seed=len(rows), window="1MiB")
    iterator, half = iter(begun), len(rows) // 2
    taken = [next(iterator) for _ in range(half)]
    resumed = ds.shuffle(seed=len(rows), window="1MiB")
    resumed.load_state_dict(json.loads(json.dumps(begun.state_dict())))
    if not same(taken + list(resumed), whole):
        return "a resumed run differs"
    left = [repr(row) for row in whole]
    for row in rows:
        if repr(row) not in left:
            return f"{row!r:.300} is missing in a shuffled epoch"
        left.remove(repr(row))
    numbers = [
        name for name, value in rows[0].items() if np.asarray(value).dtype.kind in "biufc" and np.asarray(value).size
    ]
    fixed = [name for name in numbers if len({np.shape(row[name]) for row in rows}) == 1]
    if fixed:
        batches = list(ds.columns(*fixed).batch(7))
        for name in fixed:
            joined = np.concatenate([np.asarray(batch[name]) for batch in batches])
            if not np.array_equal(joined, np.array([row[name] for row in rows]), equal_nan=joined.dtype.kind in "fc"):
                return f"batches of {name} differ"
    return "" if not left else f"{len(left)} samples too many"


def num_pieces(source: Path) -> int:
    """Return the number of pieces of all shards."""
    opened = shoal.open(source).stream.spec.opened.one("this check")
    return len(opened.index.extent_shard)


def laws(source: Path, rows: Rows, format: Format | None = None) -> int:  # noqa: A002
    """Run `check_format` on each shard that is small; return how many damaged shards were tried."""
    opened = shoal.open(source).stream.spec.opened.one("this check")
    first, num_damaged = opened.index.extent_first_sample[opened.index.shard_first_extent].tolist(), 0
    for number, (name, path) in enumerate(zip(opened.index.shard_names, opened.paths, strict=True)):
        data = bytes(opened.store.map(path))
        if len(data) <= _CHECKED_BYTES and number < 2:
            known = {name: (data, rows[first[number] : first[number + 1]])}
            num_damaged += check_format(format or opened.format, known, num_damaged=_DAMAGED_EACH).damage.num_tried
    return num_damaged


def compared(kind: str, suffix: str, write: Callable[[Path, int], Rows], directory: Path, seeds: int) -> list[Any]:
    """Compare random files of one kind; return some files and their rows. Raises `AssertionError` if any differs."""
    num_rows = num_values = num_files = pieces = 0
    kept = []
    for seed in range(seeds):
        path = directory / f"{seed}{suffix}"
        rows = write(path, seed)
        if not rows:  # shoal refuses a source without a sample
            continue
        difference = streams(str(path), rows)
        assert not difference, f"{kind} {seed}: {difference}"
        num_files, num_rows, num_values = num_files + 1, num_rows + len(rows), num_values + sum(map(len, rows))
        pieces += num_pieces(path)
        kept += [(path, rows)] if seed % 4 == 0 else []
    print(
        f"{kind}: {num_files} files in {pieces} pieces, {num_rows:,} rows, {num_values:,} values as its own reader has"
    )
    return kept


def main() -> None:
    """Compare both kinds, and check their formats."""
    directory, seeds = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 60
    check = partial(compared, directory=directory, seeds=seeds)
    files = {"hdf5": check("hdf5", ".h5", write_hdf5), "zarr": check("zarr", ".zarr", write_zarr)}
    # Zarr's threads may go on after an error, and CPython 3.11 crashes if tracing begins or ends meanwhile.
    tracemalloc.start()
    for kind, kept in files.items():
        print(f"{kind}: {sum(laws(*each) for each in kept)} damaged shards of {len(kept)} files were refused or right")


if __name__ == "__main__":
    main()

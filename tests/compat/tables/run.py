"""Compares tables with the readers of deltalake and pyiceberg, over random histories.

``python -m tests.compat.tables.run --num 60`` writes tables by the libraries and by hand, and reads each version by
shoal and by the library: the rows must be equal, value by value, with their types, alone and by columns. A predicate
must keep each matching row, and a run that begins with a version must end with it after the table has moved on. It
prints the numbers of tables, versions and rows. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from tests.compat.tables import delta_histories, iceberg_histories
from tests.compat.tables.random_rows import condition, holds
from tests.tables.compared_rows import plain, texts_of

import shoal
from shoal.errors import SourceError

_MOST_SHOWN = 5


def compare(
    source: str, versions: Mapping[Any, pa.Table], random: Random, told: str, counts: Counter[str]
) -> list[str]:
    """Return the differences of a table's versions."""
    differences = []
    states = []
    for version, expected in versions.items():
        counts["versions"] += 1
        if not expected.num_rows:
            counts["without rows"] += 1
            try:
                left = texts_of(shoal.open(source, version=version))
            except (SourceError, shoal.errors.UsageError):  # no files, or none with rows
                left = []
            differences += [f"{told}, version {version}: rows where the library has none"] * bool(left)
            continue
        ds = shoal.open(source, version=version)
        theirs = texts_of(expected.to_pylist())
        counts["rows"] += len(theirs)
        if texts_of(ds.shuffle(seed=random.randrange(100))) != theirs:
            differences.append(f"{told}, version {version}: other rows")
        names = random.sample(expected.column_names, random.randrange(1, expected.num_columns + 1))
        alone = [{name: found[name] for name in sorted(names)} for found in map(plain, ds.columns(*names))]
        if texts_of(alone) != texts_of(expected.select(sorted(names)).to_pylist()):
            differences.append(f"{told}, version {version}: other rows of {names}")
        if {"id", "day"} <= {*expected.column_names}:
            differences += pruned(source, version, expected, random, told, counts)
        batches = ds.shuffle(seed=7).batch(3)
        begun = iter(batches)
        next(begun)
        state = begun.state_dict()
        if rest := [texts(batch) for batch in begun]:
            states.append((version, state, rest))
    for version, state, rest in states:
        later = shoal.open(source).shuffle(seed=7).batch(3)
        later.load_state_dict(state)
        counts["resumed"] += 1
        if [texts(batch) for batch in later] != rest:
            differences.append(f"{told}, version {version}: the resumed run differs")
    return differences


def texts(batch: Any) -> list[str]:
    """A batch as texts by field."""
    return [f"{name} {plain(values)!r}" for name, values in batch.items()]


def pruned(source: str, version: Any, expected: pa.Table, random: Random, told: str, counts: Counter[str]) -> list[str]:
    """Return the difference of a version opened with a random predicate: rows that match must stay."""
    wanted = condition(random, expected.num_rows)
    matching = [found for found in expected.to_pylist() if holds(found, wanted)]
    try:
        kept = Counter(texts_of(shoal.open(source, version=version, predicate=wanted)))
    except SourceError:
        kept = Counter[str]()
    counts["rows left out by predicates"] += expected.num_rows - kept.total()
    is_kept = Counter(texts_of(matching)) <= kept
    return [] if is_kept else [f"{told}, version {version}: {wanted} leaves out rows that match"]


def main() -> int:
    """Compare, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num", type=int, default=20, help="tables of each kind")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("shoal").setLevel(logging.ERROR)
    differences: list[str] = []
    for kind in ("deltalake", "deltalake by hand", "pyiceberg"):
        counts: Counter[str] = Counter()
        for number in range(options.num):
            random = Random(f"{kind} {options.seed} {number}")
            with tempfile.TemporaryDirectory() as directory:
                root = Path(directory, "t")
                if kind == "pyiceberg":
                    table, _ = iceberg_histories.written(root, random)
                    source, versions = table.location(), iceberg_histories.snapshots(table)
                else:
                    (delta_histories.written if kind == "deltalake" else delta_histories.handmade)(root, random)
                    source, versions = str(root), delta_histories.versions(root)
                differences += compare(source, versions, random, f"{kind} {number}", counts)
        told = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        print(f"{kind}: {options.num} tables, {told}", flush=True)
    print("\n".join(differences[:_MOST_SHOWN]) or "no differences")
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main())

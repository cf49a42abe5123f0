"""Reads with shoal what other packages wrote with writers of their own, and the other way round; one line for each.

``python tests/compat/peers/run.py [PEER ...]`` makes the environments that are missing, has each peer write shards and
read them itself, and compares values, types and order with what shoal reads from the same files; then has each of them
read what `shoal.pack` wrote. Exit code 1 if any differs; what this machine cannot have is skipped by name. At the end
stands the table of docs/formats.md.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import numpy as np
from tests.compat.peers.environments import PEERS, in_own_cache, python_of, run_in, title_of
from tests.compat.peers.plainly import plain
from tests.environments import CannotHaveError

import shoal

HERE = Path(__file__).parent
_TABLES = ("polars", "duckdb", "pyarrow", "spark", "datasets")


def opened(peer: str, about: str, directory: Path, source: str) -> shoal.Dataset:
    """What the peer wrote, so that it gives what the peer's reader gives."""
    if about.startswith("blocks of "):
        index = json.loads((directory / source / "index.json").read_text())
        size = int(about.removeprefix("blocks of ").partition(" ")[0])
        return shoal.open(directory / source, format=shoal.formats.LitDataTokens(index, block_size=size))
    split = about.split()[1] if about.startswith("split ") else None
    ds = shoal.open(f"{directory}/{source}", split=split)
    if peer in _TABLES:
        return ds.format("python")
    return ds.decode(about.removeprefix("decoded ")) if about.startswith("decoded ") else ds


def difference(expected: list[Any], found: list[Any]) -> str:
    """What is wrong first; empty where nothing is."""
    if len(expected) != len(found):
        return f"{len(found)} rows, and the peer reads {len(expected)}"
    for row, (one, other) in enumerate(zip(expected, found, strict=True)):
        if one != other:
            fields = dict(one[1]), dict(other[1])
            names = [name for name in fields[0] if fields[0][name] != fields[1].get(name)] or [*fields[1]]
            name = names[0]
            return f"row {row}, {name!r}: {fields[1].get(name)!r:.200}, and the peer reads {fields[0].get(name)!r:.200}"
    return ""


def sorted_fields(rows: list[Any]) -> list[Any]:
    """Rows with their fields by name, where a format keeps no order of them."""
    return [[kind, sorted(fields)] for kind, fields in rows]


def differences(peer: str, directory: Path) -> dict[str, str]:
    """For each source that a peer wrote, what of it shoal reads otherwise; empty where nothing is."""
    known = json.loads((directory / "expected.json").read_text())
    found = {}
    for about, (source, number) in known["sources"].items():
        expected = known["rows"][number]
        try:
            ds = opened(peer, about, directory, source)
            rows = json.loads(json.dumps([plain(sample) for sample in ds]))
            batched = sum(len(next(iter(batch.values()))) for batch in ds.shuffle(seed=0).batch(8))
        except shoal.errors.ShoalError as error:
            found[about] = str(error)
            continue
        if peer == "tfrecord":
            rows, expected = sorted_fields(rows), sorted_fields(expected)
        found[about] = difference(expected, rows)
        if not found[about] and batched != len(expected):
            found[about] = f"batches have {batched} rows of {len(expected)}"
    return found


def rows_to_write(form: str) -> list[dict[str, Any]]:
    """Samples for `shoal.pack`, as a format takes them."""
    rows: list[dict[str, Any]] = []
    for row in range(60):
        data = bytes(range(row % 7)) + b"."
        if form == "tar":
            name = f"sub/{row:04d}" + "-long" * (30 * (row % 2))
            rows.append({"__key__": name, "txt": f"row é {row}".encode(), "bin": data})
        elif form == "tfrecord":
            numbers = {"id": [row - 5], "real": [row / 4, -1.5]}
            rows.append({"bytes": data, **numbers, "text": f"row é {row}".encode()})
        else:
            tokens = np.arange(8, dtype=np.uint16) + row
            rows.append({"id": row - 5, "real": row / 4, "text": f"row é {row}", "bytes": data, "tokens": tokens})
    return rows


def _as_read(row: dict[str, Any], form: str) -> dict[str, Any]:
    """A sample as readers of a format give it: those of tables have lists, and MDS has numpy's floats alone."""
    if form == "mds":
        return {name: np.float64(value) if type(value) is float else value for name, value in row.items()}
    if form not in ("parquet", "arrow"):
        return row
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()}


WRITTEN = {
    "polars": ("parquet", "arrow"),
    "duckdb": ("parquet",),
    "pyarrow": ("parquet", "arrow"),
    "datasets": ("parquet", "arrow"),
    "tfrecord": ("tfrecord",),
    "webdataset": ("tar",),
    "streaming": ("mds",),
}
"""What each peer reads of what `shoal.pack` writes."""


def differences_in_reading(peer: str, directory: Path) -> dict[str, str]:
    """For each format that a peer reads, what of it the peer's own reader reads otherwise than it was written."""
    expected = {}
    for form in WRITTEN[peer]:
        rows = rows_to_write(form)
        with shoal.pack.Writer(directory / form, format=form, shard_bytes=2000) as writer:
            for row in rows:
                writer.write(dict(row))
        expected[form] = json.loads(json.dumps([plain(_as_read(row, form)) for row in rows]))
    run_in(python_of(peer), HERE / "reads.py", peer, directory)
    read = json.loads((directory / "read.json").read_text())
    return {form: difference(expected[form], read[form]) for form in WRITTEN[peer]}


def told(name: str, what: str, found: dict[str, str]) -> int:
    """Print what was equal and what was not; the number of the latter."""
    wrong = [f"    {about}: {what}" for about, what in found.items() if what]
    print(f"{name:12} {len(found) - len(wrong)} of {len(found)} {what}", *wrong, sep="\n", flush=True)
    return len(wrong)


TABLE = ("| peer | what it wrote, read here as it reads it | what shoal wrote, read by it |", "| --- | --- | --- |")
"""The head of the table that is printed, and stands in docs/formats.md."""


def row_of(name: str, theirs: dict[str, str], ours: dict[str, str]) -> str:
    """What was tried with a peer, and how much of it was equal, as a row of that table."""
    cells = [_counted(theirs), _counted(ours) if ours else "-"]
    return f"| {title_of(name)} | {' | '.join(cells)} |"


def _counted(found: dict[str, str]) -> str:
    num_equal = sum(not what for what in found.values())
    kinds = Counter(re.sub(r"-\d+(?=\.|$)", "", name) for name in found)  # of numbered ones their number
    told = [name if count == 1 else f"{count} x {name}" for name, count in kinds.items()]
    return f"{num_equal} of {len(found)}: {', '.join(told)}"


def main() -> int:
    warnings.simplefilter("ignore", shoal.errors.ShuffleWarning)
    names = sys.argv[1:] or list(PEERS)
    num_wrong = 0
    rows = []
    for name in names:
        directory = Path(tempfile.mkdtemp(prefix=f"shoal-{name}-"))
        try:
            run_in(python_of(name), HERE / "writes.py", name, directory / "theirs")
            theirs = differences(name, directory / "theirs")
            num_wrong += told(name, "of its sources are read as it reads them", theirs)
            ours = differences_in_reading(name, directory / "ours") if name in WRITTEN else {}
            if ours:
                num_wrong += told(name, "of our formats are read by it as they were written", ours)
            rows.append(row_of(name, theirs, ours))
        except CannotHaveError as error:
            print(f"{name:12} skipped: {error}", flush=True)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    print("", *TABLE, *rows, sep="\n", flush=True)
    return int(bool(num_wrong))


if __name__ == "__main__":
    sys.exit(in_own_cache(main))

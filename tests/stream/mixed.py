"""Mixtures of small datasets of four formats, whose samples say which they are."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.samples import write_sample_data
from tests.stream.made import open_finely, write_lines, write_tars

import shoal
from shoal.mixing import MixedDataset
from shoal.stream.dataset import Dataset

SIZES = {"tar": 60, "lines": 83, "parquet": 45, "mds": 200}
FIRST = {"tar": 0, "lines": 60, "parquet": 143, "mds": 188}
WEIGHTS = {"tar": 0.4, "lines": 0.3, "parquet": 0.25, "mds": 0.05}


def of_tar(sample: dict[str, Any]) -> dict[str, Any]:
    return {"own": sample["cls"], "kind": "tar"}


def of_lines(sample: dict[str, Any]) -> dict[str, Any]:
    return {"own": sample["id"], "kind": "lines"}


def of_parquet(sample: dict[str, Any]) -> dict[str, Any]:
    assert set(sample) == {"number"}
    return {"own": sample["number"], "kind": "parquet"}


def of_mds(sample: dict[str, Any]) -> dict[str, Any]:
    return {"own": sample["id"], "kind": "mds"}


def is_odd(sample: dict[str, Any]) -> bool:
    return int(sample["own"]) % 2 == 1


def sources_in(home: Path) -> dict[str, Dataset]:
    """Sources by name, each of another format, with stages of its own."""
    opened = _opened_in(home)
    return {
        "tar": opened["tar"].decode().map(of_tar),
        "lines": opened["lines"].map(of_lines),
        "parquet": opened["parquet"].columns("number").map(of_parquet),
        "mds": opened["mds"].map(of_mds),
    }


@cache
def _opened_in(home: Path) -> dict[str, Dataset]:
    """What was written once and is indexed once."""
    if not (home / "mds").exists():
        write_sample_data(home)
        write_tars(home / "tar" / "data", [20, 1, 0, 39])
        open_finely(home / "tar" / "data")
        write_lines(home / "lines", [20, 33, 1, 29])
        table = pa.table({"number": list(range(45)), "unused": ["x" * 50] * 45})
        pq.write_table(table, home / "p.parquet", row_group_size=7)
    return {
        "tar": shoal.open(home / "tar" / "data", index=home / "tar" / "fine.index"),
        "lines": shoal.open(home / "lines"),
        "parquet": shoal.open(home / "p.parquet"),
        "mds": shoal.open(home / "mds"),
    }


def mixed(home: Path, **arguments: Any) -> MixedDataset:
    """The four in one order, with ids of the mixture."""
    arguments = {"weights": WEIGHTS, "epoch_size": 500, **arguments}
    return shoal.mix(sources_in(home), **arguments).shuffle(seed=3, window=60_000)


def check(sample: dict[str, Any]) -> int:
    """The id in the mixture that a sample's contents say."""
    kind = sample["kind"]
    assert str(sample["__source__"]).rpartition("/")[2] == kind
    return FIRST[kind] + int(sample["own"])


def check_batch(batch: dict[str, Any]) -> list[int]:
    """The ids of the samples of a batch, without marked repeats."""
    rows = range(len(batch["kind"]))
    found = [check({name: values[row] for name, values in batch.items()}) for row in rows]
    assert "__id__" not in batch or [int(each) for each in batch["__id__"]] == found
    return [each for row, each in zip(rows, found, strict=True) if "__pad__" not in batch or not batch["__pad__"][row]]


def ids_in(batches: Any) -> list[int]:
    """Ids of batches, one after the other."""
    return [number for batch in batches for number in check_batch(batch)]

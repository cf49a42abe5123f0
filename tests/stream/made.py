"""Small datasets whose samples say in their bytes which they are, and ways of running one as ranks do."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.samples import write_tar

from shoal.formats.format_registry import format_named
from shoal.indexing.build import build_index
from shoal.indexing.index_files import save_index
from shoal.storage.files.local_store import LocalStore
from shoal.storage.sources.source import expand
from shoal.stream.dataset import Dataset
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.open_dataset import open_dataset
from shoal.stream.refilling.steps_of_pass import StepsOfPass


def content(number: int) -> bytes:
    """What a sample holds: its id, and then up to 1300 bytes that only this sample has."""
    return f"{number}:".encode() + random.Random(number).randbytes(number * 37 % 1301)


def text(number: int) -> str:
    """The same for formats of text."""
    return f"{number}:" + content(number).hex()


def write_tars(directory: Path, counts: Sequence[int]) -> Path:
    """Tar shards with so many samples each, numbered through: ``NNNNN.bin`` holds `content`, ``NNNNN.cls`` the id."""
    directory.mkdir(parents=True, exist_ok=True)
    first = 0
    for shard, count in enumerate(counts):
        samples = [
            {"__key__": f"{i:05d}".encode(), "bin": content(i), "cls": str(i).encode()}
            for i in range(first, first + count)
        ]
        write_tar(directory / f"s-{shard:03d}.tar", samples)
        first += count
    return directory


def write_lines(directory: Path, counts: Sequence[int]) -> Path:
    """JSON Lines shards: ``{"id": i, "text": ...}``."""
    directory.mkdir(parents=True, exist_ok=True)
    first = 0
    for shard, count in enumerate(counts):
        lines = (json.dumps({"id": i, "text": text(i)}) + "\n" for i in range(first, first + count))
        (directory / f"s-{shard:03d}.jsonl").write_text("".join(lines))
        first += count
    return directory


def open_finely(directory: Path, *, extent_bytes: int = 6000) -> Dataset:
    """The dataset with an index of small extents, so that small shards have several chunks."""
    suffix = next(path.suffix for path in sorted(directory.iterdir()) if path.suffix != ".index")
    found = expand(f"{directory}/*{suffix}", suffixes=(suffix,))
    index = build_index(found, store=LocalStore(), format=format_named(suffix[1:]), extent_bytes=extent_bytes)
    return open_dataset(directory, index=save_index(index, directory.parent / "fine.index", store=LocalStore()))


def check_sample(sample: dict[str, Any]) -> int:
    """The id that a sample's bytes say, when all of them are right."""
    if "text" in sample:
        number = int(sample["id"])
        assert sample["text"] == text(number)
    else:
        number = int(sample["bin"].partition(b":")[0])
        assert sample["bin"] == content(number)
        assert int(sample["cls"]) == number
        assert sample["__key__"] == f"{number:05d}"
    assert sample.get("__id__", number) == number
    return number


def check_batch(batch: dict[str, Any]) -> list[int]:
    """The ids of the samples of a batch, repeats included."""
    rows = len(next(iter(batch.values())))
    return [check_sample({name: values[row] for name, values in batch.items()}) for row in range(rows)]


def repeats_of(batch: dict[str, Any]) -> list[bool]:
    """Which samples of a batch are marked as repeats."""
    rows = len(next(iter(batch.values())))
    marks: Any = batch.get("__pad__", np.zeros(rows, dtype=bool))
    assert marks.dtype == np.bool_
    return [bool(mark) for mark in marks]


def ids_of(samples: Iterable[dict[str, Any]]) -> list[int]:
    """The ids of what a dataset without batches yields."""
    return [check_sample(sample) for sample in samples]


def batches_of(batches: Iterable[dict[str, Any]]) -> list[list[int]]:
    """The ids of what a dataset with batches yields."""
    return [check_batch(batch) for batch in batches]


def flat(lists: Iterable[list[int]]) -> list[int]:
    """The lists one after the other."""
    return list(itertools.chain.from_iterable(lists))


def at(stream: Dataset | Iteration | StepsOfPass) -> tuple[int, int]:
    """Epoch and position of the state of a dataset or an iterator."""
    state = stream.state_dict()
    return state["epoch"], state["position"]


def reading_threads() -> list[str]:
    """The threads of shoal that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("shoal")]


def described(ds: Dataset, **fields: Any) -> Dataset:
    """The same dataset with other parts of its description, which no verb reaches."""
    return Dataset(replace(ds.stream.spec, **fields))

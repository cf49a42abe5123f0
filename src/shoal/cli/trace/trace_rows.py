"""Deliveries as rows: sample, step, rank and bytes of each, and its steps in other epochs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.cli.audit.sample_ids import KEY, keys_in_order
from shoal.cli.preview import json_value, printable
from shoal.cli.progress import Progress
from shoal.cli.trace.trace_run import TracedRun
from shoal.errors import UsageError
from shoal.figures import counted
from shoal.index.table import locate
from shoal.indexing.open_source import Opened
from shoal.stream.dataset import Dataset
from shoal.stream.dataset_spec import DatasetSpec

Row = dict[str, Any]


def rows_of_step(asked: TracedRun, step: int) -> list[Row]:
    """Return the deliveries of a step to the ranks in question."""
    return [row for rank in asked.ranks for row in _rows_of_share(asked, rank, step)]


def _rows_of_share(asked: TracedRun, rank: int, step: int, *, only: NDArray[np.int64] | None = None) -> Iterator[Row]:
    share = asked.share(rank, step)
    ids = asked.resolved.stored_ids(share.ids)
    slots = np.arange(len(ids)) if only is None else np.flatnonzero(np.isin(ids, only))
    for slot in slots.tolist():
        yield {
            "sample": int(ids[slot]),
            "step": step,
            "rank": rank,
            "place": slot,
            "position": int(share.positions[slot]),
            "repeat": bool(share.repeated[slot]),
        }


def rows_of_samples(asked: TracedRun, ids: list[int]) -> list[Row]:
    """Return every delivery of these samples to the ranks in question; undelivered ones have no step and no rank."""
    wanted = np.array(ids, dtype=np.int64)
    locate(asked.opened.index, wanted)  # raises if an id is no sample
    numbers = asked.resolved.epoch(asked.epoch).positions(wanted)
    positions = asked.resolved.untouched(asked.epoch).positions(wanted)
    deliveries: dict[int, list[Row]] = {sample: [] for sample in ids}
    # The steps that may hold these samples: their own, and the last, which may repeat samples.
    steps = set(((numbers[numbers >= 0] - asked.start) // asked.partition.global_batch).tolist())
    for step in sorted({*steps, asked.end_step - 1} & set(range(asked.first_step, asked.end_step))):
        for rank in asked.ranks:
            for row in _rows_of_share(asked, rank, step, only=wanted):
                deliveries[row["sample"]].append(row)
    rows: list[Row] = []
    nowhere = {"step": None, "rank": None, "place": None}
    for sample, position in dict(zip(ids, positions.tolist(), strict=True)).items():
        rows += deliveries[sample] or [{"sample": sample, **nowhere, "position": position, "repeat": False}]
    return rows


def id_of_key(opened: Opened, key: str) -> int:
    """Return the id of the first sample with this key, found by reading the dataset from its start."""
    for number, found in enumerate(keys_in_order(opened, label=f"looking for {printable(key)}")):
        if found == key:
            return number
    msg = f"none of {opened.index.num_samples} samples has the key {key!r}"
    raise UsageError(msg, hint="keys are names of tar members up to the first dot, directories included")


def ids_of_shard(opened: Opened, name: str, asked: TracedRun, limit: int) -> tuple[list[int], int]:
    """Return the first samples of a shard in the epoch, at most ``limit``, and how many samples the shard has."""
    index = opened.index
    found = [number for number, shard in enumerate(index.shard_names) if name in (shard, shard.rpartition("/")[2])]
    if len(found) != 1:
        among = f"{counted(index.num_shards, 'shard')}, the first {printable(index.shard_names[0])}"
        msg = f"{printable(name)} is {'the name of several' if found else 'none'} of {among}"
        raise UsageError(msg, hint="the whole name, as `shoal info` and the rows of `shoal trace` show it")
    first, end = index.extent_first_sample[index.shard_first_extent[found[0] : found[0] + 2]].tolist()
    ids = np.arange(first, end)
    positions = asked.resolved.untouched(asked.epoch).positions(ids)
    return ids[np.argsort(positions, kind="stable")][:limit].tolist(), end - first


def add_locations(asked: TracedRun, rows: list[Row], *, keys: bool = False) -> None:
    """Add to the rows the bytes of their samples, and their keys if requested, which reads the samples."""
    index = asked.opened.index
    columns = locate(index, [row["sample"] for row in rows])
    dataset = Dataset(DatasetSpec.of(asked.opened))
    with Progress(total=len(rows), label="reading keys") as progress:
        for row, shard, first_byte, end_byte in zip(rows, *(column.tolist() for column in columns), strict=True):
            row["shard"] = json_value(index.shard_names[shard])
            row["first_byte"], row["end_byte"] = first_byte, end_byte
            if keys:
                row["key"] = json_value(dataset[row["sample"]].get(KEY))
                progress.advance()


def add_other_epochs(asked: TracedRun, rows: list[Row], epochs: Sequence[int]) -> None:
    """Add to the rows the step of their samples in other epochs, with the same global batch from the start.

    The step is None if the sample is left out of that epoch or lies in a remainder that is dropped.
    """
    ids = np.array([row["sample"] for row in rows], dtype=np.int64)
    for row in rows:
        row["seen"] = {}
    for epoch in epochs if rows else ():
        numbers = asked.resolved.epoch(epoch).positions(ids)
        num_steps = asked.partition.num_batches(asked.resolved.num_samples_of(epoch))
        for row, number in zip(rows, numbers.tolist(), strict=True):
            step = number // asked.partition.global_batch
            row["seen"][epoch] = step if number >= 0 and step < num_steps else None

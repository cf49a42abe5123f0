"""`shoal trace`: which samples are in a step, and in which step a sample is; computed from the order.

Who looks for the cause of a loss spike knows a step: of an epoch, or after a checkpoint. So steps count from the start
of the epoch, as `Dataset.batch_ids` counts them, and with ``--from-state`` from the position of a saved state: step 0
is the first batch after it, step -1 the last one before it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.cli import output
from shoal.cli.numbers import at_least_one, at_least_zero, sample_ids
from shoal.cli.order_options import add_order_arguments, asked_order, given_order_options, read_state
from shoal.cli.preview import json_value, printable
from shoal.cli.progress import Progress
from shoal.cli.source_options import add_json_argument, add_source_arguments, open_with_samples
from shoal.errors import UsageError
from shoal.order.partition import REMAINDERS, Partition, Share, check_rank
from shoal.shards.index import locate
from shoal.stream.arrangement import Arrangement
from shoal.stream.dataset import Dataset
from shoal.stream.description import Description
from shoal.stream.indexing.opening import Opened
from shoal.stream.requests import request_of_state

__all__ = ["add_arguments", "run"]

_KEY = "__key__"
Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.epilog = (
        "Steps count from the start of the epoch, from 0. A run that was resumed in the middle of an epoch with "
        "another batch size has cut the rest anew: give the state it began with, and --from-state."
    )
    add_source_arguments(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--step", type=int, metavar="T", help="which samples are in this step")
    what.add_argument("--sample", type=sample_ids, metavar="I,J,...", help="in which step these samples are, by id")
    what.add_argument("--key", metavar="NAME", help="the same by key; reads the shards until it is found")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--batch-size", type=at_least_one, metavar="B", help="samples of a batch on each rank")
    size.add_argument("--global-batch", type=at_least_one, metavar="N", help="samples of a batch over all ranks")
    parser.add_argument("--world-size", type=at_least_one, metavar="W", default=1, help="ranks of the run (1)")
    parser.add_argument("--rank", type=at_least_zero, metavar="R", help="only what this rank gets (default: all ranks)")
    parser.add_argument("--epoch", type=at_least_zero, metavar="E", help="epoch (that of the state, else 0)")
    parser.add_argument("--remainder", choices=REMAINDERS, default="keep", help="as Dataset.batch() takes it (keep)")
    parser.add_argument("--keys", action="store_true", help="show the key of each sample, which reads it")
    parser.add_argument("--state", metavar="FILE", help="JSON of a state_dict(): its order, seed and epoch")
    parser.add_argument("--from-state", action="store_true", help="count steps from the position of the state")
    add_order_arguments(parser, default="without any of these, and without --state, that of shuffle()")
    add_json_argument(parser)


@dataclass(frozen=True, slots=True)
class _Run:
    """The run that is asked about: its data and order, and how its epoch is cut from position ``start`` on."""

    opened: Opened
    arrangement: Arrangement
    partition: Partition
    epoch: int
    start: int
    ranks: range
    shows_keys: bool

    @property
    def first_step(self) -> int:
        """The first whole batch before the start of counting; 0 where that is the start of the epoch."""
        return -(self.start // self.partition.global_batch)

    @property
    def end_step(self) -> int:
        """One more than the last step."""
        return self.partition.num_batches(self.arrangement.num_samples, self.start)

    def share(self, rank: int, step: int) -> Share:
        """What a rank gets in a step."""
        return self.partition.share(self.arrangement.epoch(self.epoch), rank, step, step + 1, self.start)


def run(arguments: argparse.Namespace) -> int:
    """Answer the question that was asked."""
    asked = _asked_run(arguments)
    if arguments.step is not None:
        record, rows = _step(asked, arguments.step), _rows_of_step(asked, arguments.step)
    else:
        ids = arguments.sample if arguments.key is None else [_id_of(asked.opened, arguments.key)]
        record, rows = {}, _rows_of_samples(asked, ids)
    rows = _with_places(asked, rows)
    partition = asked.partition
    about = {
        "order": str(asked.arrangement),
        "epoch": asked.epoch,
        "global_batch": partition.global_batch,
        "world_size": partition.world_size,
        "counted_from": asked.start,
        **record,
    }
    if arguments.json:
        output.emit({"fingerprint": asked.opened.index.fingerprint, **about, "samples": rows}, as_json=True)
    else:
        _show(about, rows)
    return 0


def _asked_run(arguments: argparse.Namespace) -> _Run:
    state = None if arguments.state is None else read_state(arguments.state)
    if state is not None and (options := given_order_options(arguments)):
        msg = f"--state has the order already, and {options[0]} asks for one"
        raise UsageError(msg, hint="leave out one of them")
    if state is None and arguments.from_state:
        msg = "--from-state counts from the position of a state, and there is none"
        raise UsageError(msg, hint="--state FILE names it")
    request = asked_order(arguments) if state is None else request_of_state(state)
    world_size = arguments.world_size
    if arguments.rank is not None:
        check_rank(arguments.rank, world_size)
    opened = open_with_samples(arguments)
    arrangement = Arrangement(opened.index, request)
    epoch, start = arguments.epoch or 0, 0
    if state is not None:
        fingerprint, samples = opened.index.fingerprint, arrangement.num_samples
        state.check(seed=request.seed, order=arrangement.state_order, index=fingerprint, num_samples=samples)
        epoch = state.epoch if arguments.epoch is None else arguments.epoch
        start = state.position if arguments.from_state else 0
        if arguments.from_state and epoch != state.epoch:
            msg = f"--from-state counts from position {start} of epoch {state.epoch}, and --epoch asks for {epoch}"
            raise UsageError(msg, hint="leave out one of them")
    size = arguments.global_batch if arguments.batch_size is None else arguments.batch_size * world_size
    ranks = range(world_size) if arguments.rank is None else range(arguments.rank, arguments.rank + 1)
    return _Run(
        opened, arrangement, Partition(size, world_size, arguments.remainder), epoch, start, ranks, arguments.keys
    )


def _step(asked: _Run, step: int) -> Row:
    """What there is to say about a step as a whole, once it is known to be one."""
    first, end = asked.first_step, asked.end_step
    if not first <= step < end:
        msg = f"step {step} was asked for; epoch {asked.epoch} has steps {first} to {end - 1}"
        if asked.start:
            msg += f", counted from position {asked.start}"
        hint = "negative steps lie before the position of a state, with --state FILE --from-state"
        if step >= end > 0:
            hint = f"counted over all epochs that is --epoch {step // end} --step {step % end}"
        if asked.start:
            hint = "without --from-state, steps count from the start of the epoch"
        raise UsageError(msg, hint=hint)
    first_position = asked.start + step * asked.partition.global_batch
    end_position = min(first_position + asked.partition.global_batch, asked.arrangement.num_samples)
    return {"step": step, "num_steps": end, "first_position": first_position, "end_position": end_position}


def _rows_of_step(asked: _Run, step: int) -> list[Row]:
    return [row for rank in asked.ranks for row in _rows_of_share(asked, rank, step)]


def _rows_of_share(asked: _Run, rank: int, step: int, *, only: NDArray[np.int64] | None = None) -> Iterator[Row]:
    share = asked.share(rank, step)
    ids = asked.arrangement.stored_ids(share.ids)
    places = np.arange(len(ids)) if only is None else np.flatnonzero(np.isin(ids, only))
    columns = (places, ids[places], share.positions[places], share.repeated[places])
    for place, sample, position, repeat in zip(*(column.tolist() for column in columns), strict=True):
        yield {
            "sample": sample,
            "step": step,
            "rank": rank,
            "place": place,
            "position": position,
            "repeat": repeat,
        }


def _rows_of_samples(asked: _Run, ids: list[int]) -> list[Row]:
    """Every time these samples are delivered to the ranks in question; without step and rank those that are not."""
    wanted = np.array(ids, dtype=np.int64)
    locate(asked.opened.index, wanted)  # which refuses what is no sample
    positions = asked.arrangement.epoch(asked.epoch).positions(wanted)
    deliveries: dict[int, list[Row]] = {sample: [] for sample in ids}
    for step in sorted(_steps_of(asked, positions)):
        for rank in asked.ranks:
            for row in _rows_of_share(asked, rank, step, only=wanted):
                deliveries[row["sample"]].append(row)
    rows: list[Row] = []
    for sample, position in dict(zip(ids, positions.tolist(), strict=True)).items():
        nowhere = {"sample": sample, "step": None, "rank": None, "place": None, "position": position, "repeat": False}
        rows += deliveries[sample] or [nowhere]
    return rows


def _steps_of(asked: _Run, positions: NDArray[np.int64]) -> set[int]:
    """The steps that may hold the samples at these positions: their own, and the last, which may repeat samples."""
    steps = set(((positions - asked.start) // asked.partition.global_batch).tolist())
    return {step for step in {*steps, asked.end_step - 1} if asked.first_step <= step < asked.end_step}


def _id_of(opened: Opened, key: str) -> int:
    """The id of the first sample with this key, found by reading the dataset from its start."""
    dataset = Dataset(Description(opened)).partition(rank=0, world_size=1)
    with Progress(total=opened.index.num_samples, label=f"looking for {printable(key)}") as progress:
        for number, sample in enumerate(dataset):
            if _KEY not in sample:
                msg = f"samples of format {opened.index.format} have no keys"
                raise UsageError(msg, hint="--sample takes ids, which `shoal head` shows")
            if sample[_KEY] == key:
                return number
            progress.advance()
    msg = f"none of {opened.index.num_samples} samples has the key {key!r}"
    raise UsageError(msg, hint="keys are names of tar members up to the first dot, directories included")


def _with_places(asked: _Run, rows: list[Row]) -> list[Row]:
    """The rows with where their samples lie, and with their keys where those were asked for."""
    index = asked.opened.index
    columns = locate(index, [row["sample"] for row in rows])
    dataset = Dataset(Description(asked.opened))
    with Progress(total=len(rows), label="reading keys") as progress:
        for row, shard, first_byte, end_byte in zip(rows, *(column.tolist() for column in columns), strict=True):
            row["shard"] = json_value(index.shard_names[shard])
            row["first_byte"], row["end_byte"] = first_byte, end_byte
            if asked.shows_keys:
                row["key"] = json_value(dataset[row["sample"]].get(_KEY))
                progress.advance()
    return rows


def _show(about: Mapping[str, Any], rows: list[Row]) -> None:
    """For people: what would be the same in every row, or is as expected, is not shown."""
    text = {name: value for name, value in about.items() if name != "counted_from" or value}
    output.emit(text)
    hidden = {"repeat"} if not any(row["repeat"] for row in rows) else set()
    hidden |= {"step"} if "step" in about else set()
    output.say()
    shown = [{name: _cell(value) for name, value in row.items() if name not in hidden} for row in rows]
    output.say(output.format_table(shown) if shown else "no samples")


def _cell(value: Any) -> Any:
    return printable(value) if isinstance(value, str) else value

"""A stream of every kind that has states of its own, and states of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.stream.made import open_finely, write_lines, write_tars

import shoal
from shoal.live.live_dataset import LiveDataset
from shoal.live.live_state import sealed as sealed_live
from shoal.order.state_dict import sealed
from shoal.stream.dataset import Dataset
from shoal.stream.mixing.mixed_dataset import MixedDataset

SIZE = 4


@dataclass(frozen=True)
class Streams:
    """Small datasets, from which each stream is made anew."""

    tars: Dataset
    lines: Dataset
    directory: Path

    @staticmethod
    def at(directory: Path) -> Streams:
        tars = open_finely(write_tars(directory / "tars" / "data", [30, 1, 0, 47, 22, 60, 5, 32]))
        lines = open_finely(write_lines(directory / "lines" / "data", [20, 33, 1, 29]))
        return Streams(tars, lines, directory)

    def shuffled(self) -> Dataset:
        return self.tars.shuffle(seed=3, window="40KiB")

    def alike(self) -> Dataset:
        return self.lines.map(lambda sample: {"bin": b"", "cls": b"0", "__key__": str(sample["id"])})

    def mixed(self, weights: dict[str, Any]) -> MixedDataset:
        return shoal.mix({"a": self.tars, "b": self.alike()}, weights=weights).shuffle(seed=3, window="200KiB")

    def nested(self) -> Dataset:
        inner = shoal.mix({"b": self.alike(), "c": self.tars}, weights={"b": 1, "c": 3})
        return shoal.mix({"a": self.tars, "m": inner}, weights={"a": 2, "m": 1}).shuffle(seed=3, window="200KiB")

    def refilled(self) -> Dataset:
        return self.shuffled().filter(lambda sample: int(sample["cls"]) % 3, refill=True)

    def growing(self) -> Dataset:
        return shoal.open(self.directory / "tars" / "data", index="grow").shuffle(seed=3, window="40KiB")

    def packed(self) -> Dataset:
        numbered = self.lines.shuffle(seed=3, window="40KiB").map(lambda s: {"tokens": np.arange(s["id"] % 9 + 1)})
        return numbered.pack_sequences(16, lengths=None, block=4)

    def counted(self) -> Dataset:
        source = shoal.open(self.directory / "lines" / "data", index_columns=["n=id"]).select(np.arange(1, 83))
        return source.shuffle(seed=3, window="80KiB").map(lambda sample: {"tokens": np.arange(sample["id"])})

    def make(self, kind: str) -> Any:
        makers: dict[str, Callable[[], Any]] = {
            "window": self.shuffled,
            "full": lambda: self.tars.shuffle("full", seed=3),
            "chosen": lambda: self.tars.select(np.arange(0, 190, 2)).shuffle(seed=3, window="40KiB").take(80),
            "sampled": lambda: self.tars.sample(num_samples=300).shuffle(seed=3, window="40KiB"),
            "gaps": lambda: self.shuffled().without(positions=[(20, 30)]),
            "refill": self.refilled,
            "refill, rank 0 of 2": lambda: self.refilled().partition(rank=0, world_size=2),
            "growing": self.growing,
            "mixture": lambda: self.mixed({"a": 2, "b": 1}),
            "reweighted": lambda: self.mixed({"a": 2, "b": 1}).reweight(at=24, weights={"a": 1, "b": 1}, ramp=16),
            "nested": self.nested,
            "packed": lambda: self.counted().pack_sequences(128, lengths="n"),
            "by length": lambda: self.counted().batch_by_length(8, lengths="n"),
            "by column": lambda: self.counted().batch(8, by="shard", alike=2),
            "classes": lambda: self.counted().batch(2, 3, by="shard", too_small="drop"),
            "within limits": lambda: self.counted().batch(limits={"n": 200}),
            "packed as they come": self.packed,
            "packed as they come, rank 0 of 2": lambda: self.packed().partition(rank=0, world_size=2),
            "live sequence": lambda: shoal.from_iterable([{"id": i} for i in range(90)]).shuffle(seed=0, buffer=7),
            "live replay": lambda: shoal.from_iterable(lambda: range(90), replay=True).shuffle(seed=0, buffer=7),
            "live function": lambda: shoal.from_callable(iter(range(90)).__next__).shuffle(seed=0, buffer=7),
            "followed": lambda: shoal.follow(f"{self.directory}/lines/data/*.jsonl", idle_seconds=0.0, poll_seconds=0.0)
            .shuffle(seed=0, buffer=7),
        }  # fmt: skip
        made = makers[kind]()
        if kind in ("by length", "by column", "classes", "within limits"):
            return made
        return made.batch(SIZE, steps="apart") if kind.endswith("rank 0 of 2") else made.batch(SIZE)

    def saved(self, kind: str) -> list[dict[str, Any]]:
        """States after a few batches, as JSON gives them back."""
        stream = self.make(kind)
        iterator, states = iter(stream), [stream.state_dict()]
        for _ in range(3):
            next(iterator)
            states.append(stream.state_dict())
        if isinstance(stream, LiveDataset):
            states.append(stream.state_dict(contents=True))
        return [json.loads(json.dumps(state)) for state in states]


KINDS = (
    *("window", "full", "chosen", "sampled", "gaps", "refill", "refill, rank 0 of 2", "growing", "mixture"),
    *(
        "reweighted",
        "nested",
        "packed",
        "by length",
        "by column",
        "classes",
        "within limits",
        "packed as they come",
        "packed as they come, rank 0 of 2",
    ),
    *("live sequence", "live replay", "live function", "followed"),
)


def resealed(state: dict[str, Any]) -> dict[str, Any]:
    """A state with the checksum of its fields, as its forger would make it."""
    fields = {name: value for name, value in state.items() if name != "check"}
    return sealed_live(fields) if "live" in state else sealed(fields)

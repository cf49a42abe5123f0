"""Passes of torchdata's loader, each resumed from states of points on the way, and compared with those not cut."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shoal.stream.dataset import Dataset
from shoal.torch import IterableDataset

Point = tuple[int, int | str]
"""A pass, and the batches taken of it: or "new" before its iterator was made, or "end" after it gave no more."""

EVERYWHERE: list[Point] = []
"""All points of two passes."""


def ids_of(batches: Any) -> list[list[int]]:
    """The ids of each batch."""
    return [torch.as_tensor(batch["__id__"]).reshape(-1).tolist() for batch in batches]


@dataclass(frozen=True)
class Made:
    """How a loader is made: of batches of ``size``, or of single samples that it batches itself if that is negative."""

    dataset: Dataset
    is_shuffled: bool
    size: int
    num_workers: int = 0
    persistent: bool = False

    @property
    def batch_size(self) -> int | None:
        """That of the loader."""
        return None if self.size > 0 else -self.size

    def source(self) -> IterableDataset:
        """A new dataset at its start."""
        ds = self.dataset.shuffle(seed=3) if self.is_shuffled else self.dataset
        ds = ds.with_ids().columns("__id__")
        return IterableDataset(ds.batch(self.size) if self.size > 0 else ds)

    def loader(self) -> Any:
        """A new loader over it."""
        from torchdata.stateful_dataloader import StatefulDataLoader

        options: dict[str, Any] = {"num_workers": self.num_workers, "persistent_workers": self.persistent}
        context = "forkserver" if self.num_workers else None
        return StatefulDataLoader(
            self.source(), batch_size=self.batch_size, multiprocessing_context=context, **options
        )  # fmt: skip


def one_pass(loader: Any, epoch: int | None, reached: Callable[[int | str], None] = lambda _: None) -> list[list[int]]:
    """The batches of a pass; each point of it is told when it is reached."""
    if epoch is not None:
        loader.dataset.set_epoch(epoch)
    reached("new")
    iterator, batches = iter(loader), []
    reached(0)
    for batch in iterator:
        batches += ids_of([batch])
        reached(len(batches))
    reached("end")
    return batches


def differences(
    made: Made, *, sets_epochs: bool, points: Sequence[Point], travel: Callable[[Any], Any] = copy.deepcopy
) -> list[Any]:
    """What differs after a resume from these points: the point, the pass, what came and what should have come.

    The loop that resumes does what the one before would have done: it sets the epoch of each pass, or of none.
    """
    states: dict[Point, Any] = {}
    epochs = [number if sets_epochs else None for number in range(3)]
    loader = made.loader()
    whole = []
    for number, epoch in enumerate(epochs):

        def reached(point: int | str, number: int = number, loader: Any = loader) -> None:
            if number < 2 and (not points or (number, point) in points):
                states[number, point] = travel(loader.state_dict())

        whole.append(one_pass(loader, epoch, reached))
    assert not points or sorted(map(str, states)) == sorted(map(str, points))
    found = []
    for (number, point), state in states.items():
        loader = made.loader()
        loader.load_state_dict(state)
        expected = [*whole]
        if isinstance(point, int):
            expected[number] = whole[number][point:]
        for later in range(number + (point == "end"), 3):
            batches = one_pass(loader, epochs[later])
            if batches != expected[later]:
                found.append((number, point, later, batches, expected[later]))
    return found

"""A function of samples that gets random numbers: for a sample of an epoch the same ones on any machine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from shoal.order.seeds import check_seed, generator, key
from shoal.pipeline.stages.map_and_filter import Map
from shoal.pipeline.stages.stage import Stage
from shoal.pipeline.tensors import torch_generator

GENERATORS = ("numpy", "torch")
"""Libraries whose generators a function may get."""


@dataclass(frozen=True, slots=True)
class SeededMap(Stage):
    """A stage that calls ``function(sample, rng)`` with a generator keyed by the seed, the epoch and the sample id.

    ``seed`` None stands for that of the order, which `seeded` fills in, with the ``number`` of the stage among those
    that have it: each draws other numbers. Ids are counted from ``first_id``.
    """

    function: Callable[..., Any]
    seed: int | None = None
    library: str = "numpy"
    epoch: int = 0
    first_id: int = 0
    number: int = 0

    def __post_init__(self) -> None:
        Map(self.function)  # refuses what cannot be called

    @classmethod
    def asked(cls, function: Callable[..., Any], seed: bool | int, library: str) -> SeededMap:  # noqa: FBT001
        """Return the stage for ``seed``: a number, or True for the seed of the order."""
        return cls(function, None if seed is True else check_seed(seed), library)

    def __repr__(self) -> str:
        return f"{Map(self.function)!r}"

    def in_epoch(self, epoch: int) -> SeededMap:
        """Return this stage for one epoch."""
        return replace(self, epoch=epoch)

    def __call__(self, sample: Any, sample_id: int) -> Any:
        """Return the result of the function."""
        words = (sample_id - self.first_id, self.number)
        word = key(self.seed or 0, self.epoch, "map", *(words if self.number else words[:1]))
        return self.function(sample, generator(word) if self.library == "numpy" else torch_generator(word))


def seeded(stages: Iterable[Stage], seed: int, *, first_number: int = 0) -> tuple[Stage, ...]:
    """Return the stages with the seed of the order where none was given, numbered from ``first_number`` on."""
    numbers = itertools.count(first_number)
    return tuple(
        replace(stage, seed=seed, number=next(numbers))
        if isinstance(stage, SeededMap) and stage.seed is None
        else stage
        for stage in stages
    )

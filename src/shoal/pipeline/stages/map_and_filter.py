"""Stages that call a function of the user: to map samples, perhaps with random numbers, or to filter them."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from shoal.order.seeds import check_seed, generator, key
from shoal.pipeline.stages.callers import Callers
from shoal.pipeline.stages.concurrent_functions import (
    Begun,
    BegunCall,
    as_function,
    check_result,
    concurrent_of,
    max_concurrency_of,
    name_of,
)
from shoal.pipeline.stages.stage import DROPPED, Stage, each_stage
from shoal.pipeline.tensors import torch_generator

GENERATORS = ("numpy", "torch")
"""Libraries of the generators for `SeededMap`."""


@dataclass(frozen=True, slots=True)
class Map(Stage):
    """A stage that applies a function to every sample."""

    function: Callable[[Any], Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", as_function("map()", self.function))

    def __repr__(self) -> str:
        return f"map({name_of(self.function)})"

    def __call__(self, sample: Any, _: int) -> Any:
        """Return the result of the function."""
        result = self.function(sample)
        check_result(result, self.function)
        return result

    @property
    def max_concurrency(self) -> int:  # type: ignore[override]
        """Most samples in the function at a time; 0 if the function gets one sample after another."""
        return max_concurrency_of(self.function)

    def begin(self, sample: Any, _: int, callers: Callers) -> Begun | None:
        """Begin a call of the function."""
        return _begun(self, callers, sample)


@dataclass(frozen=True, slots=True)
class SeededMap(Stage):
    """A stage that calls ``function(sample, rng)`` with a generator keyed by the seed, the epoch and the sample id.

    A sample of an epoch gets the same random numbers on any machine. `seeded` replaces a ``seed`` of None by the seed
    of the order, and numbers these stages, so that each draws other numbers. Ids are counted from ``first_id``.
    """

    function: Callable[..., Any]
    seed: int | None = None
    library: str = "numpy"
    epoch: int = 0
    first_id: int = 0
    number: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", as_function("map()", self.function))

    @classmethod
    def of(cls, function: Callable[..., Any], seed: bool | int, library: str) -> SeededMap:  # noqa: FBT001
        """Return the stage for ``seed``: a number, or True for the seed of the order."""
        return cls(function, None if seed is True else check_seed(seed), library)

    def __repr__(self) -> str:
        return f"map({name_of(self.function)})"

    def in_epoch(self, epoch: int) -> SeededMap:
        """Return this stage for one epoch."""
        return replace(self, epoch=epoch)

    def seeded(self, seed: int, numbers: Iterator[int]) -> SeededMap:
        """Return this stage with the seed of the order, unless it has one, and a number of its own."""
        return self if self.seed is not None else replace(self, seed=seed, number=next(numbers))

    def moved(self, first_id: int) -> SeededMap:
        """Return this stage with ids that are larger by ``first_id``."""
        return replace(self, first_id=self.first_id + first_id)

    def __call__(self, sample: Any, sample_id: int) -> Any:
        """Return the result of the function."""
        result = self.function(sample, self._generator(sample_id))
        check_result(result, self.function)
        return result

    def on_part(self, part: Any, sample_id: int, number: int) -> Any:
        """Return the result of the function for a part of a sample; each part has random numbers of its own."""
        result = self.function(part, self._generator(sample_id, number + 1))
        check_result(result, self.function)
        return result

    @property
    def max_concurrency(self) -> int:  # type: ignore[override]
        """Most samples in the function at a time; 0 if the function gets one sample after another."""
        return max_concurrency_of(self.function)

    def begin(self, sample: Any, sample_id: int, callers: Callers) -> Begun | None:
        """Begin a call of the function."""
        return _begun(self, callers, sample, self._generator(sample_id))

    def _generator(self, sample_id: int, *part: int) -> Any:
        words = (sample_id - self.first_id, self.number)
        word = key(self.seed or 0, self.epoch, "map", *(words if self.number or part else words[:1]), *part)
        return generator(word) if self.library == "numpy" else torch_generator(word)


@dataclass(frozen=True, slots=True)
class Filter(Stage):
    """A stage that drops samples if a function is false; ``refill`` fills batches up with further samples."""

    function: Callable[[Any], Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", as_function("filter()", self.function))

    def __repr__(self) -> str:
        return f"filter({name_of(self.function)})"

    def __call__(self, sample: Any, _: int) -> Any:
        """Return the sample, or `DROPPED`."""
        result = self.function(sample)
        check_result(result, self.function)
        return sample if result else DROPPED

    @property
    def max_concurrency(self) -> int:  # type: ignore[override]
        """Most samples in the function at a time; 0 if the function gets one sample after another."""
        return max_concurrency_of(self.function)

    def begin(self, sample: Any, _: int, callers: Callers) -> Begun | None:
        """Begin a call of the function."""
        return _begun(self, callers, sample)

    def unfiltered(self) -> tuple[Stage, ...]:
        """Return no stage."""
        return ()


def _begun(stage: Any, callers: Callers, *arguments: Any) -> Begun | None:
    """Begin a call of the stage's function; None if the function gets one sample after another."""
    function = concurrent_of(stage.function)
    if function is None:
        return None
    result = function.begin(callers, *arguments)
    return Begun(replace(stage, function=BegunCall(function, result)), result)


def filters_in(stages: Iterable[Stage]) -> Iterator[Filter]:
    """Yield the filters among stages and in the stages of each part."""
    return (stage for stage in each_stage(stages) if isinstance(stage, Filter))


def seeded(stages: Iterable[Stage], seed: int, *, first_number: int = 0) -> tuple[Stage, ...]:
    """Return the stages with the order's seed; stages of a kind get numbers from ``first_number`` on."""
    numbers: dict[type, Iterator[int]] = defaultdict(lambda: itertools.count(first_number))
    return tuple(stage.seeded(seed, numbers[stage.drawing_class]) for stage in stages)

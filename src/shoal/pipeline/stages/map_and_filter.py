"""Stages that call a function of the user: one maps samples, the other filters them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from shoal.pipeline.stages.stage import DROPPED, Stage, check_callable, each_stage, name_of


@dataclass(frozen=True, slots=True)
class Map(Stage):
    """A stage that applies a function to every sample."""

    function: Callable[[Any], Any]

    def __post_init__(self) -> None:
        check_callable("map()", self.function)

    def __repr__(self) -> str:
        return f"map({name_of(self.function)})"

    def __call__(self, sample: Any, _: int) -> Any:
        """Return the result of the function."""
        return self.function(sample)


@dataclass(frozen=True, slots=True)
class Filter(Stage):
    """A stage that keeps only samples for which a function is true."""

    function: Callable[[Any], Any]

    def __post_init__(self) -> None:
        check_callable("filter()", self.function)

    def __repr__(self) -> str:
        return f"filter({name_of(self.function)})"

    def __call__(self, sample: Any, _: int) -> Any:
        """Return the sample, or `DROPPED`."""
        return sample if self.function(sample) else DROPPED

    def unfiltered(self) -> tuple[Stage, ...]:
        """Return no stage."""
        return ()


def filters_in(stages: Iterable[Stage]) -> Iterator[Filter]:
    """Yield the filters among stages, the filters of each part included."""
    return (stage for stage in each_stage(stages) if isinstance(stage, Filter))

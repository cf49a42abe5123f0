"""Stages that make several samples of one: `flat_map`, and the stages behind it, which process each part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Self

from shoal.errors import UsageError
from shoal.pipeline.stages.callers import Callers
from shoal.pipeline.stages.concurrent_functions import Begun
from shoal.pipeline.stages.stage import DROPPED, Stage
from shoal.stats.counters import Counters

_SINGLE = (str, bytes, bytearray, memoryview, Mapping)


class Parts(list[Any]):
    """The parts of one sample; ``numbers`` has the number of each part among all parts of the sample, from 0 on."""

    def __init__(self, parts: Iterable[Any], numbers: Iterable[int]) -> None:
        super().__init__(parts)
        self.numbers = [*numbers]

    def __reduce__(self) -> tuple[object, ...]:
        return Parts, ([*self], self.numbers)


@dataclass(frozen=True, slots=True)
class _Around(Stage):
    """A stage around another stage."""

    stage: Stage

    @property
    def inner_stages(self) -> tuple[Stage, ...]:  # type: ignore[override]
        """The stage that this stage is around."""
        return (self.stage,)

    @property
    def drawing_class(self) -> type:
        """The class of the stage that this stage is around."""
        return self.stage.drawing_class

    def in_epoch(self, epoch: int) -> Self:
        """Return this stage for one epoch."""
        return replace(self, stage=self.stage.in_epoch(epoch))

    def seeded(self, seed: int, numbers: Iterator[int]) -> Self:
        """Return this stage with the seed of the order."""
        return replace(self, stage=self.stage.seeded(seed, numbers))

    def moved(self, first_id: int) -> Self:
        """Return this stage with ids that are larger by ``first_id``."""
        return replace(self, stage=self.stage.moved(first_id))

    def counting(self, count: Callable[[int], None]) -> Self:
        """Return this stage with a callback for the number of tokens."""
        return replace(self, stage=self.stage.counting(count))

    def metered(self, counters: Counters) -> Self:
        """Return this stage with the counters of a run."""
        return replace(self, stage=self.stage.metered(counters))

    def blames_data(self, error: Exception) -> bool:
        """Return True if the error means that the sample is damaged."""
        return self.stage.blames_data(error)


@dataclass(frozen=True, slots=True)
class FlatMap(_Around):
    """A stage that makes up to ``most`` parts of a sample; ``stage`` calls the function of the user.

    A sample without parts is `DROPPED`.
    """

    most: int

    def __repr__(self) -> str:
        return f"flat_{self.stage!r}"

    @property
    def max_concurrency(self) -> int:  # type: ignore[override]
        """Most samples in the function at a time; 0 if the function gets one sample after another."""
        return self.stage.max_concurrency

    def begin(self, sample: Any, sample_id: int, callers: Callers) -> Begun | None:
        """Begin a call of the function."""
        begun = self.stage.begin(sample, sample_id, callers)
        return None if begun is None else Begun(replace(self, stage=begun.stage), begun.result)

    def __call__(self, sample: Any, sample_id: int) -> Any:
        """Return the `Parts` of a sample; `UsageError` if there are too many, or the result is no list."""
        made = self.stage(sample, sample_id)
        if isinstance(made, _SINGLE) or not isinstance(made, Iterable):
            msg = f"the function of flat_map() returns the parts of a sample, but returned {type(made).__name__}"
            raise UsageError(msg, hint="return a list of samples; map() takes a function that returns one sample")
        parts = [*islice(made, self.most + 1)]
        if len(parts) > self.most:
            msg = f"flat_map(most={self.most}) was told of up to {self.most} parts, but this sample has more"
            raise UsageError(msg, hint="give a larger most=, or let the function return fewer parts")
        return Parts(parts, range(len(parts))) if parts else DROPPED


@dataclass(frozen=True, slots=True)
class EachPart(_Around):
    """A stage behind `flat_map`: ``stage`` processes each part; a sample without parts left is `DROPPED`."""

    def __repr__(self) -> str:
        return repr(self.stage)

    def __call__(self, sample: Any, sample_id: int) -> Any:
        """Return the parts that the stage does not drop."""
        made = [self.stage.on_part(part, sample_id, at) for part, at in zip(sample, sample.numbers, strict=True)]
        kept = [at for at, part in enumerate(made) if part is not DROPPED]
        return Parts([made[at] for at in kept], [sample.numbers[at] for at in kept]) if kept else DROPPED

    def unfiltered(self) -> tuple[Stage, ...]:
        """Return this stage without filters."""
        return tuple(EachPart(stage) for stage in self.stage.unfiltered())

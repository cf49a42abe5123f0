"""The protocol of a stage: a step between the bytes of a sample and its batch."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from shoal.pipeline.batch_rows import NextRows
from shoal.pipeline.stages.callers import Callers
from shoal.pipeline.stages.concurrent_functions import Begun
from shoal.stats.counters import Counters

DROPPED = object()
"""Result of a filter for a sample that it rejects."""


class Stage(ABC):
    """One processing step of a sample. A subclass needs `__call__`; the rest has defaults."""

    __slots__ = ()

    own_stages: tuple[tuple[Stage, ...], ...] = ()
    """The stages of each part of a join of datasets; empty if all samples go through this one."""

    inner_stages: tuple[Stage, ...] = ()
    """Stages that this stage runs on a part of each sample."""

    takes_columns = False
    """True if this stage processes the columns of a batch like samples."""

    refuses_missing = False
    """True if a source may not lack a field of another source."""

    tokenizes = False
    """True if this stage spends its time in a tokenizer, without the interpreter's lock."""

    token_identities: tuple[str, ...] = ()
    """Digests of what determines the tokens of this stage, such as a tokenizer, for states."""

    max_concurrency = 0
    """Most samples in this stage at a time; 0 if the stage gets one sample after another."""

    @abstractmethod
    def __call__(self, sample: Any, sample_id: Any, /) -> Any:
        """Return the sample after this step, or `DROPPED`."""

    def on_columns(self, columns: Any, sample_ids: Any) -> Any:
        """Return the columns of samples after this step; a column is a list or an array."""
        return self(columns, sample_ids)

    def on_run(self, samples: Sequence[Any], sample_ids: Sequence[int]) -> list[Any]:
        """Return consecutive samples after this step; an error need not name its sample, and no sample counts then."""
        return list(map(self, samples, sample_ids))

    def on_part(self, part: Any, sample_id: int, number: int) -> Any:  # noqa: ARG002
        """Return a part of a sample after this step; ``number`` counts the parts that `flat_map` made of the sample."""
        return self(part, sample_id)

    def begin(self, sample: Any, sample_id: int, callers: Callers) -> Begun | None:  # noqa: ARG002
        """Begin the call of this stage for a sample; None if there is no call to begin.

        The stage of the result has the errors and the notes of this stage.
        """
        return None

    def steps(self) -> tuple[Stage, ...]:
        """Return stages that do the same in turn; each begins one call for a sample, or none."""
        return (self,)

    def in_epoch(self, epoch: int) -> Stage:  # noqa: ARG002
        """Return this stage for one epoch."""
        return self

    @property
    def drawing_class(self) -> type:
        """The class that draws the random numbers of this stage; stages of a class are numbered."""
        return type(self)

    def seeded(self, seed: int, numbers: Iterator[int]) -> Stage:  # noqa: ARG002
        """Return this stage with the seed of the order, and the next of ``numbers`` if it draws random numbers."""
        return self

    def moved(self, first_id: int) -> Stage:  # noqa: ARG002
        """Return this stage for the same samples with ids that are larger by ``first_id``."""
        return self

    def unfiltered(self) -> tuple[Stage, ...]:
        """Return this stage without filters; an empty tuple if the stage is a filter."""
        return (self,)

    def counting(self, count: Callable[[int], None]) -> Stage:  # noqa: ARG002
        """Return this stage with ``count``, a callback for the number of tokens of each sample."""
        return self

    def metered(self, counters: Counters) -> Stage:  # noqa: ARG002
        """Return this stage with the counters of a run, if it counts more than tokens."""
        return self

    def filling(self, rows: NextRows) -> Stage:  # noqa: ARG002
        """Return this stage with ``rows``, the memory of the next samples' arrays."""
        return self

    @property
    def identity(self) -> object:
        """The arguments that determine the result of this stage, apart from the code of functions."""
        return re.sub(r" at 0x[0-9a-f]+", "", repr(self))

    @property
    def on_batch_columns(self) -> Stage:
        """The stage to run on gathered columns, after `own_stages`."""
        return self

    def blames_data(self, error: Exception) -> bool:  # noqa: ARG002
        """Return True if an error of this stage means that the sample is damaged."""
        return False


def verb_of(stage: Stage) -> str:
    """Return the name of the method that added a stage."""
    return repr(stage).partition("(")[0]


def in_epoch(stages: Iterable[Stage], epoch: int) -> tuple[Stage, ...]:
    """Return the stages for one epoch."""
    return tuple(stage.in_epoch(epoch) for stage in stages)


def steps_of(stages: Iterable[Stage]) -> tuple[Stage, ...]:
    """Return the stages as stages of one call each."""
    return tuple(step for stage in stages for step in stage.steps())


def stages_of(stages: tuple[Stage, ...], part: int) -> tuple[Stage, ...]:
    """Return the stages that the samples of one part go through."""
    own = stages[0].own_stages if stages else ()
    return (*own[part], *stages[1:]) if own else stages


def each_stage(stages: Iterable[Stage]) -> Iterator[Stage]:
    """Yield the stages and their inner stages; the stages of each part replace the stage that runs them."""
    for stage in stages:
        if not stage.own_stages:
            yield stage
        yield from each_stage(stage.inner_stages)
        for own in stage.own_stages:
            yield from each_stage(own)

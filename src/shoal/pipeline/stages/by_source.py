"""Stages of a mixture: each source has stages of its own, a name, and perhaps values for missing fields."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.pipeline.batch_rows import NextRows
from shoal.pipeline.stages.callers import Callers
from shoal.pipeline.stages.concurrent_functions import Begun
from shoal.pipeline.stages.running import DecodeError, FieldError
from shoal.pipeline.stages.stage import DROPPED, Stage, in_epoch
from shoal.pipeline.stages.with_ids import WithIds
from shoal.stats.counters import Counters

NONE = "none"
"""The value of ``missing`` in `shoal.mix` that puts None in place of missing fields."""


@dataclass(frozen=True, slots=True)
class BySource(Stage):
    """A stage that runs a sample of a mixture through the stages of its own source, and adds ``__source__``.

    ``names``, ``first_ids`` (ascending) and ``stages`` have an entry for each source. ``missing`` is the argument of
    `shoal.mix` for fields that a source lacks.
    """

    names: tuple[str, ...]
    first_ids: tuple[int, ...]
    stages: tuple[tuple[Stage, ...], ...]
    missing: Mapping[str, Any] | str | None = None
    adds_names: bool = True

    @property
    def own_stages(self) -> tuple[tuple[Stage, ...], ...]:  # type: ignore[override]
        """The stages of each source."""
        return self.stages

    @property
    def refuses_missing(self) -> bool:  # type: ignore[override]
        """True unless `shoal.mix` got ``missing="none"``."""
        return self.missing != NONE

    def in_epoch(self, epoch: int) -> BySource:
        """Return this stage for one epoch."""
        return replace(self, stages=tuple(in_epoch(stages, epoch) for stages in self.stages))

    def __repr__(self) -> str:
        return "the stages of a source"

    def __call__(self, sample: Any, sample_id: int) -> Any:
        """Return the sample after the stages of its source, or `DROPPED`."""
        source = bisect_right(self.first_ids, sample_id) - 1
        for stage in self.stages[source]:
            try:
                sample = stage(sample, sample_id)
            except Exception as error:
                error.add_note(f"shoal: in {stage!r} of the source {self.names[source]!r}")
                if stage.blames_data(error) and not isinstance(error, FieldError):
                    raise DecodeError(error) from None
                raise
            if sample is DROPPED:
                return DROPPED
        return NameSource(self.names[source])(sample, sample_id) if self.adds_names else sample

    @property
    def max_concurrency(self) -> int:  # type: ignore[override]
        """The most samples of any stage of a source."""
        return max((stage.max_concurrency for own in self.stages for stage in own), default=0)

    def begin(self, sample: Any, sample_id: int, callers: Callers) -> Begun | None:
        """Begin the call of the only stage of a step; None for samples of other sources."""
        source = bisect_right(self.first_ids, sample_id) - 1
        if len(self.stages[source]) != 1 or self.adds_names:
            return None
        begun = self.stages[source][0].begin(sample, sample_id, callers)
        return None if begun is None else begun._replace(stage=self._step(source, (begun.stage,)))

    def steps(self) -> tuple[Stage, ...]:
        """Return a step for each stage that processes several samples at a time, and for the stages between them."""
        steps: list[Stage] = []
        rest: list[tuple[Stage, ...]] = []
        for source, own in enumerate(self.stages):
            in_turn: list[Stage] = []
            for stage in own:
                if not stage.max_concurrency:
                    in_turn.append(stage)
                    continue
                steps += [self._step(source, tuple(in_turn))] if in_turn else []
                steps.append(self._step(source, (stage,)))
                in_turn = []
            rest.append(tuple(in_turn))
        return (*steps, replace(self, stages=tuple(rest))) if steps else (self,)

    def _step(self, source: int, own: tuple[Stage, ...]) -> BySource:
        """Return a stage that runs samples of one source through stages, and adds no names."""
        stages = tuple(own if number == source else () for number in range(len(self.stages)))
        return replace(self, stages=stages, adds_names=False)

    @property
    def takes_columns(self) -> bool:  # type: ignore[override]
        """True if the stages of all sources take columns; only columns of whole batches get ids."""
        return all(stage.takes_columns and not isinstance(stage, WithIds) for own in self.stages for stage in own)

    @property
    def on_batch_columns(self) -> NameSources:
        """The stage that adds only ``__source__``."""
        return NameSources(np.array(self.names, dtype=object), np.array(self.first_ids, dtype=np.int64))

    def unfiltered(self) -> tuple[Stage, ...]:
        """Return this stage without the filters of sources."""
        kept = tuple(tuple(left for stage in own for left in stage.unfiltered()) for own in self.stages)
        return (replace(self, stages=kept),)

    def filling(self, rows: NextRows) -> BySource:
        """Return this stage with memory for the arrays of all sources."""
        return replace(self, stages=tuple(tuple(stage.filling(rows) for stage in own) for own in self.stages))

    def counting(self, count: Callable[[int], None]) -> BySource:
        """Return this stage with the tokens of all sources counted."""
        return replace(self, stages=tuple(tuple(stage.counting(count) for stage in own) for own in self.stages))

    def metered(self, counters: Counters) -> BySource:
        """Return this stage with the counters of a run."""
        return replace(self, stages=tuple(tuple(stage.metered(counters) for stage in own) for own in self.stages))


@dataclass(frozen=True, slots=True)
class NameSource(Stage):
    """A stage that adds the name of its source to a sample; in a nested mixture, the name of the inner dataset."""

    name: str

    def __call__(self, sample: Any, _: int) -> Any:
        """Return the sample with ``__source__``; `UsageError` if a stored field has that name."""
        if not isinstance(sample, Mapping):
            return sample
        if "__source__" in sample and "/" not in self.name:
            msg = f"samples of {self.name!r} have a field '__source__', the name that a mixture gives to its sources"
            raise UsageError(msg, hint='.rename(origin="__source__") on that source, before mix()')
        return {**sample, "__source__": self.name}


@dataclass(frozen=True, slots=True)
class FillMissing(Stage):
    """A stage that gives values to fields that a sample lacks."""

    takes_columns = True

    values: Mapping[str, Any]

    def __call__(self, sample: Any, _: int) -> Any:
        """Return the sample with these fields."""
        if not isinstance(sample, Mapping):
            return sample
        return {**sample, **{name: value for name, value in self.values.items() if name not in sample}}


@dataclass(frozen=True, slots=True, eq=False)
class NameSources(Stage):
    """A stage that adds the name of its source to each sample, or to columns with an id for each row.

    ``names`` and ``first_ids``, the first sample id of each source, have the shape (num_sources,).
    """

    names: NDArray[Any]
    first_ids: NDArray[np.int64]

    def __repr__(self) -> str:
        return "the names of sources"

    def __call__(self, sample: Any, sample_id: Any) -> Any:
        """Return the sample or the columns with ``__source__``; `UsageError` if a stored field has that name."""
        names = self.names[np.searchsorted(self.first_ids, sample_id, side="right") - 1]
        if not isinstance(sample_id, np.ndarray):
            return NameSource(names)(sample, sample_id)
        if "__source__" in sample:
            for name in dict.fromkeys(names):
                NameSource(name)(sample, -1)
        return {**sample, "__source__": names.tolist()}

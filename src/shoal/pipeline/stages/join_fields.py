"""The stage of a join: it puts the fields of a sample and of its partner together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from shoal.errors import UsageError
from shoal.pipeline.batch_rows import NextRows
from shoal.pipeline.stages.running import DecodeError, FieldError
from shoal.pipeline.stages.stage import Stage, in_epoch
from shoal.reading.beside.partners import Partner, Together
from shoal.stats.counters import Counters


@dataclass(frozen=True, slots=True)
class JoinFields(Stage):
    """A stage that joins a sample with its first partner, which goes through the ``stages`` of its dataset before.

    The fields ``shared``, such as the key, are those of the left side. ``missing`` has values of fields for samples
    without a partner. ``words`` describe the join.
    """

    stages: tuple[Stage, ...] = ()
    shared: frozenset[str] = frozenset()
    missing: Mapping[str, Any] = field(default_factory=dict)
    words: str = "join()"

    @property
    def inner_stages(self) -> tuple[Stage, ...]:  # type: ignore[override]
        """The stages of partners."""
        return self.stages

    def __repr__(self) -> str:
        return self.words

    def __call__(self, together: Together, _: int) -> Any:
        """Return the joined sample, with the other partners if there are any.

        Raises `UsageError` if both sides have a field, or a side is no dict of fields.
        """
        sample, (partner, *others) = together
        joined = self._joined(sample, partner)
        return Together(joined, tuple(others)) if others else joined

    def _joined(self, sample: Any, partner: Partner) -> dict[str, Any]:
        partner_id, fields = partner
        if fields is None:
            self._check(sample, self.missing)
            return {**sample, **self.missing}
        for stage in self.stages:
            try:
                fields = stage(fields, partner_id)
            except Exception as error:
                error.add_note(f"shoal: in {stage!r} of sample {partner_id} of the joined dataset")
                if stage.blames_data(error) and not isinstance(error, FieldError):
                    raise DecodeError(error) from None
                raise
        self._check(sample, fields)
        joined = {**sample, **fields}
        for name in self.shared:
            if name in sample:
                joined[name] = sample[name]
        return joined

    def _check(self, sample: Any, partner: Any) -> None:
        if not isinstance(partner, Mapping) or not isinstance(sample, Mapping):
            odd = sample if not isinstance(sample, Mapping) else partner
            msg = f"join() joins the fields of samples, but a sample is a {type(odd).__name__}"
            raise UsageError(msg, hint="put to_tuple(), and a map() that returns no dict, after join()")
        if both := (sample.keys() & partner.keys()) - self.shared:
            self._refuse(sorted(map(str, both)))

    def _refuse(self, names: list[str]) -> NoReturn:
        new = f"{names[0]}_joined=" if names[0].isidentifier() else "new_name="
        msg = f"both sides of {self.words} have the field {names[0]!r}"
        msg += f", and {', '.join(map(repr, names[1:]))}" if names[1:] else ""
        hint = f'rename it on the joined dataset before: join(other.rename({new}"{names[0]}")), or choose its fields'
        raise UsageError(msg, hint=f"{hint}: join(other.columns(...))")

    def in_epoch(self, epoch: int) -> JoinFields:
        """Return this stage for one epoch."""
        return replace(self, stages=in_epoch(self.stages, epoch))

    def counting(self, count: Callable[[int], None]) -> JoinFields:
        """Return this stage with the tokens of partners counted."""
        return replace(self, stages=tuple(stage.counting(count) for stage in self.stages))

    def metered(self, counters: Counters) -> JoinFields:
        """Return this stage with the counters of a run."""
        return replace(self, stages=tuple(stage.metered(counters) for stage in self.stages))

    def filling(self, rows: NextRows) -> JoinFields:
        """Return this stage with memory for the arrays of partners."""
        return replace(self, stages=tuple(stage.filling(rows) for stage in self.stages))

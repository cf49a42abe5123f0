"""Batches of a fixed number of samples, shared among ranks so that a column has about equal sums (``balance=``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from shoal.arguments import as_text
from shoal.errors import UsageError
from shoal.order.position_subsets import Gaps
from shoal.pipeline.stages.stage import Stage
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.order_request import Selection
from shoal.reading.resolved_epochs import Source
from shoal.reading.resolved_order import Resolved, ResolvedOrder
from shoal.stream.dataset_spec import DatasetSpec
from shoal.stream.groups.column_costs import cost_column, whole_costs
from shoal.stream.iterating.batcher import Batcher
from shoal.stream.iterating.cut_batches import CutBatches
from shoal.stream.iterating.rows import Rows
from shoal.stream.verbs.dataset_requests import ATTENTION


class WeighedBatches(CutBatches):
    """Batches cut from samples with costs."""

    weighs = True


@dataclass(frozen=True, slots=True)
class WeighedRows(Rows):
    """Rows of one sample each, with a cost in a column of the index."""

    column: str
    needs_index = True

    @property
    def words(self) -> list[str]:
        """Description of the balance for the summary of a dataset."""
        return [f"balanced by {self.column!r}"]

    def batcher(self, source: Source, stages: Sequence[Stage], *, batched: bool) -> Batcher:  # noqa: ARG002
        """Return the batcher of samples with costs."""
        return WeighedBatches()

    def resolved(
        self, resolved: Callable[[Selection], Resolved], selection: Callable[[Gaps], Selection], gaps: Gaps
    ) -> Resolved:
        """Return the epochs of samples with costs."""
        samples = cast("ResolvedOrder | ResolvedMixture", resolved(selection(gaps)))
        return replace(samples, weights=whole_costs(cost_column(samples.parts, self.column, "balance=")))


def balanced_by_column(spec: DatasetSpec, balance: Any) -> DatasetSpec:
    """Return a dataset whose batches may be balanced by a column; unchanged without a column."""
    if balance is None:
        return spec
    column = as_text("batch(balance=)", balance, hint="the name of a column of the index")
    if column == ATTENTION:
        return spec
    if type(spec.rows) is not Rows:
        made_by = spec.rows.verb or spec.rows.divider or "filter(refill=True)"
        msg = f"batch(balance={column!r}) weighs samples by a column, but was called after {made_by}"
        hint = f'balance="{ATTENTION}" weighs sequences' if spec.rows.verb else "select() instead of filter()"
        raise UsageError(msg, hint=hint)
    return replace(spec, rows=WeighedRows(column))

"""Arguments of ``batch(limits=)``, and the costs of samples in the index."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shoal.arguments import as_text, with_type
from shoal.errors import UsageError
from shoal.figures import counted
from shoal.order.groups.cost_batches import CostBatches
from shoal.order.position_subsets import NO_GAPS, Gaps
from shoal.pipeline.stages.stage import Stage
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.order_request import Selection
from shoal.reading.resolved_epochs import Source
from shoal.reading.resolved_order import Resolved, ResolvedOrder
from shoal.reading.resolved_sequences import ResolvedSequences
from shoal.stream.groups.column_costs import cost_column
from shoal.stream.groups.grouped_batches import GroupedBatches
from shoal.stream.iterating.batcher import Batcher
from shoal.stream.iterating.rows import Rows

_WHOLE = 1 << 32
"""Fractions of a limit, for costs that are no whole numbers: rounded up, so that sums stay within the limit."""
_MOST_SHARE = 1 << 20
_COUNTED_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class CostRequest(Rows):
    """Batches within the limits of costs in columns of the index."""

    batches: CostBatches
    noun = "samples"
    verb = "batch(limits=)"
    needs_index = True

    @classmethod
    def of_arguments(cls, limits: Any, size: Any, **how: Any) -> CostRequest:
        """Return the request for the arguments of `Dataset.batch`; `UsageError` for invalid arguments."""
        if not isinstance(limits, Mapping) or not limits:
            msg = f"batch(limits=) takes limits by column of the index; got {with_type(limits)}"
            raise UsageError(msg, hint='limits={"num_tokens": 8192, "image_tiles": 32}')
        for column, limit in limits.items():
            as_text("each column of batch(limits=)", column)
            if isinstance(limit, bool) or not isinstance(limit, Real) or not 0 < float(limit) < 2**62:
                msg = f"batch(limits=): the limit of {column!r} must be a number above 0; got {with_type(limit)}"
                raise UsageError(msg, hint="the most that the samples of a batch cost together")
        plain = {
            column: int(limit) if isinstance(limit, Integral) else float(limit) for column, limit in limits.items()
        }
        return cls(CostBatches(plain, size, **how))

    @property
    def kind(self) -> str:
        """Description of the batches for the summary of a dataset."""
        return "within " + " and ".join(f"{limit:,} {column}" for column, limit in self.batches.limits.items())

    def batcher(self, source: Source, stages: Sequence[Stage], *, batched: bool) -> Batcher:  # noqa: ARG002
        """Return the batcher of samples within limits."""
        return GroupedBatches(num_too_large)

    def resolved(
        self, resolved: Callable[[Selection], Resolved], selection: Callable[[Gaps], Selection], gaps: Gaps
    ) -> Resolved:
        """Return the epochs of batches."""
        samples = cast("ResolvedOrder | ResolvedMixture", resolved(selection(NO_GAPS)))
        columns, scaled = list[NDArray[np.int64]](), list[int]()
        for column, limit in self.batches.limits.items():
            of_column = cost_column(samples.parts, column, "limits=")
            if of_column.dtype.kind == "f" or isinstance(limit, float):
                shares = np.minimum(of_column / float(limit), _MOST_SHARE)  # a cost of the limit is exactly 1.0
                columns.append(np.ceil(shares * _WHOLE).astype(np.int64))
                scaled.append(_WHOLE)
            else:
                columns.append(of_column.astype(np.int64, copy=False))
                scaled.append(int(limit))
        costs: NDArray[np.int64] = np.stack(columns, axis=1)
        batches = replace(self.batches, scaled=tuple(scaled))
        if batches.too_large == "refuse" and (beyond := batches.are_too_large(costs)).any():
            _refuse(samples.parts, batches, int(beyond.argmax()), int(beyond.sum()))
        return ResolvedSequences(samples, batches, costs, gaps)


def num_too_large(resolved: ResolvedSequences, epoch: int) -> int:
    """Return the number of samples of an epoch that cost more than a limit."""
    order, beyond = resolved.documents.epoch(epoch), cast("CostBatches", resolved.packing).are_too_large
    total, size = order.num_samples, _COUNTED_AT_ONCE
    spans = (order.ids(begin, min(begin + size, total)) for begin in range(0, total, size))
    return sum(int(beyond(cast("NDArray[np.int64]", resolved.lengths[ids])).sum()) for ids in spans)


def _refuse(parts: Sequence[ResolvedOrder], batches: CostBatches, sample_id: int, num_samples: int) -> None:
    costs = {column: cost_column(parts, column, "limits=")[sample_id] for column in batches.limits}
    column = next(name for name, limit in batches.limits.items() if costs[name] > limit)
    msg = f"the sample with id {sample_id} has {costs[column]:,.12g} {column}, but a batch has at most "
    msg += f"{batches.limits[column]:,}; {counted(num_samples, 'sample')} of the index are above a limit"
    raise UsageError(msg, hint='too_large="drop" leaves such samples out; or larger limits=, or select() other samples')

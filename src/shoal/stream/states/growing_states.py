"""When a run may go on in the growing order: it may have begun in that order, or in a window over all shards."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from shoal.errors import StateError
from shoal.indexing.growing.unindexed import Unindexed
from shoal.indexing.opened_dataset import Opened
from shoal.order.state_dict import State
from shoal.reading.growing.resolved_growing import ResolvedGrowing, growing_as_saved
from shoal.reading.growing.resolved_segments import Growing
from shoal.reading.order_request import OrderRequest
from shoal.reading.resolved_order import Resolved
from shoal.stream.dataset_spec import DatasetSpec


def order_as_saved(spec: DatasetSpec, resolved: Resolved, saved: State) -> Resolved:
    """Return the order of a state: the growing order, or the window over all shards.

    `StateError` if the state has the growing order, and this dataset cannot have it.
    """
    is_growing = saved.order.get("name") == Growing.name
    if is_growing and not spec.can_begin_early:
        msg = f"the state was saved in the growing order of shuffle(); this stream is {spec.summary()}"
        hint = "that order has all samples in a window: no select(), sample() or other order, and no lengths to pack"
        raise StateError(msg, hint=hint)
    if not is_growing:
        return replace(spec, grows=False).resolve() if isinstance(resolved, ResolvedGrowing) else resolved
    growing = growing_as_saved(cast("Opened | Unindexed", spec.source), cast("OrderRequest", spec.request), saved)
    if isinstance(resolved, ResolvedGrowing) and resolved.state_order == growing.state_order:
        return resolved
    return replace(growing, delivered=spec.delivered, gaps=spec.gaps)

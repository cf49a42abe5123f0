"""Rules for beginning and resuming a run in the growing order, before all shards are indexed."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import cast

from shoal.errors import StateError
from shoal.indexing.growing.unindexed import Unindexed
from shoal.indexing.indexing_estimate import LONG_SECONDS
from shoal.indexing.opened_dataset import Opened
from shoal.order.state_dict import State
from shoal.reading.growing.resolved_growing import ResolvedGrowing, growing_as_saved
from shoal.reading.growing.resolved_segments import Growing
from shoal.reading.order_request import OrderRequest
from shoal.reading.resolved_order import Resolved
from shoal.stream.dataset_spec import DatasetSpec

_log = logging.getLogger("shoal")

BEGINNINGS = ("grow", "wait")
"""Words of ``shoal.open(index=)``: begin with the first shards, or wait for all shards."""


def begins_early(shards: Opened | Unindexed, beginning: str | None) -> bool:
    """Return True if `Dataset.shuffle` should not wait for an index: by ``index=``, or because indexing takes long.

    With several ranks, a rank waits unless ``index="grow"`` is given: ranks would disagree if only some ranks found a
    new index.
    """
    if beginning is not None or not isinstance(shards, Unindexed) or not shards.can_grow:
        return beginning == "grow"
    estimate = shards.estimate
    if not estimate.takes_long:
        return False
    is_alone = shards.making.job_rank is None
    advice = 'shuffle() begins with the first shards, in a growing order; index="wait" waits for all shards'
    if not is_alone:
        advice = 'all ranks wait for the index; index="grow" begins with the first shards, in a growing order'
    _log.info("%s: %s; %s", shards.making.what.source.typed, estimate, advice)
    return is_alone


def whole_of(shards: Opened | Unindexed, *, is_chosen: bool) -> Opened:
    """Return all shards with their index; after a long unexpected wait, log the faster alternative."""
    began_seconds = time.perf_counter()
    opened, waited_seconds = shards.whole, time.perf_counter() - began_seconds
    if isinstance(shards, Unindexed) and shards.can_grow and waited_seconds > LONG_SECONDS and not is_chosen:
        text = '%s: opening waited %.1f s for the index; index="grow" begins with the first shards'
        _log.info(text, shards.making.what.source.typed, waited_seconds)
    return opened


def order_as_saved(spec: DatasetSpec, resolved: Resolved, saved: State) -> Resolved:
    """Return the order of a state: the growing order, or the window over all shards.

    `StateError` if the state has the growing order, and this dataset cannot use the growing order.
    """
    is_growing = saved.order.get("name") == Growing.name
    if is_growing and not spec.can_begin_early:
        msg = f"the state was saved in the growing order of shuffle(); this stream is {spec.summary()}"
        hint = "the growing order is a window over all samples, without select(), sample(), or packing by lengths"
        raise StateError(msg, hint=hint)
    if not is_growing:
        return replace(spec, grows=False).resolve() if isinstance(resolved, ResolvedGrowing) else resolved
    growing = growing_as_saved(cast("Opened | Unindexed", spec.source), cast("OrderRequest", spec.request), saved)
    if isinstance(resolved, ResolvedGrowing) and resolved.state_order == growing.state_order:
        return resolved
    return replace(growing, delivered=spec.delivered, gaps=spec.gaps)

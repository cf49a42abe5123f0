"""The choice of beginning to stream before all shards are indexed, when a dataset is opened."""

from __future__ import annotations

import logging
import time

from shoal.indexing.growing.unindexed import Unindexed
from shoal.indexing.indexing_estimate import LONG_SECONDS
from shoal.indexing.opened_dataset import Opened

_log = logging.getLogger("shoal")

BEGINNINGS = ("grow", "wait")
"""Words that ``shoal.open(index=)`` takes beside an index: begin with the first shards, or wait for all."""


def begins_early(found: Opened | Unindexed, wanted: str | None) -> bool:
    """Return True if `Dataset.shuffle` should not wait for an index: as ``index=`` says, or if indexing takes long.

    Unless it is asked for, a rank of several always waits: ranks would disagree if one of them found the index that
    another has just made.
    """
    if wanted is not None or not isinstance(found, Unindexed) or not found.can_grow:
        return wanted == "grow"
    estimate = found.estimate
    if not estimate.takes_long:
        return False
    is_alone = found.making.job_rank is None
    text = "%s: %s; %s"
    what = 'shuffle() begins with the first shards meanwhile, in an order of its own: index="wait" waits for all'
    if not is_alone:
        what = 'all ranks wait for it: index="grow" begins with the first shards meanwhile, in an order of its own'
    _log.info(text, found.making.what.source.asked, estimate, what)
    return is_alone


def whole_of(found: Opened | Unindexed, *, is_chosen: bool) -> Opened:
    """Return all shards with their index; say what would have been sooner if that took long, as nobody expected."""
    began_seconds = time.perf_counter()
    opened, waited_seconds = found.whole, time.perf_counter() - began_seconds
    if isinstance(found, Unindexed) and found.can_grow and waited_seconds > LONG_SECONDS and not is_chosen:
        text = '%s: opening waited %.1f s for the index; index="grow" begins with the first shards meanwhile'
        _log.info(text, found.making.what.source.asked, waited_seconds)
    return opened

"""A sample together with the sample of another dataset that has the same key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shoal.indexing.opened_dataset import Opened
from shoal.reading.checks.damaged_samples import Damaged, read_sample, salvaged_sample
from shoal.reading.remote.request_stats import RequestStats


class Pair(NamedTuple):
    """A sample, and its partner in another dataset with the partner's id there; ``partner`` is None without one."""

    sample: Any
    partner_id: int
    partner: Any


def paired(sample: Any, partner_id: int, partner: Any) -> Any:
    """Return a pair; the damage of one side is the damage of the pair."""
    if type(sample) is Damaged:
        return sample
    return partner if type(partner) is Damaged else Pair(sample, partner_id, partner)


def read_together(opened: Opened, sample_id: int, stats: RequestStats | None = None, *, verifies: bool = False) -> Any:
    """Read one sample by id, and its partners in companions of the dataset; arguments and errors as `read_sample`."""
    return _together(opened, sample_id, lambda part, number: read_sample(part, number, stats, verifies=verifies))


def salvaged_together(opened: Opened, sample_id: int, stats: RequestStats | None = None) -> Any:
    """Read one sample and its partners, or return the damage of any of them; see `salvaged_sample`."""
    return _together(opened, sample_id, lambda part, number: salvaged_sample(part, number, stats))


def _together(opened: Opened, sample_id: int, read: Callable[[Opened, int], Any]) -> Any:
    sample = read(opened, sample_id)
    for companion in opened.companions:
        partner_id = int(companion.kept.alignment.partners(np.array([sample_id]))[0])
        partner = _together(companion.opened, partner_id, read) if partner_id >= 0 else None
        sample = paired(sample, partner_id, partner)
    return sample

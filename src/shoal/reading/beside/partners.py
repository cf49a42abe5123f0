"""A sample together with samples of other datasets that have the same key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shoal.indexing.opened_dataset import Opened
from shoal.reading.checks.damaged_samples import Damaged, read_sample, salvaged_sample
from shoal.reading.remote.request_stats import RequestStats


class Partner(NamedTuple):
    """A sample of another dataset, with its id there; ``sample`` is None if no sample has the key."""

    sample_id: int
    sample: Any


class Together(NamedTuple):
    """A sample and its partners, one for each companion of its dataset."""

    sample: Any
    partners: tuple[Partner, ...]


def put_together(sample: Any, partner_id: int, partner: Any) -> Any:
    """Add a partner to a sample, perhaps after other partners; the damage of one is the damage of all."""
    if type(sample) is Damaged:
        return sample
    if type(partner) is Damaged:
        return partner
    own, partners = sample if type(sample) is Together else (sample, ())
    return Together(own, (*partners, Partner(partner_id, partner)))


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
        sample = put_together(sample, partner_id, partner)
    return sample

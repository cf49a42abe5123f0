"""One sample by its id, in a read of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.plan.units import RecordUnits
from shoal.stream.arrangement import Arrangement
from shoal.stream.indexing.opening import Opened
from shoal.stream.reading.damage import verified_sample
from shoal.stream.reading.unit_bytes import read_records

__all__ = ["read_sample"]


def read_sample(opened: Opened, arrangement: Arrangement, sample_id: int, *, verifies: bool = False) -> Any:
    """One sample by id, read on its own; with ``verifies`` in its whole extent, if that has a checksum."""
    if verifies and arrangement.index.extent_checksum is not None:
        return verified_sample(opened, sample_id)
    read = RecordUnits(arrangement.index).reads(np.array([sample_id]))[0]
    return read_records(opened, read).sample(sample_id - read.first_sample)

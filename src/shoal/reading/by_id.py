"""Access to one sample by its id, in a read of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.indexing.open_source import Opened
from shoal.reading.checks.damaged import verified_sample
from shoal.reading.checks.verified_read import read_records
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.schedule.units import RecordUnits


def read_sample(opened: Opened, arrangement: ResolvedOrder, sample_id: int, *, verifies: bool = False) -> Any:
    """Read one sample by id; with ``verifies`` its whole extent is read, if that has a checksum."""
    if verifies and arrangement.index.extent_checksum is not None:
        return verified_sample(opened, sample_id)
    read = RecordUnits(arrangement.index).reads(np.array([sample_id]))[0]
    return read_records(opened, read).sample(sample_id - read.first_sample)

"""Blocks of many records in one buffer, with all that the index of their shard needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shoal.index.shard_scan import Buffer


@dataclass(frozen=True, slots=True, eq=False)
class RecordBlock:
    """Records of a format of rows one after the other; all arrays have shape (num_records,).

    ``data`` are their bytes, ``num_bytes`` the size of each, ``layout_crcs`` their values in `ShardScan.layout_crcs`,
    ``crcs`` the CRC-32 of the bytes of each. ``columns`` has values for the index, by their paths in a sample.
    """

    data: Buffer
    num_bytes: NDArray[np.int64]
    layout_crcs: NDArray[np.uint32]
    crcs: NDArray[np.uint32]
    columns: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def num_records(self) -> int:
        """Number of records."""
        return len(self.num_bytes)

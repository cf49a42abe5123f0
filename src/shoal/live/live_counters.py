"""Counters of a live stream, the source of `LiveDataset.stats`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class LiveCounters:
    """Counts since the dataset object was made.

    ``num_taken`` samples came from the source: ``num_samples`` of them were delivered, in ``num_batches``,
    ``num_filtered`` dropped by a filter, and at ``num_failed`` a function raised an error. ``num_recalled`` samples
    were read again after a resume, or came from the contents of a state; ``num_lost`` were in the buffer of a run whose
    state could not give them back. ``num_waits`` is how often there was nothing to take, and ``wait_seconds`` the time
    spent waiting. Of a followed directory, ``num_files`` were begun, of which ``num_late_files`` came when one
    that sorts after them had been read. ``num_buffered`` samples are in the buffer now, of ``buffer_bytes`` if its size
    is in bytes.
    """

    num_taken: int = 0
    num_samples: int = 0
    num_batches: int = 0
    num_filtered: int = 0
    num_failed: int = 0
    num_recalled: int = 0
    num_lost: int = 0
    num_waits: int = 0
    wait_seconds: float = 0.0
    num_files: int = 0
    num_late_files: int = 0
    num_buffered: int = 0
    buffer_bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the counts by name."""
        return asdict(self)

"""What a stream has done so far, counted: the source of `Dataset.stats`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Counters"]


@dataclass(slots=True)
class Counters:
    """Counts since the dataset object was made, over all of its iterators in this process.

    ``num_rereads`` are reads of a unit that an iterator had let go before; ``num_repeats`` samples that were delivered
    a second time, marked in ``__pad__``; ``num_skipped`` samples that were due and left out because they are damaged,
    of which ``skipped_ids`` lists the first 1,000; ``wait_seconds`` the time in which the consumer stood still for a
    read.
    """

    num_samples: int = 0
    num_batches: int = 0
    num_repeats: int = 0
    num_filtered: int = 0
    num_skipped: int = 0
    skipped_ids: list[int] = field(default_factory=list)
    num_reads: int = 0
    num_rereads: int = 0
    read_bytes: int = 0
    peak_held_bytes: int = 0
    wait_seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The counts by name."""
        return asdict(self)

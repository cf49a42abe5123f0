"""Samples that have a read of their own, from wherever their shards lie."""

from __future__ import annotations

from shoal.plan.units import Units
from shoal.stream.counters import Counters
from shoal.stream.indexing.opening import Opened
from shoal.stream.reading.far_singles import FarSingles
from shoal.stream.reading.local_singles import LocalSingles
from shoal.stream.reading.options import ReadingOptions

__all__ = ["Singles", "singles_of"]

Singles = LocalSingles | FarSingles


def singles_of(
    opened: Opened, units: Units, counters: Counters, *, ahead_limit_bytes: int, options: ReadingOptions
) -> Singles:
    """What reads them: the consumer where the system reads ahead for it, else threads."""
    kind: type[LocalSingles | FarSingles] = LocalSingles if opened.store.reads_ahead else FarSingles
    return kind(opened, units, counters, ahead_limit_bytes=ahead_limit_bytes, options=options)

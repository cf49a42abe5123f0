"""Samples that each have a read of their own, from local or remote shards."""

from __future__ import annotations

from shoal.indexing.open_source import Opened
from shoal.reading.local.local_samples import LocalSingles
from shoal.reading.options import ReadingOptions
from shoal.reading.remote.remote_samples import FarSingles
from shoal.reading.schedule.units import Units
from shoal.stats.counters import Counters

Singles = LocalSingles | FarSingles


def singles_of(
    opened: Opened, units: Units, counters: Counters, *, ahead_limit_bytes: int, options: ReadingOptions
) -> Singles:
    """Return the reader of single samples: the consumer itself if the system reads ahead for it, else threads."""
    kind: type[LocalSingles | FarSingles] = LocalSingles if opened.store.reads_ahead else FarSingles
    return kind(opened, units, counters, ahead_limit_bytes=ahead_limit_bytes, options=options)

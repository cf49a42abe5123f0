"""The samples of one dataset in a span, planned as a whole: by units ahead of their use, or one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.reading.fetcher import Fetcher
from shoal.reading.local.local_samples import LocalSamples
from shoal.reading.remote.remote_samples import RemoteSamples
from shoal.reading.schedule.lifetimes import handed_on
from shoal.reading.schedule.memory_division import Budget

_NOTHING = np.zeros(0, dtype=np.int64)

SampleReader = Fetcher | LocalSamples | RemoteSamples
"""A reader of whole units, or of samples one by one."""


class OwnSamples(NamedTuple):
    """The ids of samples in one dataset, and the units that hold the samples; both of shape (num_samples,)."""

    ids: NDArray[np.int64] = _NOTHING
    units: NDArray[np.int64] = _NOTHING


def runs_of(reader: SampleReader, budget: Budget, of_span: OwnSamples, after: OwnSamples) -> Iterator[list[Any]]:
    """Return an iterator over lists of samples that are in memory together, and plan the reads of the span now.

    ``after`` are the samples of the next span. With limited memory only this span is read ahead, since the next span
    decides which units stay.
    """
    if not isinstance(reader, Fetcher):
        return ([sample] for sample in reader.samples(of_span.ids.tolist(), of_span.units))
    drops = list[int]()
    if budget.keeping is None:
        reads, last = handed_on(of_span.units, after.units)
    else:
        reads, last, drops = budget.keeping.plan(of_span.units, after.units)
    reader.read_ahead(reads)
    return reader.runs(of_span.ids.tolist(), of_span.units.tolist(), last.tolist(), drops)

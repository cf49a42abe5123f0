"""The run of an object that users hold: a dataset, a loader of shoal, a live stream, or anything with `stats`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from shoal.errors import UsageError
from shoal.live.live_dataset import LiveDataset
from shoal.stream.dataset import Dataset
from shoal.watch.run_meter import CounterMeter, Measured, measure_of_stats


class WatchedObject(NamedTuple):
    """The counts and times of an object's run."""

    stats: Callable[[], Mapping[str, Any]]
    measure: Callable[[], Measured]
    is_live: bool = False


def watched(run: Any) -> WatchedObject:
    """Return the counts and times of a dataset, a loader of shoal, a live stream, or an object with `stats`.

    Raises
    ------
    UsageError
        The object has no method `stats`.
    """
    stats = getattr(run, "stats", None)
    if not callable(stats):
        msg = f"a run is a dataset or a loader of shoal; got {type(run).__name__}"
        raise UsageError(msg, hint="pass the dataset that is iterated, or the loader: both have stats()")
    dataset = run if isinstance(run, Dataset) else getattr(run, "dataset", None)
    if isinstance(dataset, Dataset):
        return WatchedObject(stats, CounterMeter(dataset.stream.counters, dataset.stream.spec.source.caches))
    return WatchedObject(stats, measure_of_stats(stats), is_live=isinstance(run, LiveDataset))

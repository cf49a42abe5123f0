"""Random schedules and mixtures for their laws."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.order.mixture.endless_source import EndlessSource, RepeatedDataset
from shoal.order.mixture.mixed_order import MixedEpoch, MixedSources
from shoal.order.mixture.source_choice import Choice, Even, PerBatch, PerRank, Random
from shoal.order.mixture.source_schedule import Change, SourceSchedule
from shoal.order.protocol import BoundOrder
from shoal.order.seeds import key
from shoal.orders import Order, Window

NAMES = [f"s{number:02d}" for number in range(12)]
CHOICES: list[Choice] = [Even(), Random(), PerBatch(samples=24), PerRank(samples=5)]


def weights_of(names: Sequence[str]) -> st.SearchStrategy[dict[str, int]]:
    one = st.one_of(st.integers(0, 5), st.integers(0, 10**6), st.just(2**30))
    found: st.SearchStrategy[dict[str, int]] = st.fixed_dictionaries(dict.fromkeys(names, one))
    return found.filter(lambda weights: any(weights.values()))


@st.composite
def schedules(draw: st.DrawFn, *, most_changes: int = 4) -> SourceSchedule:
    """Up to 8 sources whose weights change up to four times, at once or by ramps."""
    names = NAMES[: draw(st.integers(1, 8))]
    at = [0, *sorted(draw(st.lists(st.integers(1, 4000), max_size=most_changes, unique=True)))]
    ramps = st.one_of(st.just(0), st.integers(0, 3000))
    changes = [Change(each, draw(weights_of(names)), draw(ramps) if each else 0) for each in at]
    return SourceSchedule(names, changes, draw(st.sampled_from(CHOICES)), seed=draw(st.integers(0, 2**64 - 1)))


def dataset(name: str, chunk_samples: Sequence[int], order: Order | None = None, *, seed: int = 1) -> RepeatedDataset:
    """A source whose key hangs on its name."""
    samples = np.asarray(chunk_samples)
    asked = Window(chunks=4) if order is None else order

    @functools.lru_cache(2)
    def bound(epoch: int) -> BoundOrder:
        return asked.bind(samples, seed=key(seed, 0, f"source {name}"), epoch=epoch)

    num = int(samples.sum())
    return RepeatedDataset(num, bound, num_ids=num, num_chunks=len(samples), reach=3)


def mixture(
    sizes: Sequence[int],
    weights: Sequence[int],
    *,
    choice: Choice | None = None,
    seed: int = 0,
    num_samples: int = 1000,
    chunk: int = 10,
) -> MixedSources:
    """Sources of these sizes in chunks of about ten, with constant weights."""
    names = NAMES[: len(sizes)] if len(sizes) <= len(NAMES) else [f"n{number:04d}" for number in range(len(sizes))]
    schedule = SourceSchedule(names, [Change(0, dict(zip(names, weights, strict=True)))], choice or Even(), seed=seed)
    sources: list[EndlessSource] = []
    for name, size in zip(names, sizes, strict=True):
        sources.append(dataset(name, np.diff(np.r_[np.arange(0, size, chunk), size])))
    return MixedSources(schedule, sources, num_samples=num_samples)


def own_ids(source: EndlessSource, start: int, stop: int) -> NDArray[np.int64]:
    """What a source gives by itself."""
    return source.locate(start, stop)[0]


def epoch_of(mixed: MixedSources, epoch: int = 0) -> MixedEpoch:
    return MixedEpoch(mixed, epoch)

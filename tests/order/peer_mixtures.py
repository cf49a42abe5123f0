"""Mixtures of other libraries: how their loops make them, and digests of ids that they gave."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shoal.mixing import Concatenate, Interleave, RandomMix, RoundRobin

WITHOUT = "all_exhausted_without_replacement"
THREE = [0.5, 0.3, 0.2]

DIGESTS: list[tuple[Any, list[int], int, int, str]] = [
    (Interleave(), [5, 3, 9], 0, 0, "5842aeb02f54f123"),
    (Interleave(stopping="all_exhausted"), [5, 3, 9, 9, 2], 0, 0, "668c1dd8a557a5dc"),
    (Interleave(stopping=WITHOUT), [5, 3, 9, 9, 2], 0, 0, "581406cd12d8a272"),
    (Interleave(epochs="same", whole_turns=True), [5, 3, 9], 0, 0, "7d14bc8e6c90bfb4"),
    (Interleave(stopping="all_exhausted", epochs="same", whole_turns=True), [5, 3, 9], 0, 0, "c62b633785f2b0ea"),
    (Interleave(THREE), [500, 700, 1000], 42, 0, "ea5f425d7b7d729d"),
    (Interleave(THREE), [500, 700, 1000], 42, 3, "557a27a1d31d4b3a"),
    (Interleave(THREE), [500, 700, 1000], 43, 3, "557a27a1d31d4b3a"),
    (Interleave(THREE, epochs="same"), [500, 700, 1000], 42, 3, "ea5f425d7b7d729d"),
    (Interleave([0.9, 0.1], stopping="all_exhausted"), [100, 100], 7, 0, "3d0adf7e811b39a1"),
    (Interleave([0.9, 0.1], stopping="all_exhausted"), [100, 100], 7, 1, "c66d90d470ac4922"),
    (Interleave([0.9, 0.1], stopping=WITHOUT), [100, 300], 7, 0, "795ff7caa2350c57"),
    (Interleave([0.9, 0.1], stopping=WITHOUT), [100, 300], 7, 2, "e3629c9c800ef64b"),
    (Concatenate(), [5, 3, 9], 0, 0, "a526f32c215c9499"),
    (Concatenate(epochs="same"), [5, 3, 9], 0, 2, "a526f32c215c9499"),
    (RandomMix(), [300, 200, 100], 42, 0, "c593aa617bb7893d"),
    (RandomMix(THREE), [300, 200, 100], 42, 1, "e9fd967a115c4ad0"),
    (RandomMix([3, 0, 1], longest=True), [300, 200, 100], 42, 0, "1644f4fa1e55ce7c"),
    (RandomMix(longest=True), [300, 200, 100], 42, 5, "5a253f4226f4589b"),
    (RoundRobin(), [5, 3, 9], 0, 0, "218cb6f87e446f5a"),
    (RoundRobin(longest=True), [5, 3, 9], 0, 0, "d5b6981ece3e412a"),
]
"""A choice, the samples of each source, seed, epoch and digest; ``make compat`` has the libraries make them, too."""


def in_storage_order(lengths: Sequence[int]) -> list[NDArray[np.int64]]:
    """The ids of sources, numbered one after another."""
    starts = np.cumsum([0, *lengths]).tolist()
    return [np.arange(start, stop) for start, stop in itertools.pairwise(starts)]


def mixed_ids(choice: Any, sources: Sequence[NDArray[np.int64]], seed: int, epoch: int) -> NDArray[np.int64]:
    """The ids of an epoch, of which each source begins anew where it is used up."""
    settled = choice.settled([str(number) for number in range(len(sources))])
    chosen = settled.of_epoch([len(source) for source in sources], seed, epoch)
    of_positions = chosen.sources(0, chosen.num_samples)
    ids = np.empty(len(of_positions), dtype=np.int64)
    for number, source in enumerate(sources):
        mine = np.flatnonzero(of_positions == number)
        ids[mine] = source[np.arange(len(mine)) % len(source)]
    return ids


def interleaved(choice: Interleave, lengths: Sequence[int], seed: int) -> list[int]:
    """The sources of epoch 0, by the loop of ``CyclingMultiSourcesExamplesIterable``."""

    def wanted() -> Iterator[int]:
        if choice.probabilities is None:
            yield from itertools.cycle(range(len(lengths)))
        rng = np.random.default_rng(seed)
        while True:
            yield from rng.choice(len(lengths), size=1000, p=cast("Any", choice.probabilities)).tolist()

    is_over = any if choice.stopping == "first_exhausted" else all
    taken, ended, found = [0] * len(lengths), [False] * len(lengths), list[int]()
    for source in wanted():
        if is_over(ended):
            return found
        if ended[source] and choice.stopping == WITHOUT:
            continue
        found.append(source)
        taken[source] += 1
        ended[source] |= taken[source] >= lengths[source]
    raise AssertionError


def randomly_mixed(choice: RandomMix, lengths: Sequence[int], seed: int) -> list[int]:
    """The sources of epoch 0, by the loop of ``webdataset.mix.random_samples``."""
    rng, found = random.Random(seed), []
    sources = [iter([number] * length) for number, length in enumerate(lengths)]
    probs: list[float] = [1] * len(sources) if choice.probs is None else [*cast("Any", choice.probs)]
    while sources:
        with np.errstate(invalid="ignore"):
            shares = (np.array(probs) / np.sum(probs)).cumsum()
        number = int(np.searchsorted(shares, rng.random()))
        try:
            found.append(next(sources[number]))
        except StopIteration:
            if not choice.longest:
                break
            del sources[number], probs[number]
    return found

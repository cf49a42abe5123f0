"""Samples that wait for a batch of their group, and the batches that the next samples of the order complete.

The samples come in their order, and each waits with the samples of its group. A *set* is as many waiting samples of a
group as ``alike`` batches take. Where a batch has one group, a set is complete with its last sample, and makes the next
``alike`` batches. Where a batch has P classes, the next batches follow as soon as P classes have a complete set: the
newest set of each, since older sets lie in chunks that were read long ago.

Both rules depend on the order of the samples alone, so the work is split at any positions with the same result, except
for `oldest_left_out`, which splits at fixed positions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.order.arrays.vectorized import order_by
from shoal.order.groups.group_batches import GroupBatches

_NOTHING = np.zeros(0, dtype=np.int64)


class Waiting(NamedTuple):
    """Samples that wait: group, position, id and chunk, all of shape (num_samples,); by group, then by position."""

    groups: NDArray[np.int64] = _NOTHING
    positions: NDArray[np.int64] = _NOTHING
    ids: NDArray[np.int64] = _NOTHING
    chunks: NDArray[np.int64] = _NOTHING

    def chosen(self, rows: NDArray[np.int64]) -> Waiting:
        """Return some of the samples, in the order of ``rows``."""
        return Waiting(*(column[rows] for column in self))

    def joined(self, groups: NDArray[np.int64], positions: NDArray[np.int64], *rest: NDArray[np.int64]) -> Waiting:
        """Return these samples and later samples, given in the order of positions; by group, then by position."""
        columns = (np.concatenate(pair) for pair in zip(self, (groups, positions, *rest), strict=True))
        joined = Waiting(*columns)
        return joined.chosen(order_by((joined.groups, max(1, int(joined.groups.max(initial=0)).bit_length()))))

    @property
    def first_of_groups(self) -> NDArray[np.int64]:
        """The first row of each group that waits, then the number of samples."""
        borders = np.flatnonzero(np.diff(self.groups)) + 1
        return np.concatenate([[0], borders, [len(self.groups)]] if len(self.groups) else [[0]]).astype(np.int64)


class Sets(NamedTuple):
    """Complete sets in the order of their batches.

    Set ``i`` has the samples ``[first[i], first[i + 1])``, of one group. ``run[i]`` is the number of the run of batches
    that the set belongs to: as many sets as a batch has classes share a run of ``alike`` batches.
    """

    samples: Waiting
    first: NDArray[np.int64]
    run: NDArray[np.int64]

    @property
    def num_runs(self) -> int:
        """Number of runs."""
        return int(self.run[-1]) + 1 if len(self.run) else 0


def complete_sets(waiting: Waiting, grouping: GroupBatches) -> tuple[Sets, Waiting]:
    """Return the sets that make batches, and the samples that still wait; 0.1 us per sample, 1 us per set of a class.

    >>> rows = (np.array([0, 0, 0, 1, 1]), np.array([0, 3, 4, 1, 2]), *[np.arange(5)] * 2)
    >>> sets, left = complete_sets(Waiting(*rows), GroupBatches("kind", (2,)))
    >>> sets.samples.positions.tolist(), sets.run.tolist(), left.positions.tolist()
    ([1, 2, 0, 3], [0, 1], [4])
    """
    borders = waiting.first_of_groups
    groups = waiting.groups[borders[:-1]]
    widths = grouping.alike * grouping.sizes_of(groups)
    num_sets = np.diff(borders) // widths
    group = np.repeat(np.arange(len(groups)), num_sets)
    number = np.arange(len(group)) - np.repeat(np.cumsum(num_sets) - num_sets, num_sets)
    begins = borders[group] + number * widths[group]
    ends = begins + widths[group]
    by_end = np.argsort(waiting.positions[ends - 1], kind="stable")
    chosen, run = by_end, np.arange(len(by_end))
    if grouping.classes > 1:
        chosen = by_end[_of_several_classes(group[by_end], grouping.classes)]
        run = np.arange(len(chosen)) // grouping.classes
    begins, sizes = begins[chosen], (ends - begins)[chosen]
    first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    rows = np.repeat(begins - first[:-1], sizes) + np.arange(first[-1])
    waits = np.ones(len(waiting.groups), dtype=bool)
    waits[rows] = False
    return Sets(waiting.chosen(rows), first, run), waiting.chosen(np.flatnonzero(waits))


def _of_several_classes(groups: NDArray[np.int64], num_classes: int) -> NDArray[np.int64]:
    """Return the sets of each run, ``num_classes`` sets of different groups; sets come in the order of ``groups``.

    >>> _of_several_classes(np.array([0, 0, 1, 2, 1, 1]), 2).tolist()
    [1, 2, 0, 3]
    """
    ready: dict[int, list[int]] = {}
    chosen: list[int] = []
    for number, group in enumerate(groups.tolist()):
        ready.setdefault(group, []).append(number)
        if len(ready) == num_classes:
            chosen += [sets.pop() for sets in ready.values()]
            ready = {group: sets for group, sets in ready.items() if sets}
    return np.array(chosen, dtype=np.int64)


def oldest_left_out(waiting: Waiting, grouping: GroupBatches) -> Waiting:
    """Return the samples that go on waiting: of more than ``look_ahead`` in complete sets, the oldest sets are dropped.

    Without a limit, the sets of a class that is more frequent than others would pile up over the whole epoch.
    """
    borders = waiting.first_of_groups
    widths = grouping.alike * grouping.sizes_of(waiting.groups[borders[:-1]])
    num_complete = np.diff(borders) // widths * widths
    if num_complete.sum() <= grouping.look_ahead:
        return waiting
    group = np.repeat(np.arange(len(widths)), np.diff(borders))
    within = np.arange(len(group)) - borders[group]
    complete = within < num_complete[group]
    last_of_set = borders[group] + (within // widths[group] + 1) * widths[group] - 1
    ages = waiting.positions[np.where(complete, last_of_set, 0)]
    by_age = np.flatnonzero(complete)[np.argsort(-ages[complete], kind="stable")]
    keeps = ~complete
    # Sets have equal widths, since a batch has as many samples of each class.
    keeps[by_age[: grouping.look_ahead // int(widths[0]) * int(widths[0])]] = True
    return waiting.chosen(np.flatnonzero(keeps))


def short_sets(waiting: Waiting, grouping: GroupBatches, turns: NDArray[np.int64]) -> tuple[Waiting, NDArray[np.int64]]:
    """Return the batches at the end of an epoch: the samples that wait, in batches, and the first sample of each.

    First the full batches, group by group, then a short batch of each group; ``turns`` sorts the groups that wait. No
    short batches if ``keeps_short`` is false.
    """
    borders = waiting.first_of_groups
    counts, sizes = np.diff(borders), grouping.sizes_of(waiting.groups[borders[:-1]])
    num_full = counts // sizes
    order = np.argsort(turns, kind="stable")
    group = np.repeat(order, num_full[order])
    number = np.arange(len(group)) - np.repeat(np.cumsum(num_full[order]) - num_full[order], num_full[order])
    begins, ends = borders[group] + number * sizes[group], borders[group] + (number + 1) * sizes[group]
    if grouping.keeps_short:
        short = order[counts[order] > num_full[order] * sizes[order]]
        begins = np.concatenate([begins, borders[short] + num_full[short] * sizes[short]])
        ends = np.concatenate([ends, borders[short + 1]])
    first = np.concatenate([[0], np.cumsum(ends - begins)]).astype(np.int64)
    rows = np.repeat(begins - first[:-1], ends - begins) + np.arange(first[-1])
    return waiting.chosen(rows), first

"""Splits of a dataset by the hash of a group: training and validation sets that share no group.

The hash of a group and the seed give a point on a line, and each split is an interval of the line. So a group never
moves when shards or samples are added, and a larger fraction only extends an interval. Rejected: a permutation of the
groups has exact counts, but moves groups to other splits as soon as a group is added; an independent hash for each
split (rendezvous hashing) needs logarithms, which differ between platforms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.figures import counted
from shoal.order.arrays.index_ranges import Runs
from shoal.order.arrays.vectorized import distinct
from shoal.order.seeds import check_seed, key, keys
from shoal.stream.choosing.sample_groups import Groups, groups_of, hashed_values
from shoal.stream.dataset_spec import CHOSEN, DatasetSpec

_NO_SPLIT = 255
_CLOSE_ENOUGH = Fraction(1, 10**9)  # a sum of fractions this close to 1 counts as 1
_HINT = '{"train": 0.98, "val": 0.02}'


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """The intervals of [0, 2**64) that belong to splits; splits are numbered in alphabetical order.

    All splits but the last follow each other from 0, and the last ends at 2**64; points between belong to no split. So
    ``train`` lies between ``test`` and ``val``, and a larger ``test`` does not move ``val``. ``edges`` are the borders
    between the intervals, ascending; ``splits`` has the split number of each interval.
    """

    edges: NDArray[np.uint64]
    splits: NDArray[np.uint8]

    @staticmethod
    def of(fractions: Mapping[str, Fraction]) -> Line:
        """Return the intervals with these lengths; gaps between intervals have the number 255."""
        lengths = [fractions[name] for name in sorted(fractions)]
        ends = list(accumulate(lengths[:-1])) or lengths
        gap_ends = 1 - lengths[-1] if sum(lengths) < 1 - _CLOSE_ENOUGH else ends[-1]
        numbers = [*range(len(ends)), _NO_SPLIT, len(ends)]
        if len(lengths) == 1:
            gap_ends, numbers = Fraction(1), [0, _NO_SPLIT]
        edges = [int(end * 2**64) for end in [*ends, gap_ends][: len(numbers) - 1]]
        inside = [edge for edge in edges if edge < 2**64]
        return Line(np.array(inside, dtype=np.uint64), np.array(numbers[: len(inside) + 1], dtype=np.uint8))

    def splits_of(self, points: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """Return the split number of each point, 255 for points in no split; same shape."""
        splits: NDArray[np.uint8] = self.splits[np.searchsorted(self.edges, points, side="right")]
        return splits


@dataclass(frozen=True, slots=True, eq=False)
class Excluded:
    """Sorted hashes of groups that are in no split, and a table of their first bits."""

    hashes: NDArray[np.uint64]
    table: NDArray[np.bool_]
    shift: np.uint64

    @staticmethod
    def of(hashes: NDArray[np.uint64]) -> Excluded:
        """Return these hashes with a table of 16 to 32 entries per hash, up to 64 MiB."""
        bits = min(26, max(10, len(hashes).bit_length() + 4))
        table, shift = np.zeros(1 << bits, dtype=np.bool_), np.uint64(64 - bits)
        table[hashes >> shift] = True
        return Excluded(hashes, table, shift)

    def find(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the indices of excluded hashes; the table rejects most other hashes in 3 ns."""
        near = np.flatnonzero(self.table[hashes >> self.shift])
        places = np.minimum(np.searchsorted(self.hashes, hashes[near]), len(self.hashes) - 1)
        excluded: NDArray[np.int64] = near[self.hashes[places] == hashes[near]]
        return excluded


def split_specs(
    spec: DatasetSpec,
    fractions: Mapping[str, Any],
    *,
    by: Any = None,
    group: Callable[[Any], Any] | None = None,
    seed: int = 0,
    exclude: Any = None,
) -> dict[str, DatasetSpec]:
    """Return the description of each split; see `shoal.Dataset.split`. ``exclude`` may describe another dataset.

    15 to 20 ns for each sample, and 50 if its neighbours are in other splits; memory of 4 bytes for each sample and 60
    for each run of neighbours in one split; the splits keep 24 of the 60.
    """
    spec.opened.one("split()")
    if spec.request is not None:
        msg = "split() divides stored samples; after shuffle() a position has another sample in each epoch"
        raise UsageError(msg, hint="put split() before shuffle(), and shuffle each split")
    spec.refuse("split()", CHOSEN)
    lengths = _checked(fractions)
    groups = groups_of(spec.opened.one("split()"), by, group)
    base, line = key(check_seed(seed), 0, "split"), Line.of(lengths)
    out = Excluded.of(_excluded_groups(exclude, groups, by, group))
    numbers = np.empty(groups.num_samples, dtype=np.uint8)
    for span, hashes in groups.spans():
        numbers[span] = line.splits_of(keys(base, hashes))
        if len(out.hashes):
            numbers[span][out.find(hashes)] = _NO_SPLIT
    if spec.stored is not None:
        numbers = numbers[spec.stored.members(np.arange(len(spec.stored)))]
    splits = {}
    for name in lengths:
        runs = Runs.of(numbers == sorted(lengths).index(name), len(numbers))
        if not len(runs):
            raise _empty_split(name, lengths[name], spec, groups, by)
        splits[name] = spec.only(runs, "split()")
    return splits


def one_split(spec: DatasetSpec, *, name: str, **arguments: Any) -> DatasetSpec:
    """Return one of the splits of `split_specs`."""
    return split_specs(spec, **arguments)[name]


def _checked(fractions: Any) -> dict[str, Fraction]:
    """Return the fractions by name, as exact decimals: .7 + .2 + .1 is 1."""
    if not isinstance(fractions, Mapping) or not fractions or not all(isinstance(name, str) for name in fractions):
        raise UsageError(f"split() takes a fraction for each split by name; got {fractions!r:.80}", hint=_HINT)
    exact = {}
    for name, value in fractions.items():
        number = value if isinstance(value, Fraction) else Fraction(0)
        if isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value):
            number = Fraction(repr(float(value)))
        if not 0 < number <= 1:
            raise UsageError(f"the split {name!r} must have a fraction above 0 and up to 1; got {value!r}", hint=_HINT)
        exact[name] = number
    if (total := sum(exact.values())) > 1 + _CLOSE_ENOUGH:
        msg = f"the fractions of the splits add up to {float(total):g}, more than 1: {dict(fractions)}"
        raise UsageError(msg, hint="the sum may be below 1: the remaining samples are then in no split")
    if len(exact) >= _NO_SPLIT:
        raise UsageError(f"at most {_NO_SPLIT - 1} splits are possible; got {len(exact)}")
    return exact


def _excluded_groups(exclude: Any, groups: Groups, by: Any, group: Any) -> NDArray[np.uint64]:
    """Return the distinct hashes, sorted, of the groups that are in no split."""
    if exclude is None:
        return np.zeros(0, dtype=np.uint64)
    if isinstance(exclude, DatasetSpec):
        if by is not None and not isinstance(by, str):
            msg = "by= has the groups of this dataset only, but exclude= is another dataset"
            raise UsageError(msg, hint="exclude= takes groups, too: texts or numbers, as in by=")
        return groups_of(exclude.opened.one("split(exclude=)"), by, group).distinct(exclude.stored)
    several = isinstance(exclude, Collection) and not isinstance(exclude, str | bytes)
    values = list(exclude) if several else [exclude]
    if by is not None:
        return distinct(hashed_values(values))
    ids = np.asarray(values, dtype=None if values else np.int64)
    if ids.ndim != 1:
        msg = f"split(exclude=) takes a flat list of sample ids; got an array of shape {ids.shape}"
        raise UsageError(msg, hint="a list or an array of shape (num_ids,)")
    return groups.distinct(Runs.of(distinct(ids), groups.num_samples))


def _empty_split(name: str, fraction: Fraction, spec: DatasetSpec, groups: Groups, by: Any) -> UsageError:
    what = counted(spec.num_samples, "sample")
    if by is not None:
        what += f" in {counted(len(groups.distinct(spec.stored)), 'group')}"
    msg = f"the split {name!r} gets none of {what}: a group falls into it with a probability of {float(fraction):g}"
    return UsageError(msg, hint="a larger fraction, or a by= with more groups; another seed= draws again")

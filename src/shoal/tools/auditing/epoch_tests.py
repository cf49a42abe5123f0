"""Count and test the ids of one epoch; a long epoch is tested in spans from its start to its end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.quality.curves import (
    MOST_NEAR_RATIO,
    NEAR_BATCHES,
    Keys,
    VarianceCurve,
    batch_sizes,
    variance_curve,
)
from shoal.tools.auditing.cross_epoch import comparison_tests
from shoal.tools.auditing.statistical_tests import Outcome, correlation, normal_tail, permutation_tests, ratio_tail

TIME_PARTS, SOURCE_PARTS = 200, 1024
PARTS = 64  # parts of the dataset that are labels if there are none
_BLOCK = 1 << 22
_RANGE = 1 << 28  # ids counted at a time: 256 MiB
_EXAMPLES = 5
_FEW = 1 << 24  # samples; a longer epoch has no examples of repeated ids
_LEAST = 200  # samples; with fewer, chance hides everything
_MOST_TESTED = 1 << 24  # samples
_SPANS = 4
_LEAST_PAIRS = 50.0
_PREFIXES = (2, 10, 20, 100)  # in 200ths of an epoch
_SUFFIXES = (2, 10, 20)
_SERIOUS_DISTANCE = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """Counts of one pass over an epoch.

    ``num_unknown`` counts ids outside the dataset. ``missing`` and ``repeated`` have up to five examples. ``heat``
    counts the samples in each 200th of the epoch from each 1024th of the ids, shape (200, 1024). ``mean`` and
    ``variance`` describe the delivered ids.
    """

    num_delivered: int
    num_missing: int
    num_repeated: int
    num_unknown: int
    missing: tuple[int, ...]
    repeated: tuple[int, ...]
    heat: NDArray[np.int64]
    mean: float
    variance: float


def survey(ids: NDArray[np.int64], num_samples: int) -> Survey:
    """Count the samples ``0 .. num_samples - 1`` that an epoch delivers; 30 ns per sample, 256 MiB at most.

    >>> counts = survey(np.array([0, 1, 1, 4]), 5)
    >>> counts.num_missing, counts.missing, counts.num_repeated, counts.repeated
    (2, (2, 3), 1, (1,))
    """
    delivered = len(ids)
    distinct, missing = 0, list[int]()
    for low in range(0, num_samples, _RANGE):
        seen = np.zeros(min(_RANGE, num_samples - low), dtype=np.bool_)
        for block in _blocks(ids):
            seen[block[(block >= low) & (block < low + len(seen))] - low] = True
        distinct += int(np.count_nonzero(seen))
        if len(missing) < _EXAMPLES:
            missing += [low + int(index) for index in np.flatnonzero(~seen)[: _EXAMPLES - len(missing)]]
    unknown, total, squares = 0, 0.0, 0.0
    heat = np.zeros(TIME_PARTS * SOURCE_PARTS, dtype=np.int64)
    centre = num_samples / 2.0
    for number, block in enumerate(_blocks(ids)):
        times = (number * _BLOCK + np.arange(len(block))) * TIME_PARTS // delivered
        inside = (block >= 0) & (block < num_samples)
        unknown += len(block) - int(np.count_nonzero(inside))
        parts = np.clip(block, 0, num_samples - 1) * SOURCE_PARTS // num_samples
        heat += np.bincount(times * SOURCE_PARTS + parts, minlength=len(heat))
        centred = block - centre
        total, squares = total + float(centred.sum()), squares + float(centred @ centred)
    mean = total / delivered
    return Survey(
        num_delivered=delivered,
        num_missing=num_samples - distinct,
        num_repeated=delivered - unknown - distinct,
        num_unknown=unknown,
        missing=tuple(missing),
        repeated=_repeated(ids) if delivered - unknown > distinct else (),
        heat=heat.reshape(TIME_PARTS, SOURCE_PARTS),
        mean=centre + mean,
        variance=max(0.0, squares / delivered - mean**2),
    )


def _blocks(ids: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return [ids[begin : begin + _BLOCK] for begin in range(0, len(ids), _BLOCK)]


def _repeated(ids: NDArray[np.int64]) -> tuple[int, ...]:
    if len(ids) > _FEW:
        return ()
    ordered = np.sort(ids)
    return tuple(np.unique(ordered[1:][ordered[1:] == ordered[:-1]])[:_EXAMPLES].tolist())


@dataclass(frozen=True, slots=True, eq=False)
class Epoch:
    """One epoch with its counts, and the tested part of its ids."""

    survey: Survey
    ids: NDArray[np.int64]
    keys: Keys | None
    parts: Keys
    num_samples: int
    batch: int

    @staticmethod
    def of(row: NDArray[np.int64], num_samples: int, labels: Keys | None, batch: int) -> Epoch:
        """Count an epoch, and select the tested ids: all ids, or evenly spaced spans of a long epoch."""
        counts = survey(row, num_samples)
        if len(row) <= _MOST_TESTED:
            ids = np.asarray(row)
        else:
            ids = np.concatenate([np.asarray(row[start:stop]) for start, stop in _spans(len(row))])
        inside = np.clip(ids, 0, num_samples - 1)
        keys = Keys(ids.astype(np.float64) - counts.mean, None, counts.variance) if counts.variance > 0 else None
        if labels is not None:
            keys = _delivered_keys(labels, inside, whole=len(ids) == len(row))
        shares = counts.heat.reshape(TIME_PARTS, PARTS, -1).sum(axis=(0, 2)) / counts.num_delivered
        codes = (inside * SOURCE_PARTS // num_samples * PARTS // SOURCE_PARTS).astype(np.int8)
        parts = Keys(codes, shares, 1.0 - float(shares @ shares))
        return Epoch(counts, ids, keys, parts, num_samples, batch)

    @property
    def is_whole(self) -> bool:
        """True if all ids are tested."""
        return len(self.ids) == self.survey.num_delivered

    def positions(self) -> NDArray[np.int64]:
        """Compute the positions of the tested samples; 8 bytes per sample are too many to keep."""
        if self.is_whole:
            return np.arange(len(self.ids))
        return np.concatenate([np.arange(start, stop) for start, stop in _spans(self.survey.num_delivered)])

    def curve(self, keys: Keys) -> VarianceCurve:
        """Return the variance ratios of all batch sizes."""
        span = len(self.ids) if self.is_whole else len(self.ids) // _SPANS
        population = None if self.is_whole else self.survey.num_delivered
        return variance_curve(keys, batch_sizes(self.batch, span), population=population)

    def end(self, *, first: bool) -> VarianceCurve | None:
        """Return the variance ratio over the first or the last twentieth."""
        size = self.survey.num_delivered // 20
        size = min(size, len(self.ids) // _SPANS) // self.batch * self.batch
        if self.keys is None or size < 20 * self.batch:
            return None
        values = self.keys.values[:size] if first else self.keys.values[-size:]
        part = Keys(values, self.keys.shares, self.keys.variance)
        return variance_curve(part, [self.batch], population=self.survey.num_delivered)

    def storage_ranks(self) -> NDArray[np.float64]:
        """Return the rank of each sample among the delivered samples, in storage order."""
        sums = self.survey.heat.sum(axis=0)
        before = np.concatenate([[0], np.cumsum(sums)]).astype(np.float64)
        borders = np.arange(SOURCE_PARTS + 1) * (self.num_samples / SOURCE_PARTS)
        storage_ranks: NDArray[np.float64] = np.interp(self.ids + 0.5, borders, before) - 0.5
        return storage_ranks

    def outcomes(self) -> Iterator[Outcome]:
        """Run all tests of one epoch."""
        if self.survey.num_delivered < _LEAST:
            return
        overall = 1.0
        if self.keys is not None:
            curve = self.curve(self.keys)
            overall = [*curve.ratios[:1].tolist(), 1.0][0]
            yield from _variance_tests("variance", curve, self.keys, self)
        if self.parts.variance > 0.0:
            yield from _variance_tests("parts of the dataset", self.curve(self.parts), self.parts, self)
        for first, name in ((True, "first"), (False, "last")):
            if (end := self.end(first=first)) is not None:
                ratio = float(end.ratios[0])
                text = f"over the {name} twentieth of the epoch batches vary {ratio:.2f} times as much"
                text += f" as in a perfect shuffle, and {overall:.2f} times over all of it"
                rare = ratio_tail(ratio, float(end.freedom[0]))
                # In a window of few chunks, some spans have twice the ratio by chance.
                relative = ratio / max(1.0, overall)
                yield Outcome("start and end", ratio, 1.0, rare, relative > 3.0, _loss(relative), text)
        yield from _prefix_tests(self.survey)
        if self.is_whole:
            yield from _displacement_tests(self.storage_ranks(), self.positions())
        ranks = self.ids
        if self.survey.num_missing or self.survey.num_repeated or self.survey.num_unknown or not self.is_whole:
            ranks = _ranks(self.ids)
        if len(ranks) >= _LEAST:
            yield from permutation_tests(self.ids, ranks, batch=self.batch)


def _spans(num_delivered: int) -> list[tuple[int, int]]:
    """Return the tested ranges of positions of a long epoch."""
    length = _MOST_TESTED // _SPANS
    starts = [number * (num_delivered - length) // (_SPANS - 1) for number in range(_SPANS)]
    return [(start, start + length) for start in starts]


def _ranks(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rank of each distinct id, from 0 without gaps, in order of first occurrence.

    >>> _ranks(np.array([70, 20, 70, 90])).tolist()
    [1, 0, 2]
    """
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    del ordered
    ranks = np.empty(len(ids), dtype=np.int64)
    ranks[order] = np.cumsum(is_first) - 1
    kept = np.empty(len(ids), dtype=np.bool_)
    kept[order] = is_first
    return ranks if kept.all() else ranks[kept]


def _variance_tests(name: str, curve: VarianceCurve, keys: Keys, epoch: Epoch) -> Iterator[Outcome]:
    columns = (curve.sizes.tolist(), curve.ratios.tolist(), curve.freedom.tolist())
    for size, ratio, freedom in zip(*columns, strict=True):
        num_batches = len(epoch.ids) // size
        pairs = num_batches * size * (size - 1.0) / 2.0
        if keys.shares is not None and pairs * float(keys.shares @ keys.shares) < _LEAST_PAIRS:
            continue  # two samples of such rare labels hardly ever meet
        parts = "" if name == "variance" else " in the parts of the dataset that they come from"
        text = f"batches of {size:,} vary {ratio:.2f} times as much{parts} as in a perfect shuffle"
        is_near = epoch.batch < size <= NEAR_BATCHES * epoch.batch
        serious = ratio > (MOST_NEAR_RATIO if is_near else 1.2) and (is_near or size == epoch.batch)
        yield Outcome(name, ratio, 1.0, ratio_tail(ratio, freedom), serious, _loss(ratio), text)


def _loss(ratio: float) -> float:
    """Return the share of a batch that a variance ratio costs; 0 below 1.

    >>> _loss(4.0), _loss(0.5)
    (0.75, 0.0)
    """
    return 1.0 - 1.0 / max(1.0, ratio)


def _distance(counts: Survey, rows: slice) -> tuple[float, int]:
    """Return the Kolmogorov-Smirnov distance of a part of the epoch from all of it, and the samples of the part."""
    part = counts.heat[rows].sum(axis=0)
    size = int(part.sum())
    whole = np.cumsum(counts.heat.sum(axis=0)) / counts.num_delivered
    return float(np.abs(np.cumsum(part) / max(1, size) - whole).max()), size


def end_distances(counts: Survey, *, at_end: bool) -> dict[float, float]:
    """Return the distance of the first or the last samples from all, by their share of the epoch."""
    lengths = _SUFFIXES if at_end else _PREFIXES
    return {rows / TIME_PARTS: _distance(counts, _rows(rows, at_end=at_end))[0] for rows in lengths}


def _rows(rows: int, *, at_end: bool) -> slice:
    return slice(TIME_PARTS - rows, None) if at_end else slice(0, rows)


def _prefix_tests(counts: Survey) -> Iterator[Outcome]:
    """Compare the first and the last samples with all."""
    parts = [(rows, False) for rows in _PREFIXES] + [(rows, True) for rows in _SUFFIXES]
    for rows, at_end in parts:
        distance, size = _distance(counts, _rows(rows, at_end=at_end))
        total, name = counts.num_delivered, "last" if at_end else "first"
        if 20 <= size < total:
            rare = min(1.0, 2.0 * math.exp(-2.0 * distance**2 * size * total / (total - size)))
            by_chance = 0.87 / math.sqrt(size)
            text = (
                f"the {name} {size / total:.1%} of the epoch come from some parts of the dataset more than from others "
                f"(Kolmogorov-Smirnov distance {distance:.3f}, {by_chance:.3f} by chance)"
            )
            # An epoch of a few hundred chunks in random order has this distance; its first 1 % are too few to matter.
            serious = distance * math.sqrt(size / total) >= _SERIOUS_DISTANCE and size >= total // 25
            yield Outcome("start and end", distance, by_chance, rare, serious, distance, text)


def _displacement_tests(storage_ranks: NDArray[np.float64], positions: NDArray[np.int64]) -> Iterator[Outcome]:
    """Test the distance that samples move (Spearman's footrule), and the rank correlation."""
    size = len(storage_ranks)
    moved = float(np.abs(storage_ranks - positions).mean()) / size
    text = f"samples are moved {moved:.1%} of the epoch on average, and 33.3% in a perfect shuffle"
    score = (moved - 1.0 / 3.0) / math.sqrt(2.0 / 45.0 / size)
    serious = abs(moved - 1 / 3) >= 0.02
    yield Outcome("displacement", moved, 1.0 / 3.0, normal_tail(score), serious, abs(3 * moved - 1), text)
    ranked = correlation(storage_ranks, positions)
    text = f"the order still follows storage: the rank correlation of the two is {ranked:.3f}"
    rare = normal_tail(ranked * math.sqrt(size - 1.0))
    yield Outcome("displacement", ranked, 0.0, rare, abs(ranked) >= 0.05, abs(ranked), text)


def _delivered_keys(labels: Keys, ids: NDArray[np.int64], *, whole: bool) -> Keys | None:
    """Return the keys in the order of delivery, centred if the whole epoch is tested."""
    values = labels.values[ids]
    if not whole:
        return Keys(values, labels.shares, labels.variance)
    if labels.shares is None:
        centred = values - values.mean()
        return Keys(centred, None, float(centred.var())) if centred.any() else None
    shares = np.bincount(values, minlength=len(labels.shares)) / len(values)
    return Keys(values, shares, 1.0 - float(shares @ shares)) if float(shares.max()) < 1.0 else None


def compared(epoch: Epoch, other: Epoch, names: tuple[str, str]) -> list[tuple[str, Outcome]]:
    """Run all tests on two epochs or streams, and return the outcomes with both names."""
    if min(len(epoch.ids), len(other.ids)) < _LEAST:
        return []
    codes = []
    for one in (epoch, other):
        keys = one.parts if one.keys is None or one.keys.shares is None else one.keys
        codes.append(np.asarray(keys.values, dtype=np.int64))
    outcomes = comparison_tests(epoch.ids, other.ids, (codes[0], codes[1]), names=names, batch=epoch.batch)
    return [(" and ".join(names), outcome) for outcome in outcomes]

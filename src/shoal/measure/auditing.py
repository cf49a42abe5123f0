"""Audit any loader by the ids it emits: what is missing, how well samples mix, which traces of an order there are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.errors import UsageError
from shoal.measure.between import looks_between, remet_neighbours
from shoal.measure.curves import Keys, VarianceCurve, batch_sizes, variance_curve
from shoal.measure.delivered import as_epochs, as_stream
from shoal.measure.looks import Look, permutation_looks
from shoal.measure.quality import expected_distinct_of
from shoal.measure.survey import SOURCE_PARTS, TIME_PARTS, Survey, survey
from shoal.measure.tails import normal_tail, ratio_tail
from shoal.measure.verdict import Finding, findings_of, verdict_of

__all__ = ["Audit", "audit"]

_LEAST = 200  # samples: below, chance hides everything
_LOOKED_AT = 1 << 24
_STRETCHES = 4
_PARTS = 64
_LEAST_PAIRS = 50.0
_MOST_COUNTED = 4096
_PREFIXES = (2, 10, 20, 100)  # of 200 parts of an epoch
_SUFFIXES = (2, 10, 20)
_SERIOUS_DISTANCE = 0.05


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found.

    Attributes
    ----------
    num_samples
        Samples of the dataset.
    num_epochs, num_delivered
        Epochs that were audited, and samples delivered in them.
    missing, repeated, unknown
        Over all epochs: samples that do not come, deliveries of what came before, ids outside of the dataset.
    key
        What the variance is of: "labels", or "position" of storage.
    batch
        Samples of the batches that findings are judged by.
    vr
        The variance ratio VR(b) by batch size; 1 is a perfect shuffle.
    vr_error
        The standard deviation of each for a perfect shuffle.
    effective_batch
        ``batch / VR(batch)``: batches of how many samples of a perfect shuffle vary as much.
    distinct, expected_distinct
        Different labels in a batch (64ths of the dataset, without labels), and in one of a perfect shuffle, by batch
        size up to 4096.
    start_vr, end_vr
        VR(batch) over the first and the last twentieth of the epochs; NaN where that is too short.
    displacement
        How far samples are moved, later (positive) or earlier, as a share of the epoch: quantiles 0.01, 0.5 and 0.99.
        -0.9, 0 and 0.9 for a perfect shuffle.
    start_distance, end_distance
        How far the first and the last samples are from all in where they are stored (Kolmogorov and Smirnov), by share
        of the first epoch: 0 is alike, 1 is apart.
    remet, expected_remet
        What part of the pairs of samples that share a batch share one in the next epoch again, and after a perfect
        shuffle; NaN without a second epoch.
    rank_correlation
        Of where a sample is stored and when it comes (Spearman); 0 for a shuffle.
    num_looks
        How many looks were taken; all together they raise a false alarm in at most 0.1 % of audits.
    findings
        What a perfect shuffle does not do, serious ones first.
    verdict
        All this in a few sentences.
    heat
        Samples delivered in each 200th of the epochs (rows) from each 64th of the dataset.
    """

    num_samples: int
    num_epochs: int
    num_delivered: int
    missing: int
    repeated: int
    unknown: int
    key: str
    batch: int
    vr: Mapping[int, float]
    vr_error: Mapping[int, float]
    effective_batch: float
    distinct: Mapping[int, float]
    expected_distinct: Mapping[int, float]
    start_vr: float
    end_vr: float
    start_distance: Mapping[float, float]
    end_distance: Mapping[float, float]
    remet: float
    expected_remet: float
    displacement: tuple[float, float, float]
    rank_correlation: float
    num_looks: int
    findings: tuple[Finding, ...]
    verdict: str
    heat: NDArray[np.int64] = field(repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; all but the heat map."""
        found = {name: getattr(self, name) for name in self.__slots__ if name != "heat"}
        return found | {"findings": [finding.to_dict() for finding in self.findings]}

    def __str__(self) -> str:
        """The verdict, and the findings one a line."""
        signs = {True: "serious", False: "mild   "}
        lines = [f"{signs[each.is_serious]}  {each.name} ({each.where}): {each.text}" for each in self.findings]
        return "\n".join([self.verdict, *lines])


def audit(
    ids: Any,
    *,
    num_samples: int | None = None,
    labels: ArrayLike | None = None,
    epochs: int = 1,
    batch: int = 64,
    others: Mapping[str, Any] | None = None,
    is_part: bool = False,
) -> Audit:
    """Whether some ids are those of a good shuffle; of shoal or of any other loader.

    Parameters
    ----------
    ids
        The number of each sample in storage order, from 0, in the order of delivery: an array of shape (N,) or
        (num_epochs, N), memory-mapped if large; or an iterable of ids or of batches of ids. Above 2**24 samples, counts
        and the heat map are of all, and the looks of four stretches of 2**22.
    num_samples
        Samples of the dataset; default one more than the largest id.
    labels
        The label of each sample by id, shape (num_samples,), that batches should have in fair shares; numbers with a
        fraction count as numbers. Default: where a sample is stored, which is the worst that data can be sorted by.
    epochs
        How many epochs a flat stream of ids holds.
    batch
        Samples of a global batch.
    others
        Other streams that should have nothing in common with this one, by name: of another seed, another source. Each
        has as many epochs as it is a multiple of ``ids``' length.
    is_part
        The ids are those of one rank or worker, so that most samples are missing.

    Returns
    -------
    Audit
        About 1 us a sample and epoch up to 2**24, then 0.1 us, in at most 2 GB beside labels.

    Raises
    ------
    UsageError
        The ids are no integers, or labels are missing.

    Examples
    --------
    >>> from shoal.orders import Full
    >>> print(audit(Full().bind([10_000], seed=1).ids(0, 10_000)).verdict)  # doctest: +ELLIPSIS
    Each of 10,000 samples comes exactly once in an epoch. ... found a trace of an order ...
    >>> audit([0, 1, 2, 3, 5] * 100).missing
    1
    """
    rows = as_epochs(ids, epochs)
    total = 1 + max(int(row.max()) for row in rows) if num_samples is None else num_samples
    if total < 1 or batch < 1:
        msg = f"a dataset has samples and a batch has samples; got num_samples={total}, batch={batch}"
        raise UsageError(msg)
    codes = _label_keys(labels, total)
    parts = [_Epoch.of(row, total, codes, batch) for row in rows]
    looks = [(f"epoch {number}", look) for number, part in enumerate(parts) for look in part.looks()]
    for number in range(len(parts) - 1):
        looks += _compared(parts[number], parts[number + 1], (f"epoch {number}", f"epoch {number + 1}"))
    for name, stream in (others or {}).items():
        cut = _cut_alike(stream, len(rows[0]))
        for index, row in enumerate(cut):
            other = _Epoch.of(row, total, codes, batch)
            title = name if len(cut) == 1 else f"{name}, epoch {index}"
            for number, part in enumerate(parts):
                looks += _compared(part, other, (f"epoch {number}", title))
    counted = _counted([part.survey for part in parts], total, is_part=is_part)
    return _summed(parts, looks, [*counted, *findings_of(looks)], total, is_part=is_part)


@dataclass(frozen=True, slots=True, eq=False)
class _Epoch:
    """One epoch, surveyed, and the part of it that is looked at."""

    survey: Survey
    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    keys: Keys | None
    parts: Keys
    num_samples: int
    batch: int

    @staticmethod
    def of(row: NDArray[np.int64], num_samples: int, labels: Keys | None, batch: int) -> _Epoch:
        """Survey an epoch and take from it what is looked at: all, or stretches from the start to the end."""
        found = survey(row, num_samples)
        if len(row) <= _LOOKED_AT:
            ids, positions = np.asarray(row), np.arange(len(row))
        else:
            length = _LOOKED_AT // _STRETCHES
            starts = [number * (len(row) - length) // (_STRETCHES - 1) for number in range(_STRETCHES)]
            ids = np.concatenate([np.asarray(row[start : start + length]) for start in starts])
            positions = np.concatenate([np.arange(start, start + length) for start in starts])
        inside = np.clip(ids, 0, num_samples - 1)
        keys = Keys(ids.astype(np.float64) - found.mean, None, found.variance) if found.variance > 0 else None
        if labels is not None:
            keys = _delivered_keys(labels, inside, whole=len(ids) == len(row))
        shares = found.heat.reshape(TIME_PARTS, _PARTS, -1).sum(axis=(0, 2)) / found.num_delivered
        parts = Keys(
            inside * SOURCE_PARTS // num_samples * _PARTS // SOURCE_PARTS, shares, 1.0 - float(shares @ shares)
        )
        return _Epoch(found, ids, positions, keys, parts, num_samples, batch)

    @property
    def is_whole(self) -> bool:
        """Whether all of it is looked at."""
        return len(self.ids) == self.survey.num_delivered

    def curve(self, keys: Keys) -> VarianceCurve:
        """Variance ratios of all sizes."""
        stretch = len(self.ids) if self.is_whole else len(self.ids) // _STRETCHES
        return variance_curve(keys, batch_sizes(self.batch, stretch), population=self._population)

    @property
    def _population(self) -> int | None:
        return None if self.is_whole else self.survey.num_delivered

    def end(self, *, first: bool) -> VarianceCurve | None:
        """The variance ratio over the first or the last twentieth."""
        size = self.survey.num_delivered // 20
        size = min(size, len(self.ids) // _STRETCHES) // self.batch * self.batch
        if self.keys is None or size < 20 * self.batch:
            return None
        values = self.keys.values[:size] if first else self.keys.values[-size:]
        part = Keys(values, self.keys.shares, self.keys.variance)
        return variance_curve(part, [self.batch], population=self.survey.num_delivered)

    def places(self) -> NDArray[np.float64]:
        """Where each sample stands among those delivered, in storage order."""
        sums = self.survey.heat.sum(axis=0)
        before = np.concatenate([[0], np.cumsum(sums)]).astype(np.float64)
        borders = np.arange(SOURCE_PARTS + 1) * (self.num_samples / SOURCE_PARTS)
        places: NDArray[np.float64] = np.interp(self.ids + 0.5, borders, before) - 0.5
        return places

    def looks(self) -> Iterator[Look]:
        """All looks at this epoch alone."""
        if self.survey.num_delivered < _LEAST:
            return
        overall = 1.0
        if self.keys is not None:
            curve = self.curve(self.keys)
            overall = [*curve.ratios[:1].tolist(), 1.0][0]
            yield from _variance_looks("variance", curve, self.keys, self)
        if self.parts.variance > 0.0:
            yield from _variance_looks("parts of the dataset", self.curve(self.parts), self.parts, self)
        for first, name in ((True, "first"), (False, "last")):
            if (end := self.end(first=first)) is not None:
                ratio = float(end.ratios[0])
                text = f"over the {name} twentieth of the epoch batches vary {ratio:.2f} times as much"
                text += f" as in a perfect shuffle, and {overall:.2f} times over all of it"
                rare = ratio_tail(ratio, float(end.freedom[0]))
                # A window of few chunks has twice the ratio here or there by chance.
                yield Look("start and end", ratio, 1.0, rare, ratio > 3.0 * max(1.0, overall), text)
        yield from _prefix_looks(self.survey)
        if self.is_whole:
            yield from _displacement_looks(self.places(), self.positions)
        ranks = self.ids
        if self.survey.num_missing or self.survey.num_repeated or self.survey.num_unknown or not self.is_whole:
            _, first_place, inverse = np.unique(self.ids, return_index=True, return_inverse=True)
            ranks = inverse[np.sort(first_place)]
        if len(ranks) >= _LEAST:
            yield from permutation_looks(self.ids, ranks, batch=self.batch)


def _variance_looks(name: str, curve: VarianceCurve, keys: Keys, epoch: _Epoch) -> Iterator[Look]:
    columns = (curve.sizes.tolist(), curve.ratios.tolist(), curve.freedom.tolist())
    for size, ratio, freedom in zip(*columns, strict=True):
        num_batches = len(epoch.ids) // size
        pairs = num_batches * size * (size - 1.0) / 2.0
        if keys.shares is not None and pairs * float(keys.shares @ keys.shares) < _LEAST_PAIRS:
            continue  # labels so rare that hardly two ever meet
        what = "" if name == "variance" else " in the parts of the dataset that they come from"
        text = f"batches of {size:,} vary {ratio:.2f} times as much{what} as in a perfect shuffle"
        serious = ratio > 1.2 and size == epoch.batch
        yield Look(name, ratio, 1.0, ratio_tail(ratio, freedom), serious, text)


def _distance(found: Survey, rows: slice) -> tuple[float, int]:
    """Kolmogorov and Smirnov's distance of a part of the epoch from all of it, and the samples of the part."""
    part = found.heat[rows].sum(axis=0)
    size = int(part.sum())
    whole = np.cumsum(found.heat.sum(axis=0)) / found.num_delivered
    return float(np.abs(np.cumsum(part) / max(1, size) - whole).max()), size


def _distances(found: Survey, parts: tuple[int, ...], *, at_end: bool) -> dict[float, float]:
    """The distance by the share of the epoch."""
    return {rows / TIME_PARTS: _distance(found, _rows(rows, at_end=at_end))[0] for rows in parts}


def _rows(rows: int, *, at_end: bool) -> slice:
    return slice(TIME_PARTS - rows, None) if at_end else slice(0, rows)


def _prefix_looks(found: Survey) -> Iterator[Look]:
    """The first and the last samples against all."""
    parts = [(rows, False) for rows in _PREFIXES] + [(rows, True) for rows in _SUFFIXES]
    for rows, at_end in parts:
        distance, size = _distance(found, _rows(rows, at_end=at_end))
        total, name = found.num_delivered, "last" if at_end else "first"
        if 20 <= size < total:
            rare = min(1.0, 2.0 * math.exp(-2.0 * distance**2 * size * total / (total - size)))
            by_chance = 0.87 / math.sqrt(size)
            text = (
                f"the {name} {size / total:.1%} of the epoch come from some parts of the dataset more than from others "
                f"(Kolmogorov-Smirnov distance {distance:.3f}, {by_chance:.3f} by chance)"
            )
            # As far as if an epoch were a few hundred pieces in random order; its first 1 % are too few to matter.
            serious = distance * math.sqrt(size / total) >= _SERIOUS_DISTANCE and size >= total // 25
            yield Look("start and end", distance, by_chance, rare, serious, text)


def _displacement_looks(places: NDArray[np.float64], positions: NDArray[np.int64]) -> Iterator[Look]:
    """How far samples move (Spearman's footrule), and the rank correlation."""
    size = len(places)
    moved = float(np.abs(places - positions).mean()) / size
    text = f"samples are moved {moved:.1%} of the epoch on average, and 33.3% in a perfect shuffle"
    score = (moved - 1.0 / 3.0) / math.sqrt(2.0 / 45.0 / size)
    yield Look("displacement", moved, 1.0 / 3.0, normal_tail(score), abs(moved - 1 / 3) >= 0.02, text)
    correlation = _correlation(places, positions)
    text = f"the order still follows storage: their rank correlation is {correlation:.3f}"
    rare = normal_tail(correlation * math.sqrt(size - 1.0))
    yield Look("displacement", correlation, 0.0, rare, abs(correlation) >= 0.05, text)


def _correlation(places: NDArray[np.float64], positions: NDArray[np.int64]) -> float:
    one, two = places - places.mean(), positions - positions.mean()
    power = math.sqrt(float(one @ one) * float(two @ two))
    return float(one @ two) / power if power > 0.0 else 0.0


def _cut_alike(stream: Any, num_delivered: int) -> list[NDArray[np.int64]]:
    """The epochs of another stream, cut at the length of this one's where that fits."""
    if isinstance(stream, np.ndarray) and stream.ndim == 2:
        return as_epochs(stream, 1)
    flat = as_stream(stream)
    return as_epochs(flat, len(flat) // num_delivered if len(flat) % num_delivered == 0 else 1)


def _compared(mine: _Epoch, other: _Epoch, names: tuple[str, str]) -> list[tuple[str, Look]]:
    if min(len(mine.ids), len(other.ids)) < _LEAST:
        return []
    codes = []
    for epoch in (mine, other):
        labelled = epoch.keys is not None and epoch.keys.shares is not None
        codes.append(np.asarray(epoch.keys.values if labelled and epoch.keys else epoch.parts.values, dtype=np.int64))
    looks = looks_between(mine.ids, other.ids, (codes[0], codes[1]), names=names, batch=mine.batch)
    return [(" and ".join(names), look) for look in looks]


def _label_keys(labels: ArrayLike | None, num_samples: int) -> Keys | None:
    """The keys of all samples by id."""
    if labels is None:
        return None
    array = np.asarray(labels)
    if array.ndim != 1 or len(array) < num_samples:
        msg = f"labels has the label of each of {num_samples:,} samples by id; got shape {array.shape}"
        raise UsageError(msg)
    if array.dtype.kind == "f":
        values = array.astype(np.float64) - float(array.mean())
        return _varying(Keys(values, None, float(values.var())))
    names, codes = np.unique(array, return_inverse=True)
    shares = np.bincount(codes, minlength=len(names)) / len(array)
    return _varying(Keys(codes.astype(np.int64, copy=False), shares, 1.0 - float(shares @ shares)))


def _varying(keys: Keys) -> Keys:
    if keys.variance <= 0.0:
        msg = f"all {len(keys.values)} labels are equal: no batch can differ from another"
        raise UsageError(msg, hint="measure a label that differs between samples")
    return keys


def _delivered_keys(labels: Keys, ids: NDArray[np.int64], *, whole: bool) -> Keys | None:
    """The keys in the order of delivery, against the mean of what is delivered where all of it is known."""
    values = labels.values[ids]
    if not whole:
        return Keys(values, labels.shares, labels.variance)
    if labels.shares is None:
        centred = values - values.mean()
        return Keys(centred, None, float(centred.var())) if centred.any() else None
    shares = np.bincount(values, minlength=len(labels.shares)) / len(values)
    return Keys(values, shares, 1.0 - float(shares @ shares)) if float(shares.max()) < 1.0 else None


def _counted(surveys: list[Survey], num_samples: int, *, is_part: bool) -> list[Finding]:
    """What is wrong with the counts, which need no statistics."""
    findings = []
    missing = sum(found.num_missing for found in surveys)
    repeated = sum(found.num_repeated for found in surveys)
    unknown = sum(found.num_unknown for found in surveys)
    times = "" if len(surveys) == 1 else f" in {len(surveys)} epochs"
    if missing and not is_part:
        examples = ", ".join(map(str, next(found.missing for found in surveys if found.missing)))
        text = f"{missing:,} of {num_samples:,} samples do not come{times}: {examples}{' ...' if missing > 5 else ''}"
        findings.append(Finding("missing", True, text, "all", missing, 0, 0.0))
    if repeated:
        examples = ", ".join(map(str, next((found.repeated for found in surveys if found.repeated), ())))
        text = f"{repeated:,} deliveries{times} are of samples that came before" + (f": {examples}" if examples else "")
        findings.append(Finding("repeated", True, text, "all", repeated, 0, 0.0))
    if unknown:
        text = f"{unknown:,} ids{times} are not among the {num_samples:,} of the dataset"
        findings.append(Finding("unknown", True, text, "all", unknown, 0, 0.0))
    return findings


def _summed(
    epochs: list[_Epoch],
    looks: list[tuple[str, Look]],
    findings: list[Finding],
    num_samples: int,
    *,
    is_part: bool,
) -> Audit:
    first, batch = epochs[0], epochs[0].batch
    curves = [epoch.curve(epoch.keys) for epoch in epochs if epoch.keys is not None]
    sizes = [] if not curves else curves[0].sizes.tolist()
    ratios = (
        dict(zip(sizes, np.mean([curve.ratios for curve in curves], axis=0).tolist(), strict=True)) if sizes else {}
    )
    errors = np.sqrt(2.0 / sum(curve.freedom for curve in curves)).tolist() if sizes else []
    counted = first.keys if first.keys is not None and first.keys.shares is not None else first.parts
    small = [size for size in sizes if size <= max(batch, _MOST_COUNTED)]
    distinct = variance_curve(counted, small).distinct.tolist()
    counts = np.bincount(np.asarray(counted.values, dtype=np.int64))
    ends = [[epoch.end(first=at) for epoch in epochs] for at in (True, False)]
    start, end = (float(np.mean([c.ratios[0] for c in curve if c])) if any(curve) else math.nan for curve in ends)
    places = first.places()
    moved = (first.positions - places) / first.survey.num_delivered
    low, middle, high = np.quantile(moved, (0.01, 0.5, 0.99)).tolist()
    spread = dict(zip(sizes, errors, strict=True))
    again = remet_neighbours(first.ids, epochs[1].ids, batch) if len(epochs) > 1 else (math.nan, math.nan, 0)
    verdict = verdict_of(
        findings, ratios, spread, batch=batch, num_looks=len(looks), num_samples=num_samples, is_part=is_part
    )
    heat = np.sum([epoch.survey.heat for epoch in epochs], axis=0).reshape(TIME_PARTS, _PARTS, -1).sum(axis=2)
    return Audit(
        num_samples=num_samples,
        num_epochs=len(epochs),
        num_delivered=sum(epoch.survey.num_delivered for epoch in epochs),
        missing=sum(epoch.survey.num_missing for epoch in epochs),
        repeated=sum(epoch.survey.num_repeated for epoch in epochs),
        unknown=sum(epoch.survey.num_unknown for epoch in epochs),
        key="position" if first.keys is None or counted is first.parts else "labels",
        batch=batch,
        vr=ratios,
        vr_error=spread,
        effective_batch=batch / max(ratios[batch], 1e-9) if ratios else math.nan,
        distinct=dict(zip(small, distinct, strict=True)),
        expected_distinct={size: expected_distinct_of(counts[counts > 0], size) for size in small},
        start_vr=start,
        end_vr=end,
        start_distance=_distances(first.survey, _PREFIXES, at_end=False),
        end_distance=_distances(first.survey, _SUFFIXES, at_end=True),
        remet=again[0] if again[2] else math.nan,
        expected_remet=again[1] if again[2] else math.nan,
        displacement=(low, middle, high),
        rank_correlation=_correlation(places, first.positions),
        num_looks=len(looks),
        findings=tuple(findings),
        verdict=verdict,
        heat=heat,
    )

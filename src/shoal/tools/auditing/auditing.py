"""Audit a loader by its emitted ids: missing samples, mixing, and structure in the order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.errors import UsageError
from shoal.plugins.displays import as_html
from shoal.quality.curves import Keys, near_variance_ratio, variance_curve
from shoal.quality.metrics import expected_distinct_of
from shoal.tools.auditing.cross_epoch import remet_neighbours
from shoal.tools.auditing.emitted_ids import KeyTable, as_epochs, as_stream
from shoal.tools.auditing.epoch_tests import PARTS, TIME_PARTS, Epoch, Survey, compared, end_distances
from shoal.tools.auditing.findings import Finding, findings_of, headline_of, heaviest_first, verdict_of
from shoal.tools.auditing.statistical_tests import Outcome, correlation

_MOST_SPARSE = 1000
_MOST_COUNTED = 4096  # samples of the largest batch with counted labels


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit.

    Attributes
    ----------
    num_samples
        Samples of the dataset.
    num_epochs, num_delivered
        Audited epochs, and samples delivered in them.
    missing, repeated, unknown
        Samples never delivered, repeated deliveries, and ids outside the dataset, over all epochs.
    key
        Key of the variance: "labels", or "position" in storage.
    batch
        Samples of a global batch.
    vr, vr_error
        Variance ratio VR(b) by batch size; 1 is a perfect shuffle. Its standard deviation in a perfect shuffle.
    effective_batch
        ``batch / VR(batch)``: the batch size with equal variance in a perfect shuffle.
    distinct, expected_distinct
        Distinct labels (or 64ths of the dataset) in a batch, and in a batch of a perfect shuffle, by batch size up to
        4096.
    start_vr, end_vr
        VR(batch) over the first and the last twentieth of the epochs; NaN for short epochs.
    displacement
        Quantiles 0.01, 0.5 and 0.99 of the distance that samples move, later (positive) or earlier, as a share of
        the epoch; -0.9, 0 and 0.9 in a perfect shuffle.
    start_distance, end_distance
        Kolmogorov-Smirnov distance of the storage positions of the first and last samples from all samples, by share of
        the first epoch: 0 is alike, 1 is disjoint.
    remet, expected_remet
        Share of the pairs of samples of one batch that share a batch again in the next epoch, and the share in a
        perfect shuffle; NaN without a second epoch.
    rank_correlation
        Spearman's correlation of storage position and time of delivery; 0 for a shuffle.
    num_looks
        Number of statistical tests; together they raise a false alarm in at most 0.1 % of audits.
    findings
        Deviations from a perfect shuffle, heaviest first, with usual cause and cure.
    grade, headline, verdict
        "good", "fair" or "poor", by the likely cost to a training, or "unknown" for few samples; grade and reason, such
        as "Poor: VR 25 in batches of 64 (perfect: 1)"; summary in a few sentences.
    is_part
        True for the ids of one rank or worker, where most samples are missing.
    heat
        Samples delivered in each 200th of the epochs (rows) from each 64th of the dataset.

    Examples
    --------
    >>> result = shoal.measure.audit(ds.shuffle(seed=0).ids(), labels=ds.index_column("cls"), batch=16)
    >>> result.missing, result.repeated, result.headline
    (0, 0, 'Good: VR 0.68 in batches of 16 (perfect: 1)')
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
    grade: str
    headline: str
    verdict: str
    is_part: bool
    heat: NDArray[np.int64] = field(repr=False, compare=False)

    @property
    def near_vr(self) -> float:
        """VR of the mean of four successive batches, which the loss of a model follows; NaN without ``vr``."""
        return near_variance_ratio(self.vr, self.batch) if self.vr else math.nan

    def _repr_html_(self) -> str:
        return as_html("audit", self)

    def to_dict(self) -> dict[str, Any]:
        """Return all but the heat map as JSON types."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "heat"}
        return fields | {"near_vr": self.near_vr, "findings": [finding.to_dict() for finding in self.findings]}

    def __str__(self) -> str:
        """Return the headline, the verdict, and a line for each finding."""
        signs = {True: "serious", False: "mild   "}
        lines = [f"{signs[item.is_serious]}  {item.name} ({item.where}): {item.text}" for item in self.findings]
        return "\n".join([self.headline, self.verdict, *lines])


def audit(
    ids: Any,
    *,
    num_samples: int | None = None,
    keys: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    epochs: int = 1,
    batch: int = 64,
    others: Mapping[str, Any] | None = None,
    is_part: bool = False,
) -> Audit:
    """Test whether the ids emitted by shoal or by any other loader are well shuffled.

    Parameters
    ----------
    ids
        Sample numbers in storage order, from 0, in the order of delivery: an array of shape (N,) or (num_epochs, N),
        memory-mapped if large; or an iterable of ids or of batches of ids. Above 2**24 samples, counts and the heat map
        cover all samples, and the tests cover four spans of 2**22.
    num_samples
        Samples of the dataset; default one more than the largest id.
    keys
        Key of each sample in storage order, shape (num_samples,), if ``ids`` (and ``others``) are keys.
    labels
        Label of each sample by id, shape (num_samples,); batches should have fair shares of labels; floats count as
        numbers. Default: the storage position, the worst key of sorted data.
    epochs
        Epochs in a flat stream of ids.
    batch
        Samples of a global batch.
    others
        Unrelated streams by name, such as another seed or source. The length of a stream is divided by the length of
        ``ids`` to count its epochs.
    is_part
        True for the ids of one rank or worker, where most samples are missing.

    Returns
    -------
    Audit
        Takes about 1 us per sample and epoch up to 2**24, then 0.1 us, in at most 1 GB beside the labels.

    Raises
    ------
    UsageError
        The ids are not integers, labels are missing, or the dataset lacks the keys.

    Examples
    --------
    >>> ids = shoal.orders.Full().bind([10_000], seed=1).ids(0, 10_000)
    >>> print(shoal.measure.audit(ids).verdict)
    Each of 10,000 samples comes exactly once in an epoch. ... structure in the order found none ...
    >>> shoal.measure.audit([0, 1, 2, 3, 5] * 100).missing
    1
    """
    table = None if keys is None else KeyTable.of(keys)
    rows = as_epochs(ids, epochs, table)
    if num_samples is None and table is not None:
        num_samples = len(table)
    total = 1 + max(int(row.max()) for row in rows) if num_samples is None else num_samples
    if num_samples is None and total > _MOST_SPARSE * max(len(rows[0]), 1 << 20):
        msg = f"ids go up to {total - 1:,}, but there are {len(rows[0]):,} of them: these are no sample numbers"
        raise UsageError(msg, hint="number the samples from 0 in storage order, or give num_samples=")
    if total < 1 or batch < 1:
        raise UsageError(f"a dataset has samples and a batch has samples; got num_samples={total}, batch={batch}")
    codes = _label_keys(labels, total)
    parts = [Epoch.of(row, total, codes, batch) for row in rows]
    outcomes = [(f"epoch {number}", outcome) for number, part in enumerate(parts) for outcome in part.outcomes()]
    for number in range(len(parts) - 1):
        outcomes += compared(parts[number], parts[number + 1], (f"epoch {number}", f"epoch {number + 1}"))
    for name, stream in (others or {}).items():
        cut = _cut_alike(stream, len(rows[0]), table)
        for index, row in enumerate(cut):
            other = Epoch.of(row, total, codes, batch)
            title = name if len(cut) == 1 else f"{name}, epoch {index}"
            for number, part in enumerate(parts):
                outcomes += compared(part, other, (f"epoch {number}", title))
    counted = _counted([part.survey for part in parts], total, is_part=is_part)
    findings = heaviest_first([*counted, *findings_of(outcomes)])
    return _summed(parts, outcomes, findings, total, is_part=is_part)


def _cut_alike(stream: Any, num_delivered: int, keys: KeyTable | None) -> list[NDArray[np.int64]]:
    """Cut a stream into epochs of ``num_delivered`` ids, if its length is a multiple."""
    if isinstance(stream, np.ndarray) and stream.ndim == 2:
        return as_epochs(stream, 1, keys)
    flat = as_stream(stream, keys)
    return as_epochs(flat, len(flat) // num_delivered if len(flat) % num_delivered == 0 else 1)


def _label_keys(labels: ArrayLike | None, num_samples: int) -> Keys | None:
    """Return the keys of all samples by id."""
    if labels is None:
        return None
    array = np.asarray(labels)
    if array.ndim != 1 or len(array) < num_samples:
        raise UsageError(f"labels has the label of each of {num_samples:,} samples by id; got shape {array.shape}")
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


def _counted(surveys: list[Survey], num_samples: int, *, is_part: bool) -> list[Finding]:
    """Return the findings about missing, repeated and unknown samples."""
    findings = []
    missing = sum(survey.num_missing for survey in surveys)
    repeated = sum(survey.num_repeated for survey in surveys)
    unknown = sum(survey.num_unknown for survey in surveys)
    delivered = sum(survey.num_delivered for survey in surveys)
    times = "" if len(surveys) == 1 else f" in {len(surveys)} epochs"
    if missing and not is_part:
        examples = ", ".join(map(str, next(survey.missing for survey in surveys if survey.missing)))
        text = f"{missing:,} of {num_samples:,} samples do not come{times}: {examples}{' ...' if missing > 5 else ''}"
        size = _part(missing, len(surveys) * num_samples)
        findings.append(Finding("missing", True, text, "all", missing, 0, 0.0, size))
    if repeated:
        examples = ", ".join(map(str, next((survey.repeated for survey in surveys if survey.repeated), ())))
        text = f"{repeated:,} deliveries{times} are of samples that came before" + (f": {examples}" if examples else "")
        findings.append(Finding("repeated", True, text, "all", repeated, 0, 0.0, _part(repeated, delivered)))
    if unknown:
        text = f"{unknown:,} ids{times} are not among the {num_samples:,} of the dataset"
        findings.append(Finding("unknown", True, text, "all", unknown, 0, 0.0, _part(unknown, delivered)))
    return findings


def _part(count: int, total: int) -> float:
    """Return the root of a share as size, because a hundredth of the samples is already much."""
    return math.sqrt(min(1.0, count / max(1, total)))


def _summed(
    epochs: list[Epoch],
    outcomes: list[tuple[str, Outcome]],
    findings: list[Finding],
    num_samples: int,
    *,
    is_part: bool,
) -> Audit:
    first, batch = epochs[0], epochs[0].batch
    curves = [epoch.curve(epoch.keys) for epoch in epochs if epoch.keys is not None]
    sizes = [] if not curves else curves[0].sizes.tolist()
    means = np.mean([curve.ratios for curve in curves], axis=0).tolist() if sizes else []
    ratios = dict(zip(sizes, means, strict=True))
    errors = np.sqrt(2.0 / sum(curve.freedom for curve in curves)).tolist() if sizes else []
    spread = dict(zip(sizes, errors, strict=True))
    counted = first.keys if first.keys is not None and first.keys.shares is not None else first.parts
    small = [size for size in sizes if size <= max(batch, _MOST_COUNTED)]
    distinct = variance_curve(counted, small).distinct.tolist()
    counts = np.bincount(counted.values.astype(np.int64, copy=False))
    ends = [[epoch.end(first=at) for epoch in epochs] for at in (True, False)]
    start, end = (float(np.mean([c.ratios[0] for c in curve if c])) if any(curve) else math.nan for curve in ends)
    ranks, positions = first.storage_ranks(), first.positions()
    low, middle, high = np.quantile((positions - ranks) / first.survey.num_delivered, (0.01, 0.5, 0.99)).tolist()
    again = remet_neighbours(first.ids, epochs[1].ids, batch) if len(epochs) > 1 else (math.nan, math.nan, 0)
    verdict = verdict_of(
        findings, ratios, spread, batch=batch, num_looks=len(outcomes), num_samples=num_samples, is_part=is_part
    )
    heat = np.sum([epoch.survey.heat for epoch in epochs], axis=0).reshape(TIME_PARTS, PARTS, -1).sum(axis=2)
    part_of = float(np.mean(heat.any(axis=0))) if is_part else None
    grade, headline = headline_of(findings, ratios, batch=batch, num_looks=len(outcomes), part_of=part_of)
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
        start_distance=end_distances(first.survey, at_end=False),
        end_distance=end_distances(first.survey, at_end=True),
        remet=again[0] if again[2] else math.nan,
        expected_remet=again[1] if again[2] else math.nan,
        displacement=(low, middle, high),
        rank_correlation=correlation(ranks, positions),
        num_looks=len(outcomes),
        findings=tuple(findings),
        grade=grade,
        headline=headline,
        verdict=verdict,
        is_part=is_part,
        heat=heat,
    )

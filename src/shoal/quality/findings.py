"""Conversion of test results to findings, and of findings to words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.quality.diagnosis import ADVICE
from shoal.quality.statistical_tests import Look

FALSE_ALARMS = 0.001
"""Probability that an audit of perfect shuffles finds anything at all."""

_FINE = 1.2  # VR up to which no difference is visible
_POOR = 0.5  # weight from which an order is poor
_ALL_OVER = 0.95  # share of the dataset: a rank with samples from this much of it is not tied to some shards
_COUNTED = {
    "missing": ("sample missing", "samples missing"),
    "repeated": ("delivery repeated", "deliveries repeated"),
    "unknown": ("id unknown", "ids unknown"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A deviation from a perfect shuffle.

    Parameters
    ----------
    name
        Kind of deviation: "missing", "repeated", "variance", "echo", "parity", "steps", "locality", "storage order",
        "runs", "start and end", "same order", "in step", "neighbours met again" ...
    is_serious
        True if it is likely to matter to a training, judged by its size.
    text
        Description of the clearest test result of this name.
    where
        "epoch 0", or the two streams that were compared.
    found, expected, probability
        Measured value, value of a perfect shuffle, and probability of such a deviation by chance.
    size
        Magnitude: 0 is a perfect shuffle, 1 the worst possible.
    num_looks
        Number of tests of this name that found something.
    """

    name: str
    is_serious: bool
    text: str
    where: str
    found: float
    expected: float
    probability: float
    size: float
    num_looks: int = 1

    @property
    def weight(self) -> float:
        """Likely cost to a training, by kind and size: from 0, nothing, to above 1."""
        return ADVICE[self.name].importance * self.size

    @property
    def cause(self) -> str:
        """Usual cause."""
        return ADVICE[self.name].cause

    @property
    def cure(self) -> str:
        """Usual remedy."""
        return ADVICE[self.name].cure

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON types."""
        return {name: getattr(self, name) for name in (*self.__slots__, "weight", "cause", "cure")}


def findings_of(looks: Sequence[tuple[str, Look]]) -> list[Finding]:
    """Return a finding for each name among the test results that chance does not explain, heaviest first.

    Each result comes with the place where it was taken. Bonferroni's bound: a result counts if its probability is below
    `FALSE_ALARMS` over the number of tests. Whatever the dependence between tests, at most that share of audits of
    perfect shuffles then finds anything.
    """
    limit = FALSE_ALARMS / max(1, len(looks))
    found: dict[str, list[tuple[str, Look]]] = {}
    for where, look in looks:
        if look.probability < limit:
            found.setdefault(look.name, []).append((where, look))
    findings = []
    for name, these in found.items():
        # Serious ones first, then the least probable; of equally rare ones the largest, roughly,
        # and of these the first: the lowest bit, the shortest lag.
        where, worst = min(
            these, key=lambda item: (not item[1].is_serious, item[1].probability, -round(_far(item[1]), 1))
        )
        findings.append(
            Finding(
                name,
                worst.is_serious,
                worst.text,
                where,
                worst.found,
                worst.expected,
                worst.probability,
                worst.size,
                len(these),
            )
        )
    return heaviest_first(findings)


def heaviest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings: serious before mild ones, and within each by falling weight."""
    return sorted(findings, key=lambda finding: (not finding.is_serious, -finding.weight))


def headline_of(
    findings: Sequence[Finding],
    ratios: Mapping[int, float],
    *,
    batch: int,
    num_looks: int,
    part_of: float | None = None,
) -> tuple[str, str]:
    """Return a grade, "good", "fair", "poor" or "unknown", and its reason in a line.

    ``findings`` are sorted, the heaviest first; ``ratios`` are VR by batch size. ``part_of`` is the share of the
    dataset from which the samples of one rank or worker come; None if all were audited.
    """
    serious = [finding for finding in findings if finding.is_serious]
    grade = "good" if not serious else "poor" if serious[0].weight >= _POOR else "fair"
    mixing = f"VR {_ratio(ratios[batch])} at {batch:,}" if batch in ratios and num_looks else ""
    if not num_looks and not serious:
        return "unknown", "Too few samples to judge how they are mixed"
    has_variance = any(finding.name == "variance" for finding in serious)
    parts: list[str] = []
    for finding in serious:
        if finding.name == "variance":
            parts.append(mixing)
        elif finding.name in _COUNTED:
            parts.append(_brief(finding))
        elif finding is serious[0] or not (has_variance or parts):
            parts.append(_brief(finding))  # VR mostly covers the other deviations
    if mixing not in parts:
        parts.append(mixing)
    within = "" if part_of is None else " within one part"
    if part_of is not None and part_of < _ALL_OVER:
        parts.append(f"from {part_of:.0%} of the dataset")
    return grade, f"{grade.capitalize()}{within}: {', '.join(filter(None, parts)) or 'no trace of an order'}"


def _brief(finding: Finding) -> str:
    if finding.name in _COUNTED:
        share = finding.size**2
        said = f"{share:.0%}" if share >= 0.01 else "less than 1%"
        return f"{int(finding.found):,} {_COUNTED[finding.name][finding.found != 1]} ({said})"
    return ADVICE[finding.name].brief


def _ratio(ratio: float) -> str:
    """Format VR in two or three digits.

    >>> _ratio(0.987), _ratio(2.04), _ratio(25.3), _ratio(1234.0)
    ('0.99', '2.0', '25', '1,234')
    """
    return f"{ratio:.2f}" if ratio < 2 else f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}"


def verdict_of(
    findings: Iterable[Finding],
    ratios: Mapping[int, float],
    errors: Mapping[int, float],
    *,
    batch: int,
    num_looks: int,
    num_samples: int,
    is_part: bool = False,
) -> str:
    """Summarise the audit in a few sentences."""
    found = list(findings)
    counted = [finding for finding in found if finding.name in _COUNTED]
    others = [finding for finding in found if finding not in counted]
    said = [as_sentence(finding.text) for finding in counted] or [_all_once(num_samples, is_part=is_part)]
    if ratios:
        said.append(_mixing(ratios, errors, batch))
    if not num_looks:
        said.append("There are too few samples to look for traces of an order.")
    elif not others:
        said.append(
            f"None of {num_looks} looks found a trace of an order (all together raise a false alarm in "
            f"{FALSE_ALARMS:.1%} of audits)."
        )
    else:
        serious = [finding for finding in others if finding.is_serious]
        names = ", ".join(finding.name for finding in serious or others)
        if serious:
            said.append(f"It is no perfect shuffle, in ways that are likely to matter: {names}.")
        else:
            said.append(f"It is no perfect shuffle, in ways that seldom matter: {names}.")
    return " ".join(said)


def _all_once(num_samples: int, *, is_part: bool) -> str:
    if is_part:
        return (
            f"Of {num_samples:,} samples, none comes twice in an epoch of this part; what other parts get is unknown."
        )
    return f"Each of {num_samples:,} samples comes exactly once in an epoch."


def _mixing(ratios: Mapping[int, float], errors: Mapping[int, float], batch: int) -> str:
    here = ratios[batch]
    if here <= _FINE + 3.0 * errors[batch]:
        # Three standard deviations: an epoch has few large batches, so their ratio says little.
        worse = [size for size, ratio in ratios.items() if ratio > _FINE + 3.0 * errors[size]]
        upto = max(size for size in ratios if not worse or size < worse[0])
        words = f"Batches of up to {upto:,} samples vary no more than in a perfect shuffle (VR at most {_FINE:g})"
        return words + (f", batches of {worse[0]:,} {ratios[worse[0]]:.1f} times as much." if worse else ".")
    return (
        f"Batches of {batch:,} samples vary {here:.1f} times as much as in a perfect shuffle, as if they had "
        f"{batch / here:,.0f}."
    )


def _far(look: Look) -> float:
    return abs(look.found - look.expected)


def as_sentence(text: str) -> str:
    """Return a text with an initial capital and a full stop.

    >>> as_sentence("two: 1, 2"), as_sentence("many: 1, 2 ...")
    ('Two: 1, 2.', 'Many: 1, 2 ...')
    """
    return text[:1].upper() + text[1:] + ("" if text.endswith("...") else ".")

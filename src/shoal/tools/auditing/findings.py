"""Findings of an audit: test results that chance does not explain, with weight, cause and cure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.figures import counted
from shoal.tools.auditing.statistical_tests import Outcome


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice on findings of one name; ``importance`` is the weight of the worst possible finding."""

    importance: float
    brief: str
    cause: str
    cure: str


_FEW_CHUNKS = "few chunks or whole shards are mixed at a time, of data that lie sorted"
_WIDER = (
    "mix as many chunks at a time as a global batch has samples: a larger window, smaller chunks, more shards read at "
    "once; or shuffle the data once when they are written"
)
_EPOCH = "the loader never gets the epoch, or its seed does not reach all random choices"
_SET_EPOCH = "call set_epoch() for every epoch, and derive all randomness from seed and epoch by hashing, not by adding"
_CIPHER = "the permutation has too few rounds or is linear; or the mixing is poor"
_ROUNDS = "improve the mixing first; then use more rounds or another permutation"

ADVICE: Mapping[str, Advice] = {
    "missing": Advice(
        1.6,
        "samples are missing",
        "a dropped remainder, a run or worker that ended early, a resume that skips, or ids of one rank only",
        "keep the remainder, deal evenly, resume exactly; audit the ids of one rank as a part",
    ),
    "repeated": Advice(
        1.6,
        "samples are repeated",
        "padding to equal ranks, sampling with replacement, every worker reading all, or a resume from too early",
        "deal each sample to one rank and worker, mark or drop padding, resume exactly",
    ),
    "unknown": Advice(
        1.6,
        "ids are unknown",
        "ids are not numbered from 0 in storage order, or belong to another dataset",
        "give the number of samples, or the keys of this dataset",
    ),
    "same order": Advice(1.5, "the same order comes again", _EPOCH, _SET_EPOCH),
    "variance": Advice(1.0, "batches vary too much", _FEW_CHUNKS, _WIDER),
    "start and end": Advice(
        0.8,
        "the ends of the epoch are not mixed",
        "a buffer that still fills at the start, or a tail without shuffle",
        "an order over the whole epoch instead of a shuffle buffer, or chunks in random order before the buffer",
    ),
    "displacement": Advice(0.8, "samples hardly move", "a buffer or blocks over storage order", _WIDER),
    "storage order": Advice(
        0.8, "spans are in storage order", "a tail or remainder without shuffle, or no shuffle at all", _WIDER
    ),
    "in step": Advice(
        0.7, "orders are in step", "shards or sources come in one order in every epoch or seed", _SET_EPOCH
    ),
    "locality": Advice(0.7, "neighbours stay together", _FEW_CHUNKS, _WIDER),
    "neighbours met again": Advice(
        0.6,
        "batches stay together",
        "groups or batches are fixed, and only their order changes",
        "shuffle samples inside of groups anew in every epoch",
    ),
    "parts of the dataset": Advice(0.5, "batches come from few parts", _FEW_CHUNKS, _WIDER),
    "echo": Advice(0.5, "an echo of the order", _CIPHER, _ROUNDS),
    "parity": Advice(0.5, "ids take turns", _CIPHER, _ROUNDS),
    "runs": Advice(0.5, "ids go up or down in a row", "spans that are only merged, not mixed", _WIDER),
    "steps": Advice(0.4, "the same steps over and over", _CIPHER, _ROUNDS),
}


FALSE_ALARMS = 0.001
"""Probability that an audit of perfect shuffles has a finding."""

_FINE = 1.2  # no difference is visible up to this VR
_POOR = 0.5  # least weight of a poor order
_ALL_OVER = 0.95  # a rank with samples from this share of the dataset is not tied to some shards
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
        "epoch 0", or the two compared streams.
    measured, expected, probability
        Measured value, value of a perfect shuffle, and probability of the deviation by chance.
    size
        Magnitude: 0 is a perfect shuffle, 1 the worst possible.
    num_looks
        Number of deviating tests of this name.

    Examples
    --------
    >>> finding = shoal.measure.audit(range(10_000)).findings[0]
    >>> finding.name, finding.is_serious
    ('variance', True)
    """

    name: str
    is_serious: bool
    text: str
    where: str
    measured: float
    expected: float
    probability: float
    size: float
    num_looks: int = 1

    @property
    def weight(self) -> float:
        """Likely cost to a training, by kind and size: 0 is nothing, 1 is much."""
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


def findings_of(outcomes: Sequence[tuple[str, Outcome]]) -> list[Finding]:
    """Return a finding for each name of test results that chance does not explain, heaviest first.

    Each result comes with the name of its epoch or pair of streams. Bonferroni's bound: a result counts if its
    probability is below `FALSE_ALARMS` divided by the number of tests. So at most this share of audits of perfect
    shuffles has findings, even if tests depend on each other.
    """
    limit = FALSE_ALARMS / max(1, len(outcomes))
    by_name: dict[str, list[tuple[str, Outcome]]] = {}
    for where, outcome in outcomes:
        if outcome.probability < limit:
            by_name.setdefault(outcome.name, []).append((where, outcome))
    findings = []
    for name, results in by_name.items():
        # Serious before mild, then the least probable, then the roughly largest, then the lowest bit or shortest lag.
        where, worst = min(results, key=lambda result: _clarity(result[1]))
        values = (worst.value, worst.expected, worst.probability, worst.size)
        findings.append(Finding(name, worst.is_serious, worst.text, where, *values, len(results)))
    return heaviest_first(findings)


def _clarity(outcome: Outcome) -> tuple[bool, float, float]:
    return not outcome.is_serious, outcome.probability, -round(abs(outcome.value - outcome.expected), 1)


def heaviest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings: serious before mild, then by falling weight."""
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

    ``findings`` are sorted, heaviest first; ``ratios`` are VR by batch size. ``part_of`` is the share of the dataset
    that one rank or worker covers; None if all ids were audited.
    """
    serious = [finding for finding in findings if finding.is_serious]
    grade = "good" if not serious else "poor" if serious[0].weight >= _POOR else "fair"
    mixing = f"VR {_ratio(ratios[batch])} in batches of {batch:,} (perfect: 1)" if batch in ratios and num_looks else ""
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
            parts.append(_brief(finding))  # VR mostly covers other deviations
    if mixing not in parts:
        parts.append(mixing)
    within = "" if part_of is None else " within one part"
    if part_of is not None and part_of < _ALL_OVER:
        parts.append(f"from {part_of:.0%} of the dataset")
    return grade, f"{grade.capitalize()}{within}: {', '.join(filter(None, parts)) or 'no structure in the order'}"


def _brief(finding: Finding) -> str:
    if finding.name in _COUNTED:
        share = finding.size**2
        text = f"{share:.0%}" if share >= 0.01 else "less than 1%"
        return f"{int(finding.measured):,} {_COUNTED[finding.name][finding.measured != 1]} ({text})"
    return ADVICE[finding.name].brief


def _ratio(ratio: float) -> str:
    """Format VR with two or three digits.

    >>> _ratio(0.987), _ratio(2.04), _ratio(25.3), _ratio(1234.0)
    ('0.99', '2.0', '25', '1,234')
    """
    return f"{ratio:.2f}" if ratio < 2 else f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}"


def verdict_of(
    findings: Sequence[Finding],
    ratios: Mapping[int, float],
    errors: Mapping[int, float],
    *,
    batch: int,
    num_looks: int,
    num_samples: int,
    is_part: bool = False,
) -> str:
    """Summarise the audit in a few sentences."""
    counts = [finding for finding in findings if finding.name in _COUNTED]
    others = [finding for finding in findings if finding.name not in _COUNTED]
    once = f"Each of {num_samples:,} samples comes exactly once in an epoch."
    if is_part:
        once = f"Of {num_samples:,} samples, none comes twice in an epoch of this part; other parts are unknown."
    sentences = [as_sentence(finding.text) for finding in counts] or [once]
    if ratios:
        sentences.append(_mixing(ratios, errors, batch))
    if not num_looks:
        sentences.append("There are too few samples to test for structure in the order.")
    elif not others:
        sentences.append(
            f"{counted(num_looks, 'test')} for structure in the order found none (a perfect shuffle fails one of them "
            f"in {FALSE_ALARMS:.1%} of audits)."
        )
    else:
        serious = [finding for finding in others if finding.is_serious]
        names = ", ".join(finding.name for finding in serious or others)
        cost = "are likely to matter" if serious else "seldom matter"
        sentences.append(f"The order differs from a perfect shuffle in ways that {cost}: {names}.")
    return " ".join(sentences)


def _mixing(ratios: Mapping[int, float], errors: Mapping[int, float], batch: int) -> str:
    ratio = ratios[batch]
    if ratio <= _FINE + 3.0 * errors[batch]:
        # Three standard deviations, because an epoch has few large batches.
        worse = [size for size, value in ratios.items() if value > _FINE + 3.0 * errors[size]]
        upto = max(size for size in ratios if not worse or size < worse[0])
        text = f"Batches of up to {upto:,} samples vary no more than in a perfect shuffle (VR at most {_FINE:g})"
        return text + (f", batches of {worse[0]:,} {ratios[worse[0]]:.1f} times as much." if worse else ".")
    return (
        f"Batches of {batch:,} samples vary {ratio:.1f} times as much as in a perfect shuffle, as if they had "
        f"{batch / ratio:,.0f}."
    )


def as_sentence(text: str) -> str:
    """Add an initial capital and a full stop.

    >>> as_sentence("two: 1, 2"), as_sentence("many: 1, 2 ...")
    ('Two: 1, 2.', 'Many: 1, 2 ...')
    """
    return text[:1].upper() + text[1:] + ("" if text.endswith("...") else ".")

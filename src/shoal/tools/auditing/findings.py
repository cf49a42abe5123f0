"""Findings of an audit: test results that chance does not explain, their weights, causes and cures, and words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.figures import counted
from shoal.tools.auditing.statistical_tests import Outcome


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice on all findings of one name.

    Parameters
    ----------
    importance
        Weight of the worst finding of this name; the others weigh less, by their size.
    brief
        The finding in a few words.
    cause, cure
        Usual cause, and remedy.
    """

    importance: float
    brief: str
    cause: str
    cure: str


_FEW_CHUNKS = "few chunks or whole shards are mixed at a time, of data that lie sorted"
_WIDER = (
    "mix as many chunks at a time as a global batch has samples: a larger window, smaller chunks, more shards read at "
    "once; or shuffle the data once when they are written"
)
_EPOCH = "the epoch is never told to the loader, or its seed does not reach all that is random"
_SET_EPOCH = "call set_epoch() for every epoch, and derive all randomness from seed and epoch by hashing, not by adding"
_CIPHER = "the permutation is computed with too few rounds, or by a linear function; or mixing is poor altogether"
_ROUNDS = "mend the mixing first; if that is fine, use more rounds or another permutation"

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
        "a buffer that is still filling at the start, or a tail that is not shuffled",
        "an order over the whole epoch instead of a buffer over a stream, or chunks in random order beneath the buffer",
    ),
    "displacement": Advice(0.8, "samples hardly move", "a buffer or blocks over storage order", _WIDER),
    "storage order": Advice(
        0.8, "spans are in storage order", "a tail or remainder that is not shuffled, or no shuffle at all", _WIDER
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


def findings_of(outcomes: Sequence[tuple[str, Outcome]]) -> list[Finding]:
    """Return a finding for each name among the test results that chance does not explain, heaviest first.

    Each result comes with the name of its epoch or pair of streams. Bonferroni's bound: a result counts if its
    probability is below `FALSE_ALARMS` over the number of tests. Whatever the dependence between tests, at most that
    share of audits of perfect shuffles then finds anything.
    """
    limit = FALSE_ALARMS / max(1, len(outcomes))
    found: dict[str, list[tuple[str, Outcome]]] = {}
    for where, outcome in outcomes:
        if outcome.probability < limit:
            found.setdefault(outcome.name, []).append((where, outcome))
    findings = []
    for name, these in found.items():
        # Serious ones first, then the least probable; of equally rare ones the largest, roughly,
        # and of these the first: the lowest bit, the shortest lag.
        where, worst = min(these, key=lambda item: _clarity(item[1]))
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


def _clarity(outcome: Outcome) -> tuple[bool, float, float]:
    return not outcome.is_serious, outcome.probability, -round(abs(outcome.found - outcome.expected), 1)


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
    return grade, f"{grade.capitalize()}{within}: {', '.join(filter(None, parts)) or 'no structure in the order'}"


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
    of_counts = [finding for finding in found if finding.name in _COUNTED]
    others = [finding for finding in found if finding not in of_counts]
    said = [as_sentence(finding.text) for finding in of_counts] or [_all_once(num_samples, is_part=is_part)]
    if ratios:
        said.append(_mixing(ratios, errors, batch))
    if not num_looks:
        said.append("There are too few samples to test for structure in the order.")
    elif not others:
        said.append(
            f"{counted(num_looks, 'test')} for structure in the order found none (a perfect shuffle fails one of them "
            f"in {FALSE_ALARMS:.1%} of audits)."
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


def as_sentence(text: str) -> str:
    """Return a text with an initial capital and a full stop.

    >>> as_sentence("two: 1, 2"), as_sentence("many: 1, 2 ...")
    ('Two: 1, 2.', 'Many: 1, 2 ...')
    """
    return text[:1].upper() + text[1:] + ("" if text.endswith("...") else ".")

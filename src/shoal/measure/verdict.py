"""From looks to findings, and from findings to words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.measure.looks import Look

__all__ = ["FALSE_ALARMS", "Finding", "findings_of", "verdict_of"]

FALSE_ALARMS = 0.001
"""The chance that an audit of perfect shuffles finds anything at all."""

_FINE = 1.2  # VR below which nobody will see a difference


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a perfect shuffle does not do.

    Parameters
    ----------
    name
        What was looked for: "missing", "repeated", "variance", "echo", "parity", "steps", "locality", "storage order",
        "runs", "start and end", "same order", "in step", "neighbours met again" ...
    is_serious
        Whether it is likely to matter to a training, judged by its size.
    text
        What was found, in words: the clearest of the looks of this name.
    where
        "epoch 0", or the two that were compared.
    found, expected, probability
        The number, what a perfect shuffle has, and how likely that goes so far by chance.
    num_looks
        How many looks of this name found something.
    """

    name: str
    is_serious: bool
    text: str
    where: str
    found: float
    expected: float
    probability: float
    num_looks: int = 1

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {name: getattr(self, name) for name in self.__slots__}


def findings_of(looks: Sequence[tuple[str, Look]]) -> list[Finding]:
    """The looks (with where each was taken) that chance does not explain; one finding for each name, serious first.

    Bonferroni's bound: a look counts when its probability is below `FALSE_ALARMS` over the number of looks. However
    the looks depend on each other, perfect shuffles are then found fault with in at most that share of audits.
    """
    limit = FALSE_ALARMS / max(1, len(looks))
    found: dict[str, list[tuple[str, Look]]] = {}
    for where, look in looks:
        if look.probability < limit:
            found.setdefault(look.name, []).append((where, look))
    findings = []
    for name, these in found.items():
        # Serious ones first; then what is farthest from chance; of equally rare ones about the
        # farthest in size, and of these the first: the lowest bit, the shortest lag.
        where, worst = min(
            these, key=lambda item: (not item[1].is_serious, item[1].probability, -round(_far(item[1]), 1))
        )
        findings.append(
            Finding(
                name, worst.is_serious, worst.text, where, worst.found, worst.expected, worst.probability, len(these)
            )
        )
    return sorted(findings, key=lambda finding: not finding.is_serious)


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
    """The audit in a few sentences."""
    found = list(findings)
    counted = [finding for finding in found if finding.name in {"missing", "repeated", "unknown"}]
    others = [finding for finding in found if finding not in counted]
    said = [_capital(finding.text) + "." for finding in counted] or [_all_once(num_samples, is_part=is_part)]
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
        return f"Of {num_samples:,} samples, none comes twice in an epoch of this part."
    return f"Each of {num_samples:,} samples comes exactly once in an epoch."


def _mixing(ratios: Mapping[int, float], errors: Mapping[int, float], batch: int) -> str:
    here = ratios[batch]
    if here <= _FINE + 3.0 * errors[batch]:
        # Three standard deviations: an epoch has few large batches, whose ratio says little.
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


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]

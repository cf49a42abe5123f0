"""Weights as exact integers, so that counts at any position are exact, and equal on every machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from shoal.errors import UsageError
from shoal.figures import exact_number, shown

TOTAL = 1 << 40
"""Largest sum of the integer weights of a mixture."""


def integer_weights(weights: Mapping[str, Any]) -> dict[str, int]:
    """Return integers in the ratio of weights by name, with a sum of at most 2^40.

    Weights are read as decimals, so .9 and .1 are 9 and 1. If the exact ratio needs larger numbers, weights are rounded
    to a sum of 2^40 by largest remainders. Rounding changes a weight by less than 10^-12, and never to zero.

    >>> integer_weights({"web": 0.9, "code": 0.1})
    {'web': 9, 'code': 1}

    Raises `UsageError` if there are no weights, all weights are zero, or a weight is negative or no number.
    """
    exact = {name: exact_weight(name, weight) for name, weight in weights.items()}
    total = sum(exact.values())
    if not total:
        msg = f"a mixture needs a weight above zero; got {shown(dict(weights))}"
        raise UsageError(msg, hint='weights={"web": 0.7, "code": 0.3}')
    scale = math.lcm(*(weight.denominator for weight in exact.values()))
    whole = {name: int(weight * scale) for name, weight in exact.items()}
    common = math.gcd(*whole.values())
    if sum(whole.values()) // common <= TOTAL:
        return {name: weight // common for name, weight in whole.items()}
    return _rounded({name: weight / total * TOTAL for name, weight in exact.items()})


def _rounded(ideal: Mapping[str, Fraction]) -> dict[str, int]:
    """Round to integers with the same sum: the largest remainders are rounded up, ties by name."""
    rounded = {name: max(int(weight), int(weight > 0)) for name, weight in ideal.items()}
    by_remainder = sorted(ideal, key=lambda name: (rounded[name] - ideal[name], name))
    missing = TOTAL - sum(rounded.values())
    for name in by_remainder[: max(missing, 0)]:
        rounded[name] += 1
    # The largest weight compensates for weights raised from zero to one: the change is relatively smallest there.
    rounded[max(rounded, key=lambda name: (rounded[name], name))] += min(missing, 0)
    return rounded


def exact_weight(name: str, weight: Any) -> Fraction:
    """Return a weight as its written decimal, or raise `UsageError` if the weight is no number, or negative."""
    try:
        exact = exact_number(weight)
    except OverflowError as error:
        msg = f"the weight of {name!r} is too long to be exact: {error}; got {shown(weight)}"
        raise UsageError(msg, hint="weights are ratios: 0.7 and 0.3, or 7 and 3") from None
    except ValueError:
        raise UsageError(f"the weight of {name!r} must be a number; got {shown(weight)}") from None
    if exact < 0:
        msg = f"the weight of {name!r} must not be negative; got {shown(weight)}"
        raise UsageError(msg, hint="0 leaves a source out")
    return exact

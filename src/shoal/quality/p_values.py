"""Tail probabilities of test results under a perfect shuffle, without any library."""

from __future__ import annotations

import math


def normal_tail(score: float) -> float:
    """Return the two-sided tail probability of a standard normal variable.

    >>> round(normal_tail(1.96), 3), normal_tail(0.0)
    (0.05, 1.0)
    """
    return math.erfc(abs(score) / math.sqrt(2.0))


def poisson_tail(count: int, mean: float) -> float:
    """Return the probability of at least ``count`` rare events if ``mean`` are expected.

    >>> round(poisson_tail(3, 1.0), 4), poisson_tail(0, 5.0)
    (0.0803, 1.0)
    """
    if count <= mean or mean <= 0.0:
        return 1.0 if count <= mean else 0.0
    if mean > 1e6:  # nearly normal, and the sum below would be long
        return normal_tail((count - mean) / math.sqrt(mean)) / 2.0
    term = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1.0))
    total = 0.0
    while term > total * 1e-16:
        total += term
        count += 1
        term *= mean / count
    return min(1.0, total)


def ratio_tail(ratio: float, freedom: float) -> float:
    """Return the two-sided tail probability of a mean square with expectation 1.

    For ``freedom`` independent squares: chi-square over its degrees of freedom, by the cube root approximation of
    E. B. Wilson and M. M. Hilferty, "The distribution of chi-square", 1931.

    >>> round(ratio_tail(2.0, 10.0), 2), ratio_tail(1.0, 1e12) > 0.9
    (0.06, True)
    """
    spread = 2.0 / (9.0 * freedom)
    return normal_tail((ratio ** (1.0 / 3.0) - 1.0 + spread) / math.sqrt(spread))

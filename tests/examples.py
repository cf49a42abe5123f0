"""How many examples a law gets whose examples take more than a few milliseconds each."""

from __future__ import annotations

from hypothesis import settings

_MOST_IN_MAKE_TEST = 50  # of tests/conftest.py


def few_examples(number: int) -> settings:
    """So many, or as many as the profile has where it searches for new ones."""
    of_profile = settings().max_examples
    return settings(max_examples=number if of_profile <= _MOST_IN_MAKE_TEST else of_profile)

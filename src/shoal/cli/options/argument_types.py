"""Types of arguments on the command line, and the spelling of options."""

from __future__ import annotations

import argparse

from shoal.hints import did_you_mean
from shoal.order.registry import ORDERS


def option_of(name: str) -> str:
    """Return the option of an argument, such as "--global-batch" for "global_batch"."""
    return f"--{name.replace('_', '-')}"


def at_least_zero(text: str) -> int:
    """Parse an integer that is not negative."""
    return _at_least(0, text)


def at_least_one(text: str) -> int:
    """Parse a positive integer."""
    return _at_least(1, text)


def count(text: str) -> int:
    """Parse a positive integer, with or without an exponent.

    >>> count("2e9"), count("1_000")
    (2000000000, 1000)
    """
    try:
        number = float(text) if "e" in text.lower() else int(text)
        if number >= 1 and number == int(number):
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"expected an integer of at least 1, such as 1000 or 1e3; got {text!r}")


def sample_ids(text: str) -> list[int]:
    """Parse sample ids separated by commas.

    >>> sample_ids("5,9, 100")
    [5, 9, 100]
    """
    return [_at_least(0, word) for word in text.split(",")]


def order(text: str) -> str:
    """Check the order's name in a text such as ``block(chunks=64)``, and return the text unchanged."""
    name = text.partition("(")[0].strip()
    if name not in ORDERS:
        msg = f"there is no order {name!r}; {did_you_mean(name, ORDERS)}there are {', '.join(ORDERS)}"
        raise argparse.ArgumentTypeError(msg)
    return text


def names(text: str) -> list[str]:
    """Parse names separated by commas."""
    return text.split(",")


def _at_least(least: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"expected an integer of at least {least}; got {text!r}")
    return number

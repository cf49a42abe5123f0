"""Modification times as stores give them: in nanoseconds, in seconds, as a date; and their comparison.

The system has nanoseconds, http and most archives have seconds. So a time without a fraction may be a whole second, or
one whose fraction was lost on the way.
"""

from __future__ import annotations

import datetime as dt
import re

_SECOND_NS = 10**9
_NANOSECONDS = re.compile(r"\d{18,19}")  # since 1970: the years 1973 to 2286


def timestamp(date: str) -> float | None:
    """Return an http date in seconds since 1970; None if it is not a valid date."""
    import email.utils  # noqa: PLC0415  # slow to import, and seldom needed

    try:
        return email.utils.parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def nanoseconds_of(said: object) -> int | None:
    """Return a store's modification time (a date, seconds, or a local version) in nanoseconds since 1970; else None.

    Seconds that come as a float, and fractions of a date, are truncated: they are not exact enough to be compared.

    >>> nanoseconds_of("Thu, 01 Jan 2026 00:00:00 GMT") == nanoseconds_of(1767225600.25) == 1767225600 * 10**9
    True
    """
    if isinstance(said, str) and _NANOSECONDS.fullmatch(said):
        return int(said)
    try:
        if isinstance(said, str):
            seconds = timestamp(said)
        elif isinstance(said, dt.datetime):
            seconds = said.timestamp()
        else:
            seconds = float(said) if isinstance(said, int | float) else None
        return None if seconds is None else int(seconds) * _SECOND_NS
    except (ValueError, OverflowError, OSError):
        return None


def same_time(one_ns: int | None, other_ns: int | None) -> bool:
    """Return True if two times are equal; to the second, if one of them has no fraction of a second."""
    if one_ns is None or other_ns is None:
        return False
    if one_ns % _SECOND_NS and other_ns % _SECOND_NS:
        return one_ns == other_ns
    return one_ns // _SECOND_NS == other_ns // _SECOND_NS

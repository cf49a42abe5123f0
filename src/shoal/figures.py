"""Numbers as people read and write them: bytes, counts, durations and exact decimals."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from shoal.errors import UsageError

MOST_DIGITS = 400
"""Digits of an exact number, before or after the decimal point: enough for every float."""
_EXPONENT = re.compile(r"[eE]([-+]?\d+)")
_MOST_SHOWN = 80
_BYTES = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {f"{letter}i": 2 ** (10 * power) for power, letter in enumerate("kmgt", start=1)}
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def format_bytes(num_bytes: float) -> str:
    """Format a number of bytes in the binary unit that keeps it below 1024.

    >>> format_bytes(1023), format_bytes(1024), format_bytes(5 * 2**40), format_bytes(2**20 - 1)
    ('1,023 B', '1.0 KiB', '5.0 TiB', '1.0 MiB')
    """
    if not math.isfinite(num_bytes):
        return str(num_bytes)
    if abs(num_bytes) < 1024:
        return f"{num_bytes:,.0f} B"
    scaled, unit = float(num_bytes), 0
    # 1023.95 and not 1024, or 2**20 - 1 bytes would read "1024.0 KiB".
    while abs(scaled) >= 1023.95 and unit < len(_BINARY_UNITS) - 1:
        scaled /= 1024
        unit += 1
    return f"{scaled:,.1f} {_BINARY_UNITS[unit]}"


def parse_bytes(value: Any, name: str) -> int:
    """Parse a number of bytes from an int or a text such as "512MiB" or "2 GB".

    >>> parse_bytes("1.5KiB", "window")
    1536
    """
    number = 0
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        number = int(value)
    elif isinstance(value, str) and (match := _BYTES.fullmatch(value)):
        number = round(float(match[1]) * _UNITS[(match[2] or "").lower()])
    if number <= 0:
        msg = f"{name} must be a number of bytes; got {value!r}"
        raise UsageError(msg, hint='for example 16 * 2**20, "16MiB" (binary) or "16MB" (decimal)')
    return number


def bytes_text(num_bytes: int, *, is_enough: Callable[[int], bool]) -> str:
    """Return the shortest text that `parse_bytes` reads as a sufficient number, or the number itself if there is none.

    >>> bytes_text(21_401_600_000, is_enough=lambda number: number // 8_360_000 == 2560)
    '19.932GiB'
    """
    for digits in range(7):
        for unit in ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "KB"):
            scale = _UNITS[unit[:-1].lower()]
            text = f"{num_bytes / scale:.{digits}f}{unit}"
            if scale <= num_bytes < 1000 * scale and is_enough(parse_bytes(text, "bytes")):
                return text
    return str(num_bytes)


def format_count(count: float) -> str:
    """Format a count with thousands separators.

    >>> format_count(10_000_000), format_count(12.34), format_count(1234.5)
    ('10,000,000', '12.3', '1,234')
    """
    if isinstance(count, int):
        return f"{count:,}"
    if not math.isfinite(count):
        return str(count)
    return f"{count:,.1f}" if abs(count) < 100 else f"{count:,.0f}"


def counted(count: int, thing: str) -> str:
    """Format a count with its noun, given in the singular.

    >>> counted(0, "shard"), counted(1, "shard"), counted(2000, "shard")
    ('0 shards', '1 shard', '2,000 shards')
    """
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def lacking(count: int, thing: str) -> str:
    """Format a count with its noun, given in the singular, and the verb "lack".

    >>> lacking(1, "sample"), lacking(2, "sample")
    ('1 sample lacks', '2 samples lack')
    """
    return f"{counted(count, thing)} lack{'s' if count == 1 else ''}"


def format_seconds(seconds: float) -> str:
    """Format a duration in ms, s, min or h.

    >>> format_seconds(0.0123), format_seconds(12.3), format_seconds(75), format_seconds(7275)
    ('12 ms', '12.3 s', '1:15 min', '2:01 h')
    """
    if not math.isfinite(seconds):
        return str(seconds)
    if abs(seconds) < 1:
        return f"{seconds * 1000:.0f} ms"
    if abs(seconds) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60:,}:{minutes % 60:02d} h"


def exact_number(value: object) -> Fraction:
    """Return a number exactly as it is written: an integer, a float, a fraction, or a text of one.

    The limit applies before the computation: ``1e999999999`` has eleven characters, and would take 400 MB. A `Fraction`
    is returned unchanged.

    >>> exact_number(".1"), exact_number(0.1), exact_number("2/3")
    (Fraction(1, 10), Fraction(1, 10), Fraction(2, 3))

    Raises
    ------
    ValueError
        The value is not a number.
    OverflowError
        The number has more than `MOST_DIGITS` digits before or after the decimal point.
    """
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool):
        raise ValueError("a bool is not a number")  # noqa: TRY004  # as for every value that is not a number
    is_long = isinstance(value, int) and value.bit_length() > MOST_DIGITS * math.log2(10)
    text = "" if is_long else str(value).strip()
    exponents = [part.lstrip("+-").lstrip("0") or "0" for part in _EXPONENT.findall(text)]
    if is_long or len(text) > 2 * MOST_DIGITS or any(len(part) > 3 or int(part) > MOST_DIGITS for part in exponents):
        raise OverflowError(f"a number has at most {MOST_DIGITS} digits before or after the decimal point")
    try:
        return Fraction(text)
    except ZeroDivisionError:
        raise ValueError("the denominator of a fraction must not be 0") from None


def shown(value: object) -> str:
    """Return a value for an error, in about 80 characters, also if Python refuses to write all of its digits.

    >>> shown("web"), shown("9" * 5000)[-28:], shown(10**5000)
    ("'web'", '999... (5,002 characters)', 'a number of 16,610 bits')
    """
    try:
        text = repr(value)
    except RecursionError:
        return f"a value of {type(value).__name__} that is nested too deeply"
    except ValueError:  # an integer of more than 4,300 digits, or a fraction of two
        bits = value.bit_length() if isinstance(value, int) else 0
        return f"a number of {bits:,} bits" if bits else "a number of thousands of digits"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}... ({len(text):,} characters)"

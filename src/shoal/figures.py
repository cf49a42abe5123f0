"""Human-readable numbers: bytes, counts and durations."""

from __future__ import annotations

import math

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
    """Format a duration with the precision that matters.

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

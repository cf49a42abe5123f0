"""Output of the command line, for people and for machines; the only module of shoal that prints.

A verb passes one *record*, a mapping of names to values, to `emit`. Names carry units (``window_bytes``,
``num_samples``, ``elapsed_seconds``): JSON has the plain values, text has values with units.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO

from shoal.figures import format_bytes, format_count, format_seconds

_UNITS: Mapping[str, Callable[[float], str]] = {  # by the end of a name, longer ends first
    "bytes_per_second": lambda value: f"{format_bytes(value)}/s",
    "per_second": lambda value: f"{format_count(value)}/s",
    "bytes": format_bytes,
    "seconds": format_seconds,
}

# Control characters but newlines and tabs, and characters that change the direction of writing.
_FOR_TERMINALS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def emit(record: Mapping[str, Any], *, as_json: bool = False, stream: TextIO | None = None) -> None:
    """Print one record as a line of JSON, or as aligned text.

    A list of mappings becomes a table. Values may be numpy numbers and arrays; in JSON, a number that is not finite
    becomes ``null``.

    >>> emit({"num_samples": 1234567, "window_bytes": 3 << 29})
    samples  1,234,567
    window     1.5 GiB
    >>> emit({"num_samples": 1234567, "window_bytes": 3 << 29}, as_json=True)
    {"num_samples": 1234567, "window_bytes": 1610612736}
    """
    if as_json:  # escaped here, since the escapes of say() are not JSON
        text = json.dumps(_plain(record), ensure_ascii=False, allow_nan=False)
        say(_FOR_TERMINALS.sub(lambda letter: f"\\u{ord(letter[0]):04x}", text), stream)
    else:
        say(format_record(record), stream)


def without_usual(record: Mapping[str, Any], **usual: Any) -> dict[str, Any]:
    """Leave out values that are None or equal to the ``usual`` value."""
    return {name: value for name, value in record.items() if value is not None and value != usual.get(name)}


def say(text: str = "", stream: TextIO | None = None) -> None:
    """Print a line to stdout, without commands for the terminal."""
    print(_harmless(text), file=sys.stdout if stream is None else stream)


def complain(text: str) -> None:
    """Print a line to stderr, with the prefix ``shoal:`` and without commands for the terminal."""
    flush()  # to keep the order of lines in a terminal or a shared log
    print(f"shoal: {_harmless(text)}", file=sys.stderr, flush=True)


def flush() -> None:
    """Flush stdout, if it exists."""
    print(end="", flush=True)


def format_record(record: Mapping[str, Any]) -> str:
    """Format a record as lines of name and value, followed by its tables.

    >>> print(format_record({"format": "tar", "shards": [{"name": "a.tar", "num_samples": 10}]}))
    format  tar
    <BLANKLINE>
    shards:
    name   samples
    a.tar       10
    """
    lines, tables = [], []
    for name, value in record.items():
        if isinstance(value, list | tuple) and value and all(isinstance(item, Mapping) for item in value):
            tables.append(f"{_label(name)}:\n{format_table(value)}")
        else:
            lines.append((_label(name), format_value(name, value), _is_number(value)))
    name_width = max((len(name) for name, _, _ in lines), default=0)
    number_width = max((len(text) for _, text, number in lines if number), default=0)
    facts = [f"{name:<{name_width}}  {text:>{number_width if number else 0}}".rstrip() for name, text, number in lines]
    return "\n\n".join(["\n".join(facts), *tables] if facts else tables)


def format_table(rows: Sequence[Mapping[str, Any]], columns: Iterable[str] | None = None) -> str:
    """Format rows as a table; without ``columns``, the first row has the columns.

    >>> print(format_table([{"shard": "a", "num_bytes": 2048}, {"shard": "bb", "num_bytes": 12}]))
    shard    bytes
    a      2.0 KiB
    bb        12 B
    """
    names = list(columns) if columns is not None else list(rows[0]) if rows else []
    cells = [[_label(name) for name in names]]
    cells += [[format_value(name, row.get(name)) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    to_right = [all(_is_number(row.get(name)) or row.get(name) is None for row in rows) for name in names]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, to_right, strict=True)
        ).rstrip()
        for line in cells
    )


def format_value(name: str, value: Any) -> str:
    """Format a value as text; its name has the unit.

    >>> format_value("chunk_bytes", 1 << 20), format_value("num_chunks", 4096), format_value("seed", 4096)
    ('1.0 MiB', '4,096', '4096')
    """
    value = _plain_scalar(value)
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        for unit, formatted in _UNITS.items():
            if name.endswith(unit):
                return formatted(value)
        if name.startswith("num_"):
            return format_count(value)
        return str(value) if isinstance(value, int) else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{_label(key)} {format_value(key, item)}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(format_value("", item) for item in value) or "-"
    return str(value)


def _harmless(text: str) -> str:
    """Escape commands for terminals: a file of a stranger may have any name, and errors quote names."""
    return _FOR_TERMINALS.sub(lambda letter: ascii(letter[0])[1:-1], text)


def _label(name: str) -> str:
    """Return a name without its unit."""
    short = name.removeprefix("num_")
    for unit in _UNITS:
        # "num_bytes" stays "bytes": one word must remain.
        short = short.removesuffix(f"_{unit}") if short != f"_{unit}" else short
    return (short or name).replace("_", " ")


def _is_number(value: Any) -> bool:
    value = _plain_scalar(value)
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain_scalar(value: Any) -> Any:
    """Convert a numpy scalar or array to types of Python, without importing numpy."""
    return value.tolist() if hasattr(value, "tolist") else value


def _plain(value: Any) -> Any:
    """Convert a value to the types of JSON."""
    value = _plain_scalar(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)

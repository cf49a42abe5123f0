"""Random rows with every type that tables share, and random conditions on their columns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()), ("small", pa.int32()), ("text", pa.string()), ("score", pa.float32()),
        ("wide", pa.float64()), ("flag", pa.bool_()), ("price", pa.decimal128(12, 2)),
        ("when", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")), ("day", pa.date32()), ("blob", pa.binary()), ("list", pa.list_(pa.int32())),
        ("nested", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.struct([("z", pa.string()), ("w", pa.int64())])))])),
        ("map", pa.map_(pa.string(), pa.struct([("v", pa.int32())]))),
    ]
)  # fmt: skip


def row(random: Random, number: int) -> dict[str, Any]:
    """One row; each value but the id is missing in an eighth of the rows."""
    when = BEGIN + timedelta(microseconds=random.randrange(10**12))
    values = {
        "small": random.randrange(-100, 100),
        "text": random.choice(["", "a", "b c", "é", f"text {number}"]),
        "score": random.random(),
        "wide": random.choice([0.0, -0.0, 1e300, random.gauss(0, 1)]),
        "flag": random.random() < 0.5,
        "price": Decimal(random.randrange(-(10**6), 10**6)) / 4,
        "when": when,
        "local": when.replace(tzinfo=None),
        "day": date(2026, 1, random.randrange(1, 5)),
        "blob": random.randbytes(random.randrange(4)),
        "list": [random.choice([None, number]) for _ in range(random.randrange(4))],
        "nested": {"x": number, "y": random.choice([None, [], [{"z": str(number), "w": None}, None]])},
        "map": [(str(key), random.choice([None, {"v": key}])) for key in range(random.randrange(3))],
    }
    return {"id": number, **{name: None if random.random() < 1 / 8 else value for name, value in values.items()}}


def rows(random: Random, first: int, names: Sequence[str] = SCHEMA.names) -> pa.Table:
    """Some rows, numbered from ``first``, with these columns."""
    made = [row(random, first + number) for number in range(random.randrange(1, 60))]
    return pa.Table.from_pylist(made, SCHEMA).select(list(names))


def condition(random: Random, last: int) -> list[tuple[str, str, Any]]:
    """A condition on columns with statistics."""
    return [
        ("id", random.choice(["<", ">=", "="]), random.randrange(last + 1)),
        ("day", random.choice(["<=", ">", "!="]), date(2026, 1, random.randrange(1, 5))),
    ][: random.randrange(1, 3)]


def holds(found: dict[str, Any], conditions: Sequence[tuple[str, str, Any]]) -> bool:
    """Whether a row surely matches; rows with a missing value do not."""
    compare = {
        "<": lambda a, b: a < b, ">=": lambda a, b: a >= b, "=": lambda a, b: a == b, "<=": lambda a, b: a <= b,
        ">": lambda a, b: a > b, "!=": lambda a, b: a != b,
    }  # fmt: skip
    return all(found[name] is not None and compare[sign](found[name], value) for name, sign, value in conditions)

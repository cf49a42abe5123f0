"""Rows of a dataset and of another library, in a form in which equal values and types have equal texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

import shoal


def plain(value: Any) -> Any:
    """A value with arrays as lists, as pyarrow gives them."""
    if isinstance(value, np.ndarray):
        return [plain(part) for part in value.tolist()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(part) for part in value)
    return value


def texts_of(rows: Iterable[Any], *, maps: tuple[str, ...] = ()) -> list[str]:
    """Rows as sorted texts, which also differ where types do; empty values of ``maps`` count as missing."""
    return sorted(
        repr({name: value if value or name not in maps else None for name, value in plain(row).items()}) for row in rows
    )


def assert_same_rows(ds: shoal.Dataset, table: Any, *, maps: tuple[str, ...] = ()) -> int:
    """Assert that a dataset has the rows of a table of pyarrow, in any order; return their number."""
    expected = pa.table(table)
    assert list(ds.stream.spec.opened.one("a test").format.schema({}).names) == expected.column_names
    assert texts_of(ds, maps=maps) == texts_of(expected.to_pylist(), maps=maps)
    return expected.num_rows

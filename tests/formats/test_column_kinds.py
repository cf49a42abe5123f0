"""The columns of rows, collected in any groups, hold all of them exactly."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.formats.tables.column_kinds import ColumnKinds, joined_kinds, kinds_of_rows, schema_of_kinds
from shoal.formats.tables.rows_to_columns import RowRefusedError, table_of_rows

pa = pytest.importorskip("pyarrow")

NUMBERS = st.one_of(st.none(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "whole": st.integers(-(2**63), 2**63 - 1),
    "large": st.one_of(st.none(), st.integers(0, 2**64 - 1)),
    "number": NUMBERS,
    "text": st.one_of(st.none(), st.text(max_size=3)),
    "truth": st.booleans(),
    "list": st.one_of(st.none(), st.lists(NUMBERS, max_size=3)),
    "exact": st.decimals(-1000, 1000, places=2),
    "parts": st.fixed_dictionaries({}, optional={"a": NUMBERS, "b": st.text(max_size=2), "c": st.lists(st.booleans())}),
}
ROWS = st.lists(st.fixed_dictionaries({}, optional=VALUES), min_size=1, max_size=12)


def kinds_in(groups: list[list[dict[str, Any]]], *, skips: bool = False) -> ColumnKinds:
    kinds: ColumnKinds = {}
    first = 0
    for group in groups:
        kinds = kinds_of_rows(kinds, group, first=first, format_name="parquet", skips=skips)
        first += len(group)
    return kinds


def filled(value: Any, like: Any) -> Any:
    """A value as a table gives it back: structs have all of their fields."""
    if isinstance(value, dict):
        return {name: filled(value.get(name), inner) for name, inner in like.items()}
    return value


@settings(max_examples=50)
@given(rows=ROWS, cut=st.integers(0, 12), apart=st.booleans())
def test_all_rows_go_into_the_columns_that_were_found(rows: list[dict[str, Any]], cut: int, apart: bool) -> None:
    if apart:  # by two processes
        kinds = joined_kinds(kinds_in([rows[:cut]]), kinds_in([rows[cut:]]), skips=False)
    else:
        kinds = kinds_in([rows[:cut], *([row] for row in rows[cut:])])
    if not any(rows):
        assert not kinds
        return
    schema = schema_of_kinds(kinds)
    assert schema.names == list(dict.fromkeys(name for row in rows for name in row))
    read_rows = table_of_rows(rows, schema, format_name="parquet").to_pylist()
    for row, back in zip(rows, read_rows, strict=True):
        for name, value in back.items():
            given_value = row.get(name)
            assert value == (filled(given_value, value) if isinstance(value, dict) else given_value)


def test_what_does_not_fit_is_named_with_its_sample() -> None:
    rows: list[dict[str, Any]] = [{"value": number, "key": f"k{number}"} for number in range(100)]
    rows[77]["value"] = "text"
    for groups in ([rows], [rows[:30], rows[30:]]):
        with pytest.raises(
            RowRefusedError,
            match=r"sample 77: the sample 'k77': the column 'value', which is int64 .*cannot hold 'text'.*nothing",
        ):
            kinds_in(groups)
    with pytest.raises(UsageError, match=r"'value' is int64 at first, but string from about the sample 0 on"):
        joined_kinds(kinds_in([rows[:10]]), kinds_in([[rows[77]]]), skips=False)
    with pytest.raises(UsageError, match="which is double in the samples before, cannot hold 9007199254740993"):
        kinds_in([[{"value": 0.5}], [{"value": 2**53 + 1}]])
    with pytest.raises(UsageError, match="cannot hold -1"):
        kinds_in([[{"value": 2**64 - 1}], [{"value": -1}]])


def test_what_does_not_fit_says_nothing_where_it_will_be_left_out() -> None:
    rows: list[dict[str, Any]] = [{"value": number} for number in range(40)]
    rows[3] = {"value": "text", "also": 1}
    rows[4] = {"value": {1, 2}, "not": 1}
    rows[39] = {"value": 0.5, "late": "x"}
    schema = schema_of_kinds(kinds_in([rows[:20], rows[20:]], skips=True))
    assert [(column.name, str(column.type)) for column in schema] == [
        ("value", "double"),
        ("also", "int64"),
        ("late", "string"),
    ]


def test_decimals_get_the_digits_of_all() -> None:
    kinds = kinds_in([[{"x": Decimal("123.4")}], [{"x": Decimal("0.567")}], [{"x": None}]])
    assert str(schema_of_kinds(kinds)) == "x: decimal128(6, 3)"


def test_names_without_end_are_no_columns() -> None:
    groups = [[{"counts": {f"word{start + number}": 1 for number in range(3000)}}] for start in range(0, 15_000, 3000)]
    with pytest.raises(UsageError, match="more than 10000 different fields"):
        kinds_in(groups)


def test_rows_of_no_columns_do_not_vanish() -> None:
    assert kinds_in([[{}, {}], [{"a": 1}, {}]]).keys() == {"a"}
    with pytest.raises(UsageError, match="no sample has a field"):
        schema_of_kinds(kinds_in([[{}, {}]]))
    for schema in (None, pa.schema([])):
        with pytest.raises(RowRefusedError, match="without columns"):
            table_of_rows([{}, {}], schema, format_name="parquet")

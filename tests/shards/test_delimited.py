"""Delimited files and plain text, against Python's csv module and a plain split."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.errors import ShardError
from shoal.shards.delimited import Delimited
from shoal.shards.protocol import Stretch
from shoal.shards.text import Text

BOM = b"\xef\xbb\xbf"
FIELDS = st.text(st.sampled_from('ab ",\t\n\u00e9;'), max_size=6)


def samples_of(format: Any, data: bytes, *, with_starts: bool = True) -> list[dict[str, Any]]:  # noqa: A002
    found = format.scan(lambda first, end: data[first:end], len(data), shard="a.csv")
    begin, end = int(found.sample_starts[0]), int(found.sample_starts[-1])
    starts = (found.sample_starts - begin).tolist() if with_starts else None
    opened = format.parse(data[begin:end], Stretch("a.csv", begin, found.num_samples, starts, found.head))
    assert opened.layout_crcs().tolist() == found.layout_crcs.tolist()
    return [opened.sample(number) for number in range(found.num_samples)]


@given(
    rows=st.lists(st.lists(FIELDS, min_size=3, max_size=3), max_size=6),
    end=st.sampled_from(["\n", "\r\n"]),
    delimiter=st.sampled_from([",", "\t", ";"]),
    window_bytes=st.sampled_from([1, 3, 8, 1000]),
    with_starts=st.booleans(),
    bom=st.booleans(),
)
def test_what_csv_writes_is_read(
    rows: list[list[str]], end: str, delimiter: str, window_bytes: int, with_starts: bool, bom: bool
) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end)
    writer.writerow(["x", "y z", "\u00e4"])
    writer.writerows(rows)
    data = BOM * bom + out.getvalue().encode()
    format = Delimited(delimiter=delimiter, window_bytes=window_bytes)  # noqa: A001
    found = samples_of(format, data, with_starts=with_starts)
    assert [list(sample.values()) for sample in found] == rows
    assert all(list(sample) == ["x", "y z", "\u00e4"] for sample in found)


def test_a_stray_quote_is_refused_with_its_byte() -> None:
    data = b'size,name\n1,a\n5" disk,b\n'
    for window_bytes in (1, 2, 5, 100):
        with pytest.raises(ShardError, match="in the middle of a field") as caught:
            samples_of(Delimited(window_bytes=window_bytes), data)
        assert caught.value.byte == data.index(b'"')
    assert samples_of(Delimited(quoted=False), data)[1] == {"size": '5" disk', "name": "b"}


def test_records_of_other_lengths_are_refused_one_by_one() -> None:
    data = b"a,b\n1,2\n3\n\n,\n4,5,6\n"
    format = Delimited()  # noqa: A001
    found = format.scan(lambda first, end: data[first:end], len(data), shard="a.csv")
    begin = int(found.sample_starts[0])
    opened = format.parse(data[begin:], Stretch("a.csv", begin, 4, None, found.head))
    assert opened.sample(0) == {"a": "1", "b": "2"}
    assert opened.sample(2) == {"a": "", "b": ""}
    for number, start in ((1, b"3\n"), (3, b"4,5")):
        with pytest.raises(ShardError, match=r"has \d fields, and there are 2 columns") as caught:
            opened.sample(number)
        assert caught.value.byte == data.index(start)


@pytest.mark.parametrize("header", ["a,a\n", "a,\n"])
def test_columns_need_names(header: str) -> None:
    with pytest.raises(ShardError, match="should name the columns"):
        samples_of(Delimited(), f"{header}1,2\n".encode())


def test_columns_may_be_given() -> None:
    assert samples_of(Delimited(columns=["x", "y"]), b"1,2\n3,4") == [{"x": "1", "y": "2"}, {"x": "3", "y": "4"}]
    assert samples_of(Delimited(), b"") == []
    assert samples_of(Delimited(), b"only,names\n") == []


def test_a_field_may_be_large() -> None:
    assert samples_of(Delimited(), b"a\n" + b"x" * 200_000 + b"\n")[0]["a"] == "x" * 200_000


@given(lines=st.lists(st.text(st.sampled_from('a \t\u00e9"'), max_size=5), max_size=8), bom=st.booleans())
def test_lines_of_text_are_those_of_a_split(lines: list[str], bom: bool) -> None:
    data = BOM * bom + "\n".join(lines).encode()
    expected = [{"text": line} for line in lines if line.strip()]
    assert samples_of(Text(window_bytes=3), data) == expected
    assert samples_of(Text(), data, with_starts=False) == expected


def test_text_that_is_not_utf_8_is_refused_with_its_byte() -> None:
    with pytest.raises(ShardError, match="not UTF-8") as caught:
        samples_of(Text(), b"good\n\n  b\xffd\n")
    assert caught.value.byte == 9


def test_a_type_of_no_column_is_told_from_a_value_of_another_type(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,x\n")
    with pytest.raises(ShardError, match="types= names the column 'c'; there are a, b"):
        shoal.open(tmp_path / "a.csv", format=Delimited(types={"c": "int"}))[0]
    with pytest.raises(ShardError, match="column 'b' has no int"):
        shoal.open(tmp_path / "a.csv", format=Delimited(types={"b": "int"}))[0]

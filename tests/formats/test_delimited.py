"""Delimited files and plain text, against Python's csv module and a plain split."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.errors import ShardError, UsageError
from shoal.formats.rows.lines import delimited
from shoal.formats.rows.lines.delimited import Delimited
from shoal.formats.rows.lines.reader import Text
from shoal.formats.shard_format import Span
from shoal.testing.known_shards import measured

BOM = b"\xef\xbb\xbf"
FIELDS = st.text(st.sampled_from('ab ",\t\n\u00e9;'), max_size=6)


def samples_of(format: Any, data: bytes, *, with_starts: bool = True) -> list[dict[str, Any]]:  # noqa: A002
    found = format.scan(lambda first, end: data[first:end], len(data), shard="a.csv")
    begin, end = int(found.sample_starts[0]), int(found.sample_starts[-1])
    starts = (found.sample_starts - begin).tolist() if with_starts else None
    opened = format.parse(data[begin:end], Span("a.csv", begin, found.num_samples, starts, found.head))
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
            samples_of(Delimited(strict=True, window_bytes=window_bytes), data)
        assert caught.value.byte == data.index(b'"')
        assert samples_of(Delimited(window_bytes=window_bytes), data)[1] == {"size": '5" disk', "name": "b"}
    assert samples_of(Delimited(quoted=False), data)[1] == {"size": '5" disk', "name": "b"}


def test_records_of_other_lengths_are_refused_one_by_one() -> None:
    data = b"a,b\n1,2\n3\n\n,\n4,5,6\n"
    format = Delimited()  # noqa: A001
    found = format.scan(lambda first, end: data[first:end], len(data), shard="a.csv")
    begin = int(found.sample_starts[0])
    opened = format.parse(data[begin:], Span("a.csv", begin, 4, None, found.head))
    assert opened.sample(0) == {"a": "1", "b": "2"}
    assert opened.sample(2) == {"a": "", "b": ""}
    for number, start, how_many in ((1, b"3\n", "1"), (3, b"4,5", "more than 2")):
        with pytest.raises(ShardError, match=rf"has {how_many} fields, but the shard has 2 columns") as caught:
            opened.sample(number)
        assert caught.value.byte == data.index(start)


@pytest.mark.parametrize("header", ["a,a\n", "a,\n"])
def test_columns_need_names_where_strict(header: str) -> None:
    with pytest.raises(ShardError, match="should name the columns"):
        samples_of(Delimited(strict=True), f"{header}1,2\n".encode())


def test_columns_without_a_name_of_their_own_are_named_as_pandas_names_them() -> None:
    # pandas 3.1.1 reads these names from the same records; `make compat` compares with the newest.
    for first, names in (
        (",a,b", ["Unnamed: 0", "a", "b"]),
        ("a,a,a", ["a", "a.1", "a.2"]),
        ("a,a,a.1", ["a", "a.2", "a.1"]),
        ("a,,a,", ["a", "Unnamed: 1", "a.1", "Unnamed: 3"]),
        (",Unnamed: 0", ["Unnamed: 0.1", "Unnamed: 0"]),
    ):
        values = [str(place) for place in range(len(names))]
        data = f"{first}\n{','.join(values)}\n".encode()
        assert samples_of(Delimited(), data) == [dict(zip(names, values, strict=True))]
    many = samples_of(Delimited(), b",".join([b"a"] * 100_000) + b"\n" + b",".join([b"1"] * 100_000) + b"\n")
    assert len(many[0]) == 100_000


ODD = st.text(st.sampled_from('a",\r\n '), max_size=14)


@settings(max_examples=200)
@given(text=ODD, window_bytes=st.sampled_from([1, 2, 3, 1000]), with_starts=st.booleans(), is_large=st.booleans())
def test_what_csv_reads_is_read_as_it_reads_it(text: str, window_bytes: int, with_starts: bool, is_large: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "SMALL_BYTES", -1 if is_large else 1000)
        check_like_csv(text, window_bytes, with_starts)


def check_like_csv(text: str, window_bytes: int, with_starts: bool) -> None:
    """Quotes and carriage returns wherever they are; records of another length and open quotes are errors."""
    format = Delimited(columns=["x", "y"], window_bytes=window_bytes)  # noqa: A001
    rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    is_open = _ends_inside_quotes(text)
    try:
        found = samples_of(format, text.encode(), with_starts=with_starts)
    except ShardError:
        assert is_open or any(len(row) != 2 for row in rows)
    else:
        assert not is_open
        assert [list(sample.values()) for sample in found] == [row for row in rows if len(row) > 1]
        assert not any(row[0].strip() for row in rows if len(row) == 1)


def _ends_inside_quotes(text: str) -> bool:
    try:
        list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        if "unexpected end of data" in str(error):
            return True
    # Where something else is wrong before, a quote more would close it: then there are other rows.
    before = list(csv.reader(io.StringIO(text, newline="")))
    return (
        list(csv.reader(io.StringIO(text + '"', newline=""))) == before
        and list(csv.reader(io.StringIO(text + "\n", newline=""))) != before
    )


def test_the_newline_that_is_given_is_the_only_one() -> None:
    exact = Delimited(quoted=False, newline="\n", delimiter="||")
    assert samples_of(exact, b"a||b\nx||y\r\n \r||\n") == [{"a": "x", "b": "y\r"}, {"a": " \r", "b": ""}]
    both = Delimited(quoted=False, newline="\r\n", window_bytes=1)
    assert samples_of(both, b"a,b\r\nx\n,\ry\r\n") == [{"a": "x\n", "b": "\ry"}]
    alone = Delimited(quoted=False, newline="\n")
    assert samples_of(alone, b"a\n\nx\n\n \n") == [{"a": ""}, {"a": "x"}, {"a": ""}, {"a": " "}]
    for options in ({"newline": "\n"}, {"newline": "\r", "quoted": False}, {"delimiter": "||"}, {"delimiter": ""}):
        with pytest.raises(UsageError):
            Delimited(**options)


def test_records_and_names_have_a_limit() -> None:
    limited = Delimited(record_limit_bytes=1000)
    data = b'a,b\n1,2\n3,"' + b"x\n" * 2000
    with pytest.raises(ShardError, match="record longer than 1000 bytes") as caught:
        samples_of(limited, data)
    assert caught.value.byte == 8
    assert "quote" in (caught.value.hint or "")
    with pytest.raises(ShardError, match="no whole record that could name the columns"):
        samples_of(Delimited(), bytes(2 << 20))


def test_a_large_record_takes_little_more_than_its_bytes() -> None:
    data = b'a,b\n"' + b'x,""\n' * 1_000_000 + b'",y\n'
    found, used_bytes = measured(lambda: samples_of(Delimited(), data))
    assert len(found[0]["a"]) == 4_000_000
    assert used_bytes < 6 * len(data)


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

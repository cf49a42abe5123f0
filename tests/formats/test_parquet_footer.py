"""The walk through a Parquet footer, against pyarrow's."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import ShardError
from shoal.formats.tables.parquet import Parquet
from shoal.formats.tables.parquet_footer import groups_in

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def footer_of(table: Any, **options: Any) -> tuple[bytes, Any]:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    data = out.getvalue()
    length = int.from_bytes(data[-8:-4], "little")
    return data[-8 - length : -8], pq.read_metadata(io.BytesIO(data))


FOOTER = footer_of(pa.table({"n": [1, 2], "t": ["x", "y"], "x": [[1.5], []]}), row_group_size=1)[0]


@settings(max_examples=30)
@given(
    num_rows=st.integers(0, 40),
    rows=st.integers(1, 20),
    use_dictionary=st.booleans(),
    write_statistics=st.booleans(),
    codec=st.sampled_from(["NONE", "SNAPPY", "ZSTD"]),
)
def test_places_are_those_of_pyarrow(
    num_rows: int, rows: int, use_dictionary: bool, write_statistics: bool, codec: str
) -> None:
    nested = pa.list_(pa.struct([("x", pa.list_(pa.string()))]))
    table = pa.table(
        {
            "n": pa.array(range(num_rows), pa.int64()),
            "deep": pa.array([[{"x": [str(n)]}] for n in range(num_rows)], nested),
            "many words in a name": pa.array([n % 2 == 0 for n in range(num_rows)], pa.bool_()),
        }
    ).replace_schema_metadata({f"key {n}": "value " * n for n in range(20)})
    footer, known = footer_of(
        table, row_group_size=rows, use_dictionary=use_dictionary, write_statistics=write_statistics, compression=codec
    )
    found = groups_in(footer)
    assert [group.num_rows for group in found] == [known.row_group(n).num_rows for n in range(known.num_row_groups)]
    for number, group in enumerate(found):
        about = known.row_group(number)
        columns = [about.column(place) for place in range(about.num_columns)]
        text_bytes = sum(len(str(n)) for n in range(num_rows)[rows * number : rows * (number + 1)])
        assert [tuple(column) for column in group.columns] == [
            (
                *(c.data_page_offset, c.dictionary_page_offset, c.total_compressed_size, c.total_uncompressed_size),
                c.num_values * {"INT64": 8, "BYTE_ARRAY": 4, "BOOLEAN": 1}[c.physical_type]
                + text_bytes * (c.physical_type == "BYTE_ARRAY"),
            )
            for c in columns
        ]


@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_footer_cut_short_is_refused(cut: float) -> None:
    footer, _ = footer_of(pa.table({"a": [1, 2], "b": ["x", "y"]}), row_group_size=1)
    with pytest.raises(ValueError, match=r"struct|field|ends|elements"):
        groups_in(footer[: int(cut * len(footer))])


@pytest.mark.parametrize(
    ("footer", "match"),
    [
        (b"\x1c" * 5000, "deep"),
        (b"\x19" * 5000, "deep"),
        (b"\x19\xfc\xff\xff\xff\xff\x0f\x00", "elements in"),
        (b"\x18\xff\xff\xff\xff\x0f", "ends at byte"),
        (b"\x16" + b"\xff" * 20, "no end"),
        (b"\x1f\x00", "no type 15"),
        (b"\x46\x00\x00", "is of type 6"),
        (b"\x49\x15\x00\x00", "a list of type 5"),
        (b"\x29\x0c\x2c\x36\x00\x00\x00", "field 4 is of type 12"),
        (b"\x2c\x56\x00\x00\x29\x0c\x00", "field 2 is of type 12"),
        (b"\x29\x0c\x29\x1c\x1c\x00\x00\x00", "field 1 is of type 12"),
        (b"\x29\x0c\x29\x1c\x19\x1c\x39\x0c\x00\x00\x00", "field 3 is of type 9"),
        (b"\x49\x1c\x00\x00", "lacks field"),
        (b"\x00", "lacks field"),
    ],
)
def test_footers_that_lie_are_refused(footer: bytes, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        groups_in(footer)


@settings(max_examples=300)
@given(data=st.data())
def test_a_byte_that_is_wrong_is_survived(data: st.DataObject) -> None:
    footer = bytearray(FOOTER)
    for _ in range(data.draw(st.integers(1, 3))):
        footer[data.draw(st.integers(0, len(footer) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        assert all(group.columns is not None for group in groups_in(bytes(footer)))


def nested_footer(depth: int) -> bytes:
    """A footer without row groups, whose one column lies in so many groups."""
    group, column = b"\x35\x00\x18\x01g\x15\x02\x00", b"\x15\x02\x25\x00\x18\x01x\x00"
    count = depth + 2
    size = bytes([count & 127 | 128, count >> 7 & 127 | 128, count >> 14])
    root = b"\x48\x01s\x15\x02\x00"
    return b"\x15\x04\x19\xfc" + size + root + group * depth + column + b"\x16\x00\x19\x0c\x00"


def test_columns_that_are_nested_too_deeply_are_refused_before_a_library_sees_them() -> None:
    shown = nested_footer(20)
    whole = b"PAR1" + shown + len(shown).to_bytes(4, "little") + b"PAR1"
    assert str(pq.read_metadata(io.BytesIO(whole)).schema.names) == "['x']"
    assert groups_in(nested_footer(90)) == []
    for depth in (100, 1000, 200_000):
        with pytest.raises(ValueError, match="nested more than 100 deep"):
            groups_in(nested_footer(depth))
        footer = nested_footer(depth)
        data = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
        with pytest.raises(ShardError, match="nested more than 100 deep"):
            Parquet().scan(lambda first, end, data=data: data[first:end], len(data), shard="a.parquet")


@pytest.mark.parametrize("text", ["", "a", "a text of some length " * 20])
def test_texts_that_repeat_count_as_often_as_they_are_held(text: str) -> None:
    column = pa.array([text] * 5000)
    footer, _ = footer_of(pa.table({"text": column, "number": range(5000)}))
    place = groups_in(footer)[0].columns[0]
    assert place.decoded_bytes < 2000  # one of them, and where it is
    assert len(text) * 5000 <= place.value_bytes <= column.nbytes

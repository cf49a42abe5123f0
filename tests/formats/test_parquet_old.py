"""Files of parquet-mr before 1.2.9, of which pyarrow reads up to 100 bytes behind each column (PARQUET-816)."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.errors import ShardError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

NUMBERS = [number % 50 for number in range(900)]


def written(created_by: bytes, **options: Any) -> bytes:
    """Three row groups whose last column has a dictionary, by a writer of this name."""
    out = io.BytesIO()
    table = pa.table({"t": [f"row {number}" for number in range(900)], "n": pa.array(NUMBERS, pa.int64())})
    pq.write_table(table, out, row_group_size=300, compression="NONE", use_dictionary=["n"], **options)
    data = out.getvalue()
    names = [bytes([len(name)]) + name for name in (made_by(data), created_by)]
    return with_footer(data, lambda footer: footer.replace(*names))


def made_by(data: bytes) -> bytes:
    return str(pq.read_metadata(io.BytesIO(data)).created_by).encode()


def with_footer(data: bytes, change: Any) -> bytes:
    length = int.from_bytes(data[-8:-4], "little")
    footer = change(data[-8 - length : -8])
    return data[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def varint(number: int) -> bytes:
    """As Thrift's compact protocol has it."""
    number <<= 1
    groups = []
    while number >= 128:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups, number])


def without_dictionary_header(data: bytes) -> bytes:
    """The sizes of the dictionary's columns as parquet-mr 1.2.8 wrote them: without the header of the dictionary."""
    metadata = pq.read_metadata(io.BytesIO(data))
    for group in range(metadata.num_row_groups):
        column = metadata.row_group(group).column(1)
        size = column.total_compressed_size
        header_bytes = column.data_page_offset - column.dictionary_page_offset - 8 * len(set(NUMBERS))
        assert 0 < header_bytes < 100
        old, new = (b"\x16" + varint(number) + b"\x16" + varint(number) for number in (size, size - header_bytes))
        assert len(old) == len(new)
        data = with_footer(data, lambda footer, old=old, new=new: footer.replace(old, new))
    return data


OLD = (b"parquet-mr", b"parquet-mr version 1.2.8", b"parquet-mr version 1.0.0-t10 (build x)")


@pytest.mark.parametrize("created_by", OLD)
def test_files_of_old_writers_are_read(created_by: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(written(created_by))
    (tmp_path / "b.parquet").write_bytes(without_dictionary_header(written(created_by)))
    ds = shoal.open(tmp_path)
    assert [row["n"] for row in ds] == NUMBERS * 2
    assert [row["t"] for row in ds][900:] == [f"row {number}" for number in range(900)]
    assert sorted(row["n"] for row in ds.shuffle(seed=2, window="1MiB")) == sorted(NUMBERS * 2)


def test_what_newer_writers_say_of_their_columns_must_be_true(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(written(b"parquet-mr version 1.2.9"))
    assert [row["n"] for row in shoal.open(tmp_path)] == NUMBERS
    (tmp_path / "a.parquet").write_bytes(without_dictionary_header(written(b"parquet-mr version 1.10.1")))
    with pytest.raises(ShardError, match=r"a\.parquet.*cannot be decoded"):
        list(shoal.open(tmp_path))

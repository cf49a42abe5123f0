"""A source is one table or shards: never one of several tables, and never the files of a table without its log."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import shoal
from shoal.errors import SourceError

deltalake = pytest.importorskip("deltalake")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for name in ("aa", "bb"):
        rows = pa.table({"n": list(range(6)), "day": ["x", "y"] * 3})
        deltalake.write_deltalake(str(tmp_path / "lake" / name), rows, partition_by=["day"])
    return tmp_path / "lake"


@pytest.mark.parametrize("pattern", ["", "/**/*.parquet", "/{aa,bb}/**/*.parquet", "/aa/**/*.parquet", "::"])
def test_tables_below_a_source_are_refused(lake: Path, pattern: str) -> None:
    source = f"{lake}/aa::{lake}/bb" if pattern == "::" else f"{lake}{pattern}"
    with pytest.raises(SourceError, match="Delta Lake table"):
        shoal.open(source)
    with pytest.raises(SourceError, match="Delta Lake table"):
        shoal.open([str(lake / "aa"), str(lake / "bb")])


@pytest.mark.parametrize("pattern", ["day=x", "day=x/*.parquet", "day=*/*.parquet"])
def test_a_part_of_a_table_is_refused(lake: Path, pattern: str) -> None:
    with pytest.raises(SourceError, match="Delta Lake table"):
        shoal.open(f"{lake}/aa/{pattern}")


def test_the_table_itself_is_opened(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for source in (lake / "aa", f"{lake}/aa/", f"file://{lake}/aa"):
        assert shoal.open(source).num_samples == 6
    monkeypatch.chdir(lake)
    assert shoal.open("aa").num_samples == shoal.open("./bb").num_samples == 6

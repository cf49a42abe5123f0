"""Which format a name means."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import shoal.formats
from shoal.errors import SourceError
from shoal.formats import format_registry
from shoal.formats.format_registry import FORMATS, format_named, format_of, suffixes_in_directories
from shoal.formats.writing.written_formats import WRITTEN_FORMATS
from shoal.tables.kinds_by_name import TABLES
from shoal.tables.table_parquet import TableParquet

ROOT = Path(__file__).parent.parent.parent


def test_by_suffix() -> None:
    for path, name in [
        ("a/b-0.tar", "tar"),
        ("B.TAR", "tar"),
        ("s3://x/y.jsonl", "jsonl"),
        ("y.NdJson", "jsonl"),
        ("train-00000-of-00010.tfrecord", "tfrecord"),
        ("mnist-train.TFRecord-00000-of-00010", "tfrecord"),
        ("x.tfrecord.gz-00000-of-100000", "tfrecord.gz"),
        ("a.tsv", "tsv"),
        ("b.csv", "csv"),
        ("c.txt", "text"),
    ]:
        assert format_of(path).name == name


def test_by_name() -> None:
    assert all(format_named(name).name == name for name in FORMATS)


def test_no_two_formats_share_a_suffix() -> None:
    suffixes = [suffix for entry in FORMATS.values() for suffix in entry.suffixes]
    assert len(set(suffixes)) == len(suffixes)
    assert all(suffix.startswith(".") and suffix == suffix.lower() for suffix in suffixes)


def test_notes_beside_data_are_no_shards_of_a_directory() -> None:
    assert {".tar", ".tfrecord"} <= set(suffixes_in_directories())
    assert not {".txt", ".csv", ".tsv"} & set(suffixes_in_directories())


@pytest.mark.parametrize("path", ["data.bin", "data.tar.bak", "tar", "a.tar-00001", "-00000-of-00001", "dir.tar/x", ""])
def test_unknown_suffixes(path: str) -> None:
    with pytest.raises(SourceError, match=r"\.tar, \.jsonl, \.ndjson, \.tfrecord") as caught:
        format_of(path)
    assert "format=" in caught.value.hint


def test_unknown_names() -> None:
    with pytest.raises(SourceError, match="no shard format 'zip'") as caught:
        format_named("zip")
    assert "'tar', 'jsonl'" in caught.value.hint


@pytest.mark.parametrize(("name", "hint"), [("litdata", "leave out format="), ("litdata_tokens", "block_size=")])
def test_what_an_index_beside_the_chunks_says_is_asked_for(name: str, hint: str) -> None:
    with pytest.raises(SourceError, match=r"needs the contents of the index\.json") as caught:
        format_named(name)
    assert hint in caught.value.hint


def test_a_format_is_registered_wherever_it_must_be() -> None:
    """docs/guides/add-a-format.md says where that is."""
    names = {name.partition(".")[0] for name in FORMATS} | set(format_registry._MAKERS.own)
    table = (ROOT / "docs" / "formats.md").read_text().partition("| --- ")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert names - {TableParquet.name} == named - set(TABLES)  # files of tables are opened by the name of the table
    classes = {type(entry).__name__ for entry in FORMATS.values()}
    assert classes <= set(shoal.formats.__all__)
    assert {name.partition(".")[0] for name in WRITTEN_FORMATS} <= names

"""Which format a name means."""

from __future__ import annotations

import pytest

from shoal.errors import SourceError
from shoal.shards.formats import FORMATS, format_named, format_of


def test_by_suffix() -> None:
    for path, name in [("a/b-0.tar", "tar"), ("B.TAR", "tar"), ("s3://x/y.jsonl", "jsonl"), ("y.NdJson", "jsonl")]:
        assert format_of(path).name == name


def test_by_name() -> None:
    assert {name: format_named(name).name for name in FORMATS} == {"tar": "tar", "jsonl": "jsonl"}


@pytest.mark.parametrize("path", ["data.bin", "data.tar.bak", "tar", "dir.tar/x", ""])
def test_unknown_suffixes(path: str) -> None:
    with pytest.raises(SourceError, match=r"\.tar, \.jsonl, \.ndjson") as caught:
        format_of(path)
    assert "format=" in caught.value.hint


def test_unknown_names() -> None:
    with pytest.raises(SourceError, match="no shard format 'zip'") as caught:
        format_named("zip")
    assert "'tar', 'jsonl'" in caught.value.hint


@pytest.mark.parametrize("path", ["data.tar.gz", "dir/DATA.JSONL.ZST", "a.tgz"])
def test_compressed_shards_are_refused_by_name(path: str) -> None:
    with pytest.raises(SourceError, match="compressed") as caught:
        format_of(path)
    assert "decompress" in caught.value.hint

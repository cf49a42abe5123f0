"""Checksums of extents are those of their bytes, however the bytes are read."""

from __future__ import annotations

import threading
import zlib
from pathlib import Path

import pytest
from tests.samples import write_tar_shards

from shoal.errors import ShardError, StorageError
from shoal.formats.format_registry import format_named
from shoal.index.table import Index
from shoal.indexing import checksums
from shoal.indexing.build import build_index
from shoal.indexing.checksums import extent_checksums
from shoal.storage.files.local_store import LocalStore
from shoal.storage.sources.source import Source, expand


def indexed(directory: Path, *, extent_bytes: int = 4096) -> tuple[Source, Index]:
    write_tar_shards(directory)
    found = expand(directory, suffixes=(".tar",))
    return found, build_index(found, store=LocalStore(), format=format_named("tar"), extent_bytes=extent_bytes)


def accept(shard: int) -> None:
    del shard


# Many extents a read, one extent a read, and extents that are larger than a read.
@pytest.mark.parametrize("read_bytes", [1 << 22, 9000, 1000])
def test_they_are_those_of_the_bytes(tmp_path: Path, read_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "_READ_BYTES", read_bytes)
    found, index = indexed(tmp_path)
    said: list[tuple[int, int]] = []
    got = extent_checksums(
        index, found.paths, store=LocalStore(), check=accept, progress=lambda *done: said.append(done)
    )
    shards = [Path(path).read_bytes() for path in found.paths]
    rows = zip(index.extent_shard, index.extent_first_byte, index.extent_end_byte, strict=True)
    assert got.tolist() == [zlib.crc32(shards[shard][first:end]) for shard, first, end in rows]
    assert said == sorted(said)
    assert said[-1][0] == said[-1][1] == sum(map(int, index.extent_end_byte - index.extent_first_byte))


def test_a_shard_that_is_not_the_one_indexed_stops_it(tmp_path: Path) -> None:
    found, index = indexed(tmp_path)

    def refuse(shard: int) -> None:
        if shard == 2:
            msg = "another shard"
            raise ShardError(msg, shard=index.shard_names[shard])

    with pytest.raises(ShardError, match="another shard"):
        extent_checksums(index, found.paths, store=LocalStore(), check=refuse)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("shoal-checksum")]


def test_bytes_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    found, index = indexed(tmp_path)
    Path(found.paths[1]).write_bytes(b"short")
    with pytest.raises(StorageError, match="train-000001"):
        extent_checksums(index, found.paths, store=LocalStore(), check=accept)

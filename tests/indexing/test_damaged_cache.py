"""The index that a machine keeps for itself is compared before it is believed, and made again where it was damaged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.calls import Calls
from tests.samples import write_jsonl, write_tar_shards

import shoal
from shoal.errors import ShoalError
from shoal.index import index_file
from shoal.indexing import index_files
from shoal.indexing.index_files import load_index
from shoal.storage.files.local_store import LocalStore
from shoal.testing import RangeServer

NUM_FLIPS = 24


def tars(directory: Path) -> Path:
    write_tar_shards(directory, num_shards=2, samples_per_shard=8)
    return directory


def lines(directory: Path) -> Path:
    write_jsonl(directory / "a.jsonl", num_docs=30)
    return directory


def tables(directory: Path) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    directory.mkdir()
    pq.write_table(pa.table({"id": range(40), "text": [f"t{i}" for i in range(40)]}), directory / "a.parquet")
    return directory


def messages(directory: Path) -> Path:
    pa = pytest.importorskip("pyarrow")
    directory.mkdir()
    with pa.ipc.new_file(str(directory / "a.arrow"), pa.schema([("id", pa.int64())])) as writer:
        for first in (0, 20):
            writer.write_batch(pa.record_batch({"id": range(first, first + 20)}))
    return directory


def delivered(directory: Path) -> list[dict[str, object]]:
    return [dict(sample) for sample in shoal.open(directory)]


def flips(data: bytes, num_flips: int = NUM_FLIPS) -> list[bytes]:
    """The file with one bit other, at places all over it."""
    changed = []
    for number in range(num_flips):
        byte = number * len(data) // num_flips
        other = bytearray(data)
        other[byte] ^= 1 << number % 8
        changed.append(bytes(other))
    return changed


@pytest.mark.parametrize("num_flips", [NUM_FLIPS, pytest.param(5 * NUM_FLIPS, marks=pytest.mark.drill)])
@pytest.mark.parametrize("make", [tars, lines, tables, messages])
def test_a_flipped_bit_in_the_cached_index_changes_nothing(
    make: Callable[[Path], Path], num_flips: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = make(tmp_path / "data")
    expected = delivered(data)
    (cached,) = (tmp_path / "cache" / "indexes").glob("*.index")
    sound = cached.read_bytes()
    for damaged in flips(sound, num_flips):
        cached.write_bytes(damaged)
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="shoal"):
            assert delivered(data) == expected
        assert "cannot be used and is made again" in caplog.text
        assert len(cached.read_bytes()) == len(sound)


def test_a_damaged_copy_of_an_index_from_far_away_is_copied_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    data = tars(tmp_path / "data")
    Calls(capsys).text("index", data)
    with RangeServer(data) as server:
        url = f"{server.url}/shoal.index"
        expected = [dict(sample) for sample in shoal.open(url)]
        (copy,) = (tmp_path / "cache" / "indexes").glob("*.copy")
        sound = copy.read_bytes()
        for damaged in flips(sound)[::2]:
            copy.write_bytes(damaged)
            assert [dict(sample) for sample in shoal.open(url)] == expected
            assert copy.read_bytes() == sound
    assert "is made again" in caplog.text


def test_bytes_are_compared_once_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tars(tmp_path / "data")
    delivered(data)
    compared = []
    monkeypatch.setattr(index_files, "confirm", lambda data, **_: compared.append(len(data)))
    for _ in range(3):
        delivered(data)
    assert len(compared) == 1
    (cached,) = (tmp_path / "cache" / "indexes").glob("*.index")
    cached.write_bytes(cached.read_bytes())  # another file by now
    delivered(data)
    assert len(compared) == 2


@pytest.mark.parametrize("make", [tables, messages])
def test_heads_that_cannot_be_read_are_errors_of_shoal(make: Callable[[Path], Path], tmp_path: Path) -> None:
    """In an index whose checksum is right, as it may come from anywhere."""
    data = make(tmp_path / "data")
    delivered(data)
    (cached,) = (tmp_path / "cache" / "indexes").glob("*.index")
    index = load_index(str(cached), store=LocalStore())
    heads = {number: dict(head) for number, head in index.shard_heads.items()}
    (name,) = {"footer", "prefix"} & heads[0].keys()
    text = heads[0][name]
    for wrong in ("", "AAAA", text[:-8], text[:40] + "!" + text[41:], text[:40] + "A" + text[41:], 5, None, [text]):
        heads[0][name] = wrong
        given = tmp_path / "given.index"
        LocalStore().put(str(given), index_file.encode(replace(index, shard_heads=heads)))
        with pytest.raises(ShoalError):
            list(shoal.open(data, index=given))
    del heads[0][name]
    LocalStore().put(str(given), index_file.encode(replace(index, shard_heads=heads)))
    with pytest.raises(ShoalError):
        list(shoal.open(data, index=given))

"""Shards that are packed on one machine and read by another from a server, which says their times to the second."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest
from tests.cli.calls import Calls
from tests.samples import write_tar

import shoal
from shoal.storage.store_protocol import nanoseconds_of, same_time
from shoal.testing import RangeServer

NUM_SAMPLES = 60
SAMPLE_BYTES = 20_000


@pytest.fixture
def packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Four tars of 60 samples and their index, with checksums."""
    directory = tmp_path / "packed"
    directory.mkdir()
    for shard in range(4):
        keys = range(shard, NUM_SAMPLES, 4)
        samples = [{"__key__": f"{key:04d}".encode(), "bin": os.urandom(SAMPLE_BYTES)} for key in keys]
        write_tar(directory / f"{shard}.tar", samples)
    Calls(capsys).text("index", directory, "--checksum", "--extent-bytes", "64KiB")
    return directory


def shard_bytes(packed: Path) -> int:
    return sum(path.stat().st_size for path in packed.glob("*.tar"))


def touch(packed: Path) -> None:
    for path in packed.glob("*.tar"):
        os.utime(path, ns=(0, time.time_ns() - 86_400 * 10**9))


def test_shards_that_are_served_where_they_were_packed_are_read_once(
    packed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RangeServer(packed) as server:
        monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "another machine"))
        ds = shoal.open(f"{server.url}/shoal.index").shuffle(seed=1)
        server.clear()
        assert sum(1 for _ in ds) == NUM_SAMPLES
        assert server.num_bytes() < 1.1 * shard_bytes(packed)
    assert "differ" not in caplog.text


def test_shards_with_another_time_are_read_twice_and_this_is_said_and_counted(
    packed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    touch(packed)
    whole = shard_bytes(packed)
    with RangeServer(packed) as server:
        monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "another machine"))
        with caplog.at_level(logging.WARNING, logger="shoal"):
            ds = shoal.open(f"{server.url}/shoal.index").shuffle(seed=1)
        said = caplog.text
        caplog.clear()
        server.clear()
        assert sum(1 for _ in ds) == NUM_SAMPLES
        assert server.num_bytes() > 1.9 * whole
        stats = ds.stats()
        assert stats["requested_bytes"] == pytest.approx(server.num_bytes(), rel=0.01)
        assert stats["in_flight_bytes"] == 0
        # What was found is remembered, and so nothing is said of a second time.
        again = shoal.open(f"{server.url}/shoal.index").shuffle(seed=1)
        server.clear()
        assert sum(1 for _ in again) == NUM_SAMPLES
        assert server.num_bytes() < 1.1 * whole
        assert f"shoal verify {server.url}/shoal.index --repair-index --output FILE" in said
    assert f"{whole:,} bytes" in said
    assert "differ" not in caplog.text


def test_the_command_that_the_warning_names_mends_it(
    packed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = shoal.open(packed)
    touch(packed)
    with RangeServer(packed) as server:
        monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "another machine"))
        mended = tmp_path / "mended.index"
        record = Calls(capsys).json("verify", f"{server.url}/shoal.index", "--repair-index", "--output", mended)
        assert record["index_repaired"]
        assert record["index"] == str(mended)
        assert record["fingerprint"] == before.state_dict()["index"]
        ds = shoal.open(f"{server.url}/*.tar".replace("*", "{" + names(packed) + "}"), index=mended).shuffle(seed=1)
        server.clear()
        assert sum(1 for _ in ds) == NUM_SAMPLES
        assert server.num_bytes() < 1.1 * shard_bytes(packed)


def names(packed: Path) -> str:
    return ",".join(path.stem for path in sorted(packed.glob("*.tar")))


SECOND = 10**9
DATE, AT = "Wed, 14 Nov 2023 22:13:20 GMT", 1_700_000_000 * SECOND


@pytest.mark.parametrize(
    ("known", "modified_ns", "is_one"),
    [
        (str(AT + 5), AT, True),  # indexed as a file, met over http
        (str(AT), AT + 5, True),  # indexed from a copy that lost the fraction
        (str(AT + 5), AT + 5, True),
        (str(AT + 5), AT + 6, False),  # two files of this machine, written within a second
        (str(AT + 5), AT + SECOND, False),
        (str(AT + 5), AT - SECOND, False),
        (DATE, AT + 5, True),  # indexed from a server without etags
        (DATE, AT + SECOND, False),
        ("6553f100-1000", AT, False),  # an etag says no time
        ("", AT, False),
        (str(AT), None, False),
    ],
)
def test_times_are_compared_to_the_second_where_one_has_no_more(
    known: str, modified_ns: int | None, is_one: bool
) -> None:
    assert same_time(nanoseconds_of(known), modified_ns) is is_one

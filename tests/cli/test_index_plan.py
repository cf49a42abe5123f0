"""`shoal index --plan` tells what an index would take, and makes none."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.cli.calls import Calls, make_shards
from tests.samples import write_jsonl

from shoal.formats.format_registry import format_named
from shoal.storage.files.local_store import LocalStore
from shoal.testing import RangeServer


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_shards(tmp_path, monkeypatch)


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


@pytest.fixture
def server(data: Path) -> Iterator[RangeServer]:
    with RangeServer({f"d/{path.name}": path.read_bytes() for path in data.iterdir()}) as running:
        yield running


def files_below(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_nothing_is_written(data: Path, calls: Calls) -> None:
    before = files_below(data.parent)
    said = calls.json("index", data, "--plan")
    assert (said["format"], said["num_shards"], said["index_there"]) == ("tar", 4, None)
    assert said["num_bytes"] == sum(path.stat().st_size for path in data.iterdir())
    assert said["least"]["read_bytes"] <= said["most"]["read_bytes"] <= said["num_bytes"]
    assert said["most"]["num_requests"] == 0
    assert 0 < said["least"]["seconds"] <= said["most"]["seconds"]
    assert sum(said["samples_found_by"].values()) == 4
    assert files_below(data.parent) == before


def test_a_far_source_costs_requests_bytes_and_money(server: RangeServer, calls: Calls) -> None:
    source = f"{server.url}/d/train-{{000000..000003}}.tar"
    prices = ("--get-price", "0.4", "--gigabyte-price", "0.09")
    said = calls.json("index", source, "--plan", *prices)
    most = said["most"]
    assert most["num_requests"] == 4
    assert most["price"] == pytest.approx(4 * 0.0004 + most["read_bytes"] * 0.09 / 1e9)
    assert said["num_looked_at"] == 3
    looked = server.num_bytes()
    assert looked <= said["num_bytes"] + 4  # one byte of each tells its size
    text = calls.text("index", source, "--plan", *prices)
    facts = dict(line.split("  ", 1) for line in text.splitlines())
    assert facts["requests"].strip() == "4"
    assert facts["samples found by"].strip() == "all bytes (4)"
    assert "price" in facts
    assert "described shards" not in facts
    assert "price" not in calls.text("index", source, "--plan")


def test_the_plan_is_what_the_index_takes(server: RangeServer, tmp_path: Path, calls: Calls) -> None:
    source = f"{server.url}/d/train-{{000000..000003}}.tar"
    planned = calls.json("index", source, "--plan")
    made = calls.json("index", source, "--output", tmp_path / "made.index")["scan"]
    assert planned["most"]["num_requests"] == planned["least"]["num_requests"] == made["num_requests"]
    assert planned["most"]["read_bytes"] == made["read_bytes"]


def test_latency_and_bandwidth_may_be_told(tmp_path: Path, data: Path, calls: Calls) -> None:
    del data
    path = write_jsonl(tmp_path / "lines" / "a.jsonl")
    seconds = path.stat().st_size / 1e3
    said = calls.json("index", path.parent, "--plan", "--latency", "0", "--node-bandwidth", "1kB", "--workers", "1")
    assert said["least"]["seconds"] == said["most"]["seconds"] == pytest.approx(seconds)


def test_indexes_of_other_tools_are_told_and_who_lacks_one(data: Path, calls: Calls) -> None:
    store, tar = LocalStore(), format_named("tar")
    for path in sorted(data.iterdir())[:3]:
        shard, size = str(path), path.stat().st_size
        result = tar.scan(partial(store.read_range, shard), size, shard=shard)
        Path(f"{path}.idx").write_bytes(result.sample_starts.astype(np.dtype("<u8")).tobytes())
    said = calls.json("index", data, "--plan")
    assert said["samples_found_by"]["index of another tool"] == 3
    assert said["shards_without_index_of_another_tool"] == ["train-000003.tar"]
    text = calls.text("index", data, "--plan")
    assert "index of another tool (3)" in text
    facts = dict(line.split("  ", 1) for line in text.splitlines())
    assert facts["have no such index"].strip() == "train-000003.tar"


def test_shards_that_an_index_json_describes_are_counted(calls: Calls, data: Path) -> None:
    del data
    said = calls.json("index", Path(__file__).parents[1] / "guides" / "mds", "--plan")
    assert said["num_described_shards"] == said["num_shards"]
    assert sum(said["samples_found_by"].values()) == said["num_shards"]
    assert "described shards" in calls.text("index", Path(__file__).parents[1] / "guides" / "mds", "--plan")


def test_an_index_that_is_there_is_told(data: Path, calls: Calls) -> None:
    calls.json("index", data)
    before = (data / "shoal.index").stat().st_mtime_ns
    assert calls.json("index", data, "--plan")["index_there"] == str(data / "shoal.index")
    assert (data / "shoal.index").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--plan", "--checksum"], "--checksum"),
        (["--plan", "--columns", "cls"], "--columns"),
        (["--plan", "--output", "x.index"], "--output"),
        (["--latency", "0.1"], "--latency"),
        (["--get-price", "1"], "--get-price"),
        (["--plan", "--get-price", "-1"], "--get-price"),
        (["--plan", "--latency", "nan"], "--latency"),
        (["--plan", "--node-bandwidth", "much"], "--node-bandwidth"),
    ],
)
def test_what_is_no_plan_is_refused(words: list[str], wrong: str, data: Path, calls: Calls) -> None:
    assert wrong in calls.refused("index", data, *words)
    assert not (data / "shoal.index").exists()


def test_a_plan_of_large_shards_reads_a_few_headers(tmp_path: Path, data: Path, calls: Calls) -> None:
    del data
    with (tmp_path / "large.tar").open("wb") as file:
        for number in range(40):
            info = tarfile.TarInfo(f"{number}.bin")
            info.size = 30 << 20
            file.write(info.tobuf(tarfile.USTAR_FORMAT))
            file.seek(info.size, os.SEEK_CUR)
        file.truncate(file.tell() + 1024)
    with RangeServer(tmp_path) as server:
        assert "headers (1)" in calls.text("index", server.url_of("large.tar"), "--plan")
        assert server.num_requests() <= 1 + 8 + 4  # the first byte, headers, and what might lie beside
        assert server.num_bytes() <= 8 * (16 << 10) + 4 * 200

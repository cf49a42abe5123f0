"""`shoal plan --index grow`: how a first epoch is mixed that begins before all shards are indexed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.calls import Calls
from tests.stream.made import write_lines
from tests.tools.reports.reading_pages import faults, read

import shoal
from shoal.order.growing_segments import cut_segments, permuted_shards
from shoal.quality.growing_quality import growing_quality

WINDOW = ("--window", "1MB", "--chunk", "64KB", "--global-batch", 16)


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Shards of 200 to 650 KB, and a cache without their index."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    return write_lines(tmp_path / "data", [150 + 15 * number for number in range(24)])


def shard_bytes(data: Path, seed: int) -> list[int]:
    sizes = [path.stat().st_size for path in sorted(data.glob("*.jsonl"))]
    return [sizes[number] for number in permuted_shards(len(sizes), seed=seed).tolist()]


def test_a_listing_tells_the_mixing(calls: Calls, data: Path, tmp_path: Path) -> None:
    words = ["plan", data, "--index", "grow", *WINDOW, "--seed", 3, "--sample-bytes", 100]
    result = calls.json(*words)["growing"]
    assert not list((tmp_path / "cache").glob("indexes/*")), "nothing is indexed"
    sizes = shard_bytes(data, seed=3)
    borders = cut_segments(sizes, window_bytes=1_000_000)
    assert result["num_segments"] == len(borders) - 1 > 2
    assert result["first_segments"][0]["num_shards"] == borders[1]
    assert result["first_segments"][0]["share"] == pytest.approx(sum(sizes[: borders[1]]) / sum(sizes), abs=0.001)
    assert result["last_segment"]["num_shards"] == borders[-1] - borders[-2]
    assert result["warning"] == "", "the worst case is no finding"
    wanted = growing_quality(sizes, 16, sample_bytes=100, seed=None, window="1MB", chunk="64KB")
    assert result["vr"] == pytest.approx(wanted.vr, rel=1e-3)
    assert result["later_vr"] == pytest.approx(wanted.later_vr, rel=1e-3)


def test_the_first_segment_tells_the_size_of_samples(calls: Calls, data: Path) -> None:
    record = calls.json("plan", data, "--index", "grow", *WINDOW)
    dataset = shoal.open(str(data), index="wait")
    assert record["num_samples"] == pytest.approx(dataset.shuffle().num_samples, rel=0.02)
    assert record["open_call"] == 'shoal.open(..., index="grow")'
    assert record["growing"]["first_segments"][0]["vr"] > record["growing"]["later_vr"]


def test_what_is_known_of_the_data(calls: Calls, data: Path) -> None:
    words = ["plan", data, "--index", "grow", *WINDOW, "--sample-bytes", 1300]
    text = calls.text(*words, "--rho", 0.9, "--shard-rho", 0.9)
    facts = calls.json(*words, "--rho", 0.9, "--shard-rho", 0.9)["growing"]
    assert f"Shuffling: {facts['warning']}." in text
    assert "samples of a shard are alike (rho = 0.9 between its chunks)" in text
    first = facts["first_segments"][0]
    begin = f"VR {first['vr']:.2f} of batches of 16 in the first {first['share']:.2%} ({first['num_shards']} shards)"
    assert f"first epoch, while shards are indexed: {begin}, " in text
    assert f"{facts['vr']:.2f} on average; {facts['later_vr']:.2f} in later epochs" in text
    assert calls.json(*words, "--rho", 0.1, "--shard-rho", 0)["growing"]["warning"] == ""


def test_the_page_has_the_first_epoch(calls: Calls, data: Path, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    calls.text("plan", data, "--index", "grow", *WINDOW, "--sample-bytes", 100, "--html", page)
    text = page.read_text(encoding="utf-8")
    assert faults(text) == []
    elements = read(text).elements
    assert sum(element.tag == "svg" for element in elements) == 6
    assert "shoal.open(..., index=&quot;grow&quot;).shuffle(" in text


@pytest.mark.parametrize("words", [("--order", "block"), ("--chunks", 8), ("--pack-sequences", 128)], ids=str)
def test_what_is_another_order(calls: Calls, data: Path, words: tuple[object, ...]) -> None:
    complaint = calls.refused("plan", data, "--index", "grow", *words)
    assert f"--index grow sets the order before samples are counted, but {words[0]} asks for another order" in complaint
    assert f"leave out {words[0]}" in complaint

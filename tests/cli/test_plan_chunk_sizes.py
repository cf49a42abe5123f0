"""`shoal plan --chunk-sizes`: the same window in chunks of other sizes."""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.cli.calls import Calls
from tests.cli.test_plan_what_if import as_json, parsed, without
from tests.stream.made import write_lines

import shoal
from shoal.cli.plan import requested_plan as requested
from shoal.cli.plan.chunk_sizes import planned_chunk_sizes
from shoal.cli.plan.requested_plan import requested_plan
from shoal.quality.curves import MOST_NEAR_RATIO
from shoal.reading.resolved_order import ResolvedOrder

NUMBERS = ["--num-samples", "6e4", "--sample-bytes", "33KB", "--ranks-per-node", "4", "--global-batch", "512"]
ORDERS = {
    "as recommended": ["--memory", "2GiB"],
    "window": ["--window", "256MiB", "--chunk", "4MiB"],
    "block": ["--order", "block", "--chunks", "100", "--chunk", "1MiB"],
}


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


@pytest.fixture
def source(calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Shards with an index of small extents beside them."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    data = write_lines(tmp_path / "data", [4000] * 2)
    calls.text("index", data, "--extent-bytes", 4096)
    return data


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_smaller_chunks_mix_better_and_take_more_requests(calls: Calls, order: list[str]) -> None:
    record = calls.json("plan", *NUMBERS, *order, "--chunk-sizes")
    sizes = record["chunk_sizes"]
    assert len(sizes) >= 7
    for small, large in pairwise(sizes):
        assert small["chunk_bytes"] < large["chunk_bytes"]
        assert small["window_chunks"] > large["window_chunks"]
        # A window deals chunks evenly, so it can vary less than a perfect shuffle; more chunks even that out.
        assert max(1.0, small["near_vr"]) <= max(1.0, large["near_vr"])
        assert small["num_requests"] >= large["num_requests"]
    for size in sizes:  # the same memory
        window_bytes = size["chunk_bytes"] * size["window_chunks"]
        assert window_bytes == pytest.approx(record["window_bytes"], abs=size["chunk_bytes"])


@pytest.mark.parametrize(("sample_bytes", "extent_bytes"), [(10_000, 70_000), (100_000, 100_000), (100, 65_500)])
def test_the_smallest_chunk_of_numbers_is_an_extent(calls: Calls, sample_bytes: int, extent_bytes: int) -> None:
    words = ["--num-samples", 40_000_000 // sample_bytes, "--sample-bytes", sample_bytes, "--global-batch", 8]
    sizes = calls.json("plan", *words, "--window", "32MiB", "--chunk", "1MiB", "--chunk-sizes")["chunk_sizes"]
    assert sizes[0]["chunk_bytes"] == extent_bytes
    assert sizes[-1]["chunk_bytes"] <= 8 << 20
    assert [size["is_planned"] for size in sizes].count(True) == 1


def test_the_smallest_chunk_of_an_index_is_an_extent(calls: Calls, source: Path) -> None:
    words = ["plan", source, "--global-batch", 16, "--window", "100KB"]
    record = calls.json(*words, "--chunk", "16KB", "--chunk-sizes")
    least = calls.json(*words, "--chunk", "4KiB")
    assert record["chunk_sizes"][0]["chunk_bytes"] == least["chunk_bytes"] < 4300
    own = next(size for size in record["chunk_sizes"] if size["is_planned"])
    shared = own.keys() & record.keys()
    assert {name: own[name] for name in shared} == {name: record[name] for name in shared}


@pytest.mark.parametrize(
    "words",
    [
        [*NUMBERS, *ORDERS["window"], "--step-seconds", "0.1", "--get-price", "0.4"],
        [*NUMBERS, *ORDERS["block"]],
        ["SOURCE", "--global-batch", "16", "--window", "100KB", "--chunk", "16KB"],
    ],
    ids=["numbers", "block", "index"],
)
def test_a_size_is_what_the_plan_says_when_asked_directly(words: list[str], calls: Calls, source: Path) -> None:
    words = [str(source) if word == "SOURCE" else word for word in words]
    arguments = parsed(words)
    sizes = planned_chunk_sizes(arguments, requested_plan(arguments).plan)
    others = [size for size in sizes if not size.is_planned]
    assert len(others) >= 2
    request = without({"--order", "--window", "--chunk", "--chunks"}, words)
    for size in others:
        record = calls.json("plan", *request, *size.options.split())
        shown = as_json(asdict(size))
        assert {name: shown[name] for name in shown.keys() & record.keys()} == {
            name: record[name] for name in shown.keys() & record.keys()
        }
        assert size.near_vr == record["vr"][str(4 * arguments.global_batch)]


def test_sizes_that_small_shards_cannot_have_are_left_out(calls: Calls, tmp_path: Path) -> None:
    """Chunks end with their shard: above the size of a shard, all sizes give the same chunks."""
    data = write_lines(tmp_path / "data", [20] * 200)
    calls.text("index", data, "--extent-bytes", 1024)
    sizes = calls.json("plan", data, "--global-batch", 4, "--chunk", "2KiB", "--window", "1MiB", "--chunk-sizes")
    counts = [size["chunk_bytes"] for size in sizes["chunk_sizes"]]
    assert counts == sorted(set(counts))
    assert counts[-1] == pytest.approx(sizes["dataset_bytes"] / 200)
    assert counts[-1] < sizes["window_bytes"] / 16


def test_a_plan_with_one_possible_size_shows_no_table(calls: Calls, tmp_path: Path) -> None:
    words = ["plan", "--num-samples", 2000, "--sample-bytes", "10MB", "--global-batch", 16]
    assert calls.json(*words, "--chunk-sizes")["chunk_sizes"] == []
    assert "No other size of chunks is possible" in calls.text(*words, "--chunk-sizes", "--html", tmp_path / "p.html")
    assert "Smaller chunks" not in (tmp_path / "p.html").read_text()
    assert "--chunk-sizes" not in calls.text(*words)


def test_the_terminal_shows_a_table_and_what_would_mix_well(calls: Calls) -> None:
    words = ["plan", *NUMBERS, *ORDERS["window"]]
    assert "--chunk-sizes plans them" in calls.text(*words)
    record = calls.json(*words, "--chunk-sizes")
    assert "chunk_sizes" not in calls.json(*words)
    text = calls.text(*words, "--chunk-sizes")
    table = text[text.index("the same window in chunks of other sizes:\n") :].splitlines()[1:]
    assert len(record["chunk_sizes"]) == table.index("") - 3  # heads, and two lines of advice
    (own,) = [line for line in table if line.endswith("this plan")]
    assert f"{record['num_requests']:,}" in own
    mixed = max(
        (size for size in record["chunk_sizes"] if size["near_vr"] <= MOST_NEAR_RATIO),
        key=lambda size: size["chunk_bytes"],
    )
    advice, options = table[table.index("") - 2 : table.index("")]
    assert f"for {mixed['num_requests']:,} requests" in advice
    assert options == mixed["options"]
    asked = calls.json("plan", *NUMBERS, *mixed["options"].split())
    assert asked["vr"]["2048"] == mixed["near_vr"]


def test_a_window_too_small_for_every_size_is_told(calls: Calls) -> None:
    text = calls.text("plan", *NUMBERS, "--window", "8MiB", "--chunk", "1MiB", "--chunk-sizes")
    assert "to 1.5 in this window: a larger window does, or an index with smaller extents" in text


def test_the_picture_has_a_dot_and_a_label_for_each_size(calls: Calls, tmp_path: Path) -> None:
    picture, page = tmp_path / "plan.svg", tmp_path / "plan.html"
    words = ["plan", *NUMBERS, *ORDERS["window"], "--chunk-sizes", "--picture", picture, "--html", page]
    sizes: list[dict[str, Any]] = calls.json(*words)["chunk_sizes"]
    shown = re.findall(r"Smaller chunks: better mixing, more requests.*?</svg>", page.read_text(), flags=re.DOTALL)
    (figure,) = shown
    assert len(re.findall(r"<circle", figure)) == len(sizes) + 1  # the plan's own has another around it
    labels = re.findall(r">([0-9.,]+ [KM]iB)</text>", figure)
    assert len(labels) == len(sizes)
    assert f"A dot for each of {len(sizes)} chunk sizes" in figure
    assert all(f">{label}</text>" in picture.read_text() for label in labels)


def test_documents_are_packed_once(calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    documents = ({"tokens": list(range(number % 90)), "num_tokens": number % 90} for number in range(2000))
    shoal.pack.pack(documents, tmp_path / "d", format="jsonl", shard_bytes="100KiB", columns=["num_tokens"])
    calls.text("index", tmp_path / "d", "--columns", "num_tokens", "--extent-bytes", 2048)
    packed: list[int] = []
    whole = requested.planned_sequences

    def counted(arguments: argparse.Namespace, resolved: ResolvedOrder | None) -> dict[str, dict[str, float]]:
        packed.append(arguments.pack_sequences or 0)
        return whole(arguments, resolved)

    monkeypatch.setattr(requested, "planned_sequences", counted)
    words = ["plan", tmp_path / "d", "--pack-sequences", 64, "--global-batch", 10]
    record = calls.json(*words, "--window", "50KB", "--chunk", "8KiB", "--chunk-sizes")
    assert len(record["chunk_sizes"]) > 2
    assert sorted(packed, reverse=True)[:2] == [64, 0]
    # Means of four global batches of 10 sequences, of about 14 documents.
    (own,) = (size["near_vr"] for size in record["chunk_sizes"] if size["is_planned"])
    assert own == list(record["vr"].values())[1]

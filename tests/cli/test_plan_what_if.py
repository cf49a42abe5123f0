"""The what-if table of a plan: each row is what the plan says when it is asked for the row directly."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cli.calls import Calls
from tests.samples import write_jsonl

from shoal.cli.main import main
from shoal.cli.output import emit
from shoal.cli.plan import plan
from shoal.cli.plan.requested_plan import requested_plan, what_if_rows

SIZES = ["--num-samples", "2e4", "--sample-bytes"]
ASKED = {
    "numbers": [*SIZES, "100KB", "--nodes", "2", "--ranks-per-node", "4", "--global-batch", "64", "--memory", "1GiB"],
    "a window of nearly all": [*SIZES, "3KB", "--global-batch", "16", "--memory", "100MiB"],
    "large chunks": [*SIZES, "1MB", "--global-batch", "16", "--chunk", "9MB", "--window", "400MB"],
    "block": [*SIZES, "10KB", "--global-batch", "16", "--order", "block", "--chunks", "9"],
    "cache": [*SIZES, "100KB", "--ranks-per-node", "2", "--global-batch", "32", "--cache", "2GB"],
    "index": ["SOURCE", "--global-batch", "16", "--window", "700KB", "--chunk", "40KB"],
    "index, as recommended": ["SOURCE", "--global-batch", "16", "--ranks-per-node", "2", "--memory", "1MiB"],
    "index, in chunks": ["SOURCE", "--global-batch", "16", "--chunks", "5"],
}


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


@pytest.mark.parametrize("words", ASKED.values(), ids=ASKED)
def test_a_row_is_what_the_plan_says_when_asked_directly(words: list[str], calls: Calls, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "docs.jsonl", num_docs=20_000)
    words = [str(source) if word == "SOURCE" else word for word in words]
    arguments = parsed(words)
    rows = list(what_if_rows(arguments, requested_plan(arguments).plan))
    assert len(rows) >= 4
    for row in rows:
        request = without({"--order", "--window", "--chunk", "--chunks", "--num-canonical-nodes"}, words)
        options = row.text.split()
        record = calls.json("plan", *without(set(options[::2]), request), *options)
        assert record == as_json(row.record), row.name


def test_memory_that_is_left_makes_the_window_larger(calls: Calls) -> None:
    words = ["--num-samples", "2e7", "--sample-bytes", "100KB", "--global-batch", "1024", "--nodes", "2"]
    small, large = (calls.json("plan", *words, "--memory", memory) for memory in ("1GiB", "64GiB"))
    assert large["vr"]["4096"] <= 1.01 < small["vr"]["4096"]
    assert large["window_bytes"] > 4 * small["window_bytes"]
    for record, memory in ((small, 1 << 30), (large, 64 << 30)):
        assert 0.6 * memory < record["node_memory_bytes"] <= memory


def test_the_index_is_in_the_memory_of_a_node(calls: Calls, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "docs.jsonl", num_docs=20_000)
    record = calls.json("plan", source, "--global-batch", "16", "--ranks-per-node", "2")
    assert main(["index", str(source), "--output", str(tmp_path / "made.index")]) == 0
    assert record["index_bytes"] == pytest.approx((tmp_path / "made.index").stat().st_size, rel=0.05)
    assert record["node_memory_bytes"] == 2 * record["rank_memory_bytes"] + record["index_bytes"]


@pytest.mark.parametrize("samples", [pytest.param("3e8", marks=pytest.mark.drill), "3e9"])
def test_the_index_of_a_large_dataset_takes_half_a_gigabyte(samples: str, calls: Calls) -> None:
    words = ["--num-samples", samples, "--sample-bytes", "100KB", "--nodes", "8", "--ranks-per-node", "8"]
    record = calls.json("plan", *words, "--global-batch", "1024", "--memory", "64GiB")
    assert 0.2e9 < record["index_bytes"] <= 0.52e9
    assert record["node_memory_bytes"] <= 64 << 30


def test_a_window_is_no_larger_than_the_data(calls: Calls, tmp_path: Path) -> None:
    record = calls.json("plan", str(write_jsonl(tmp_path / "docs.jsonl")), "--global-batch", "16")
    assert record["window_bytes"] <= record["dataset_bytes"]


def parsed(words: list[str]) -> argparse.Namespace:
    """The arguments of the verb."""
    parser = argparse.ArgumentParser()
    plan.add_arguments(parser)
    return parser.parse_args(words)


def as_json(record: Mapping[str, Any]) -> Any:
    """The record as machines get it."""
    text = io.StringIO()
    emit(record, as_json=True, stream=text)
    return json.loads(text.getvalue())


def without(options: set[str], words: list[str]) -> list[str]:
    """The words without these options and their values."""
    return [word for before, word in zip(["", *words], words, strict=False) if not {before, word} & options]

"""Datasets as sources of `repack` and `pack`: their functions and selections are in the new shards."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.pack.contents import contents_of
from tests.pack.doubling import doubled

import shoal
from shoal.errors import UsageError
from shoal.pack import pack, plan_repack, repack

SAMPLES = [{"number": number, "document": {"text": f"document {number}"}} for number in range(300)]


@pytest.fixture
def source(tmp_path: Path) -> str:
    return pack(SAMPLES, tmp_path / "in", format="jsonl", shard_bytes="4KiB").url


def numbers_in(directory: Path) -> list[int]:
    return [sample["number"] for sample in shoal.open(directory)]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_functions_of_a_dataset_run_in_each_process(tmp_path: Path, source: str, num_workers: int) -> None:
    ds = shoal.open(source).map(doubled).rename(text="document.text").columns("number", "text")
    made = repack(ds, tmp_path / "out", format="parquet", shard_bytes="4KiB", num_workers=num_workers)
    assert made.num_workers == num_workers
    assert len(made.summary.shards) > 2
    expected = [{"number": 2 * number, "text": f"document {number}"} for number in range(300)]
    assert list(shoal.open(tmp_path / "out")) == expected


@pytest.mark.parametrize("num_workers", [1, pytest.param(2, marks=pytest.mark.drill)])
def test_selected_samples_are_repacked_alone(tmp_path: Path, source: str, num_workers: int) -> None:
    ds = shoal.open(source).select([7, 3, 200]).map(doubled)
    repack(ds, tmp_path / "out", num_workers=num_workers, shard_bytes=1)
    assert numbers_in(tmp_path / "out") == [6, 14, 400]
    repack(shoal.open(source).skip(290), tmp_path / "rest", dedup="content", num_workers=1)
    assert numbers_in(tmp_path / "rest") == list(range(290, 300))


def test_mixing_and_units_of_a_job_apply_the_functions(tmp_path: Path, source: str) -> None:
    ds = shoal.open(source).map(doubled)
    repack(ds, tmp_path / "mixed", mix=True, seed=3, memory="64KiB")
    mixed = numbers_in(tmp_path / "mixed")
    assert sorted(mixed) == list(range(0, 600, 2)) != mixed
    job = plan_repack(ds, tmp_path / "units", shard_bytes="4KiB")
    for number in reversed(job.missing()):
        pickle.loads(pickle.dumps(job.task(number)))()
    job.finish()
    repack(ds, tmp_path / "alone", shard_bytes="4KiB")
    assert contents_of(tmp_path / "units") == contents_of(tmp_path / "alone")


@pytest.mark.parametrize("num_workers", [1, pytest.param(2, marks=pytest.mark.drill)])
def test_pack_of_a_dataset_runs_its_functions(tmp_path: Path, source: str, num_workers: int) -> None:
    ds = shoal.open(source).map(doubled)
    summary = pack(ds, tmp_path / "out", format="mds", shard_bytes="4KiB", num_workers=num_workers)
    assert summary.num_samples == 300
    assert numbers_in(tmp_path / "out") == list(range(0, 600, 2))
    assert shoal.open(tmp_path / "out").num_samples == 300


def test_pack_of_a_shuffled_dataset_keeps_its_order(tmp_path: Path, source: str) -> None:
    pack(shoal.open(source).shuffle(seed=1), tmp_path / "out", format="jsonl")
    assert numbers_in(tmp_path / "out") == [sample["number"] for sample in shoal.open(source).shuffle(seed=1)]


def test_functions_that_other_processes_cannot_import_run_in_one(
    tmp_path: Path, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    ds = shoal.open(source).map(lambda sample: {**sample, "number": -sample["number"]})
    with caplog.at_level(logging.WARNING, "shoal"):
        made = repack(ds, tmp_path / "out", num_workers=2, shard_bytes="4KiB")
    assert made.num_workers == 1
    assert "shards are made in one process" in caplog.text
    assert numbers_in(tmp_path / "out") == [-number for number in range(300)]


def test_an_unfinished_repacking_with_another_function_is_another(tmp_path: Path, source: str) -> None:
    job = plan_repack(shoal.open(source).map(doubled), tmp_path / "out", shard_bytes="4KiB")
    job.run(0)
    with pytest.raises(UsageError, match="another packing was begun here"):
        repack(shoal.open(source).map(json.dumps), tmp_path / "out", shard_bytes="4KiB")
    made = repack(shoal.open(source).map(doubled), tmp_path / "out", shard_bytes="4KiB")
    assert made.summary.shards[0].done_before


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda ds: ds.shuffle(seed=0), r"repack\(\) takes samples in stored order.*shuffle\(\)"),
        (lambda ds: ds.batch(4), r"batch\(\)"),
        (lambda ds: ds.filter(bool), r"filter\(\)"),
        (lambda ds: ds.sample(weights=[1.0] * 300), r"sample\(\)"),
    ],
)
def test_what_new_shards_cannot_keep_is_refused(tmp_path: Path, source: str, change: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        repack(change(shoal.open(source)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_mixture_and_options_of_a_path_are_refused(tmp_path: Path, source: str) -> None:
    ds = shoal.open(source)
    pack(SAMPLES, tmp_path / "other", format="mds")
    mixture = shoal.mix({"a": ds, "b": shoal.open(tmp_path / "other")}, weights={"a": 1, "b": 1})
    with pytest.raises(UsageError, match=r"repack\(\) works on one dataset"):
        repack(mixture, tmp_path / "out")
    with pytest.raises(UsageError, match=r"split= chooses shards of a path"):
        repack(ds, tmp_path / "out", split="train")

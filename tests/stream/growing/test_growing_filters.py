"""Samples that are left out of a growing epoch, by filters and for damage: as if all had been indexed before."""

from __future__ import annotations

import io
import json
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.stream.growing.growing_data import Gate, gated, growing, write_shards

import shoal
from shoal.errors import UsageError
from shoal.stream.dataset import Dataset


def _cached_in(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(directory))


def _both(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Dataset], Dataset]
) -> tuple[list[Any], list[Any]]:
    """The batches of an epoch that grows segment by segment, and of the same one with an index."""
    _cached_in(monkeypatch, tmp_path / "indexed")
    shoal.open(shards, index="wait")
    expected = [_plain(batch) for batch in change(growing(shards))]
    _cached_in(monkeypatch, tmp_path / "grown")
    with gated(1) as gate:
        iterator = iter(change(growing(shards)))
        threading.Timer(0.3, gate.let, [1]).start()
        threading.Timer(0.6, gate.let, [1000]).start()
        return [_plain(batch) for batch in iterator], expected


def _plain(batch: dict[str, Any]) -> Any:
    return batch["key"], None if "__pad__" not in batch else list(batch["__pad__"])


def test_a_rank_that_gets_nothing_at_first_repeats_the_last_sample_of_the_epoch(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cached_in(monkeypatch, tmp_path / "indexed")
    first = {sample["key"] for _, sample in zip(range(9), growing(shards), strict=False)}

    def change(dataset: Dataset) -> Dataset:
        return dataset.filter(lambda sample: sample["key"] not in first).batch(4)

    grown, indexed = _both(shards, tmp_path, monkeypatch, change)
    assert indexed[0][1] == [True]
    assert grown == indexed


def test_a_filter_may_drop_all_of_the_first_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = write_shards(tmp_path / "many", [1024, 1024, 1024])
    _cached_in(monkeypatch, tmp_path / "indexed")
    first = next(iter(growing(many)))["key"].split("/")[0]

    def change(dataset: Dataset) -> Dataset:
        return dataset.filter(lambda sample: sample["key"].split("/")[0] != first)

    grown, indexed = _both(many, tmp_path, monkeypatch, change)
    assert len(indexed) == 2048
    assert grown == indexed


def test_a_filter_that_keeps_nothing_is_an_error_with_the_samples_of_all_segments(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cached_in(monkeypatch, tmp_path / "grown")
    with gated(1) as gate:
        iterator = iter(growing(shards).filter(lambda _: False).batch(4))
        threading.Timer(0.3, gate.let, [1000]).start()
        with pytest.raises(UsageError, match="none of the 318 samples"):
            next(iterator)


def test_samples_in_quarantine_are_left_out_however_the_epoch_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _tars(tmp_path / "data")
    listed = tmp_path / "quarantine.jsonl"

    def run(gate: Gate | None, on_error: str) -> list[str]:
        dataset = shoal.open(data, index="grow").shuffle(seed=5, window="8KiB").decode()
        dataset = dataset.reading(on_error=on_error, quarantine=listed).batch(3)
        keys = []
        for batch in dataset:
            keys += batch["__key__"]
            if gate is not None:
                gate.let(1)
        return keys

    _cached_in(monkeypatch, tmp_path / "first")
    with gated(1) as gate:
        first = run(gate, "skip")
    lines = [json.loads(line) for line in listed.read_text().splitlines()]
    assert len(lines) == 4
    assert len({line["dataset"] for line in lines}) == 1
    assert run(None, "raise") == first  # all indexed
    _cached_in(monkeypatch, tmp_path / "second")
    with gated(2) as gate:
        assert run(gate, "raise") == first
    assert len(listed.read_text().splitlines()) == 4
    other_seed = shoal.open(data, index="grow").shuffle(seed=6, window="8KiB").decode()
    with pytest.raises(shoal.errors.ShoalError):
        list(other_seed.reading(quarantine=listed))


def _tars(directory: Path) -> Path:
    """Shards of which four have a sample that cannot be decoded."""
    directory.mkdir()
    for shard in range(12):
        with tarfile.open(directory / f"{shard:03d}.tar", "w") as tar:
            for number in range(5):
                data = b"no JSON" if shard % 3 == 0 and number == 2 else b"[1]"
                member = tarfile.TarInfo(f"{shard}-{number}.json")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return directory

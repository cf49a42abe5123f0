"""The work of indexing a growing dataset: shared by ranks, left to one if need be, and begun only for use."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.stream.growing.growing_data import COUNTS, WINDOW, gated, growing, keys_of_all, write_shards

import shoal
from shoal.errors import StateError, StorageError, UsageError
from shoal.indexing.growing import segments_ahead
from shoal.indexing.jobs import index_from_parts, shared_indexing
from shoal.indexing.jobs.job_units import UnitParts
from shoal.processes.job_rank import JobRank
from shoal.reading.growing.resolved_segments import ResolvedSegments
from shoal.stream.dataset import Dataset


def _keys(dataset: Dataset) -> list[str]:
    return [sample["key"] for sample in dataset]


def test_ranks_index_each_shard_once(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_indexing, "_LEAST_WAIT_SECONDS", 60.0)  # nobody takes over
    monkeypatch.setattr(shared_indexing, "_LONGEST_PAUSE_SECONDS", 0.05)
    scanned: list[int] = []
    kept = index_from_parts.IndexTask.keep

    def keep(task: index_from_parts.IndexTask, part: object) -> object:
        scanned.append(task.number)
        return kept(task, part)  # type: ignore[arg-type]

    monkeypatch.setattr(index_from_parts.IndexTask, "keep", keep)
    found: dict[int, list[str]] = {}

    def run(rank: int) -> None:
        found[rank] = _keys(growing(shards).partition(rank=rank, world_size=2))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found[0] + found[1]) == keys_of_all()
    assert len(scanned) == len(set(scanned)) > 2


def test_a_rank_that_finds_nobody_waits_once(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks: list[JobRank] = []

    class Recorded(shared_indexing.Sharing):
        def __init__(self, units: object, me: JobRank, *others: object, **options: object) -> None:
            ranks.append(me)
            super().__init__(units, me, *others, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(segments_ahead, "Sharing", Recorded)
    _keys(growing(shards).partition(rank=1, world_size=3))
    assert ranks[0] == JobRank(1, 3, 3)
    assert set(ranks[1:]) == {JobRank(0, 1, 1)}


def test_a_place_that_cannot_be_written_makes_no_difference(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = _keys(growing(shards))
    (tmp_path / "file").touch()
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert _keys(growing(shards)) == expected
    assert "indexes all shards for itself" in caplog.text


@pytest.mark.parametrize("method", ["put", "is_open", "missing"])
def test_a_disk_that_fills_up_makes_no_difference(
    shards: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str
) -> None:
    expected = _keys(growing(shards))
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "other"))
    usual, calls = getattr(UnitParts, method), []

    def full(parts: UnitParts, *given: object) -> object:
        calls.append(method)
        if len(calls) > 5 and not parts.directory.startswith("memory:"):
            parts.failed = True
            msg = "No space left on device"
            raise StorageError(msg)
        return usual(parts, *given)

    monkeypatch.setattr(UnitParts, method, full)
    assert _keys(growing(shards)) == expected
    assert len(calls) > 5


def test_nothing_is_indexed_for_a_look_at_the_dataset(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[object] = []
    monkeypatch.setattr(segments_ahead.IndexingAhead, "_run", lambda *given: begun.append(given))
    dataset = growing(shards)
    assert "growing" in repr(dataset)
    assert "growing" in str(dataset.resolved)
    assert dataset.state_dict()["position"] == 0
    assert repr(pickle.loads(pickle.dumps(dataset))) == repr(copy.deepcopy(dataset)) == repr(dataset)
    assert not begun


def test_shards_without_a_sample_are_an_error_in_any_form(tmp_path: Path) -> None:
    empty = write_shards(tmp_path / "empty", [0] * 4)
    for path in empty.iterdir():
        path.write_text("\n" * 300)
    for dataset in (growing(empty), growing(empty).batch(3)):
        with pytest.raises(UsageError, match="4 shards without a single sample; met: blank lines 1200"):
            list(dataset)


def test_segments_without_a_sample_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_shards(tmp_path / "data", [0, 0, 3] * 12)
    for path in data.iterdir():
        if not path.stat().st_size:
            path.write_text("\n" * 3000)
    grown = _keys(growing(data))
    assert sorted(grown) == keys_of_all([0, 0, 3] * 12)
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "second"))
    shoal.open(data, index="wait")
    assert _keys(growing(data)) == grown


def test_a_growing_state_says_why_another_order_does_not_take_it(shards: Path) -> None:
    dataset = growing(shards).batch(4)
    next(iter(dataset))
    state = dataset.state_dict()
    some = np.arange(sum(COUNTS) - 5)
    others = {
        "window": shoal.open(shards, index="grow").select(some).shuffle(seed=5, window=WINDOW),
        "block": shoal.open(shards, index="grow").shuffle("block", chunks=3, seed=5),
        "sampled": shoal.open(shards, index="grow").sample(num_samples=50).shuffle(seed=5, window=WINDOW),
    }
    for said, other in others.items():
        with pytest.raises(StateError, match=f"saved in the growing order of .*; this stream is .*{said}"):
            other.batch(4).load_state_dict(state)


def test_a_segment_is_resolved_once_however_many_pieces_follow(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: list[int] = []
    usual = ResolvedSegments._segment

    def noted(resolved: ResolvedSegments, number: int, among: range) -> object:
        numbers.append(number)
        return usual(resolved, number, among)

    monkeypatch.setattr(ResolvedSegments, "_segment", noted)
    with gated(1) as gate:
        dataset = growing(shards)
        for _ in dataset:
            gate.let(1)
    assert dataset.stats()["num_pieces"] > 2
    assert numbers == list(range(len(numbers)))

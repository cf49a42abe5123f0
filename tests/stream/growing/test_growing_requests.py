"""Requests of the growing order: each process asks for the listing at most once, and for shards that it indexes."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.stream.growing.growing_data import COUNTS, WINDOW, gated, keys_of_all, write_shards

import shoal
from shoal.index.table import Index
from shoal.indexing.growing import segments_ahead
from shoal.indexing.growing.growing_shards import GrowingShards
from shoal.reading.growing.resolved_growing import ResolvedGrowing
from shoal.stream.dataset import Dataset
from shoal.testing import Fault, RangeServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    with RangeServer(write_shards(tmp_path / "data")) as running:
        yield running


def opened(server: RangeServer) -> Dataset:
    last = len(COUNTS) - 1
    return shoal.open(f"{server.url}/{{000..{last:03d}}}.jsonl", index="grow").shuffle(seed=5, window=WINDOW)


def growing_of(dataset: Dataset) -> GrowingShards:
    resolved = dataset.stream.resolved
    assert isinstance(resolved, ResolvedGrowing)
    return resolved.growing


def test_each_shard_is_looked_at_once(server: RangeServer) -> None:
    keys = [key for batch in opened(server).batch(5) for key in batch["key"]]
    assert sorted(keys) == keys_of_all()
    looks = Counter(each.path for each in server.exchanges if each.num_bytes <= 1 and each.status == 206)
    assert len(looks) >= sum(count > 0 for count in COUNTS)
    assert set(looks.values()) == {1}


def test_another_process_lists_no_shards_that_it_does_not_index(server: RangeServer) -> None:
    growing = growing_of(opened(server))
    assert growing.num_segments > 4  # which asks for the listing, unless opening has
    copied = pickle.loads(pickle.dumps(growing))
    server.clear()
    assert copied.segments.index(0).num_samples
    assert server.num_requests() <= 2 * copied.borders[1] + 3  # and indexes of other tools beside the first
    assert copied.whole.index.num_samples == sum(COUNTS)


def test_a_process_that_only_waits_for_a_segment_indexes_no_others(server: RangeServer) -> None:
    growing = growing_of(opened(server))
    with gated(1000):
        assert growing.prefix(1).index.num_shards == growing.borders[1]
        assert growing.segments.num_made == 1
        growing.segments.need(0)
        assert growing.segments.index(2).num_shards == growing.borders[3] - growing.borders[2]
        assert 3 <= growing.segments.num_made <= 5
        assert growing.whole.index.num_samples == sum(COUNTS)


def test_parts_do_not_wait_for_the_disk(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    growing = growing_of(opened(server))
    assert growing.segments.index(0).num_samples
    assert not flushed
    assert growing.whole.index.num_samples == sum(COUNTS)


def test_segments_behind_the_first_wait_for_the_first_batch(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    segment_of = segments_ahead.SegmentJob.segment

    def made_of(job: segments_ahead.SegmentJob, segment: int) -> Index:
        made.append(segment)
        return segment_of(job, segment)

    monkeypatch.setattr(segments_ahead.SegmentJob, "segment", made_of)
    at_first: list[list[int]] = []

    def look(sample: dict[str, str]) -> dict[str, str]:
        at_first.append(list(made))
        return sample

    dataset = opened(server).map(look).batch(1)
    assert sorted(key for batch in dataset for key in batch["key"]) == keys_of_all()
    assert at_first[0] == [0]
    assert made == list(range(growing_of(dataset).num_segments))


def test_retries_of_scans_are_counted(server: RangeServer) -> None:
    dataset = opened(server).batch(5)
    last = int(growing_of(dataset).shard_order[-1])
    server.faults = [Fault("status", requests=[0, 1], path=f"*{last:03d}.jsonl")]  # it has been looked at
    assert sorted(key for batch in dataset for key in batch["key"]) == keys_of_all()
    assert dataset.stats()["num_scan_retries"] == 2
    assert dataset.stats()["num_scan_requests"] > 2
    assert dataset.stats()["scanned_bytes"] > 0


def test_indexing_ahead_ends_with_its_dataset_though_the_server_is_down(server: RangeServer) -> None:
    dataset = opened(server).batch(5)
    last = int(growing_of(dataset).shard_order[-1])
    server.faults = [Fault("status", requests=range(10**6), path=f"*{last:03d}.jsonl")]
    last_path = f"{last:03d}.jsonl"
    running = growing_of(dataset).segments
    running.need(growing_of(dataset).num_segments - 1)
    thread = next(each for each in threading.enumerate() if each.name == "shoal-index-ahead")
    while not any(last_path in each.path for each in server.exchanges if each.status == 503):
        time.sleep(0.05)
    began_seconds = time.monotonic()
    del dataset, running
    gc.collect()
    thread.join(60)
    assert time.monotonic() - began_seconds < 5

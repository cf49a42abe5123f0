"""Counters show what has arrived, at every batch: compared with the log of a server."""

from __future__ import annotations

import io
import itertools
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.indexing.index_files import save_index
from shoal.indexing.opened_dataset import Opened
from shoal.reading.checks.checked_reads import read_unit
from shoal.reading.local import local_readers
from shoal.reading.schedule.units import UnitRead
from shoal.storage.files.local_store import LocalStore
from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset
from shoal.testing.range_server import Exchange, RangeServer

NUM_SAMPLES, SAMPLE_BYTES = 2000, 900


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("arrivals")
    for shard in range(2):
        with tarfile.open(directory / f"{shard}.tar", "w") as tar:
            for number in range(NUM_SAMPLES // 2):
                member = tarfile.TarInfo(f"{shard}-{number:05d}.bin")
                member.size = SAMPLE_BYTES
                tar.addfile(member, io.BytesIO(bytes(SAMPLE_BYTES)))
    save_index(open_dataset(directory).stream.opened.index, directory / "shoal.index", store=LocalStore())
    return directory


def reads_of_shards(server: RangeServer) -> list[Exchange]:
    """Return the answered reads, without the first byte of each shard, which tells its size."""
    return [seen for seen in list(server.exchanges) if seen.path.endswith(".tar") and seen.num_bytes > 1]


def num_units_in(ds: Dataset, answered: list[Exchange]) -> int:
    """Return how many units of reading lie in the ranges that were answered."""
    units = ds.resolved.units
    _, shard, first_byte, end_byte, *_ = units.columns(np.arange(units.num_units))
    return sum(
        int(((shard == int(seen.path[0])) & (first_byte >= seen.first_byte)
             & (end_byte <= seen.first_byte + seen.num_bytes)).sum())
        for seen in answered
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:a window of")
@settings(max_examples=6)
@given(
    order=st.sampled_from(["full", "window", "none"]),
    batch_size=st.integers(1, 100),
    latency_seconds=st.sampled_from([0.0, 0.002]),
)
def test_counters_agree_with_the_log_of_the_server_at_every_batch(
    shards: Path, order: str, batch_size: int, latency_seconds: float
) -> None:
    with RangeServer(shards, latency_seconds=latency_seconds) as server:
        options: dict[str, Any] = {"window": "512KiB", "chunk": "64KiB"} if order == "window" else {}
        ds = open_dataset([server.url_of("0.tar"), server.url_of("1.tar")], index=str(shards / "shoal.index"))
        ds = ds.shuffle(order, seed=3, **options).batch(batch_size)
        delivered_units = ds.resolved.units.of(ds.ids(epoch=0))
        server.clear()
        for step, _ in enumerate(itertools.islice(ds, 5), 1):
            before, stats, after = reads_of_shards(server), ds.stats(), reads_of_shards(server)
            needed = len(set(delivered_units[: step * batch_size].tolist()))
            logged_bytes = sum(seen.num_bytes for seen in after)
            assert len(before) <= stats["num_requests"]
            assert stats["requested_bytes"] - stats["in_flight_bytes"] <= logged_bytes
            assert needed <= stats["num_reads"] <= num_units_in(ds, after)
            assert stats["read_bytes"] <= logged_bytes
            # A response for several reads is held until the last of them is taken, and each is a copy.
            assert 0 < stats["peak_held_bytes"] <= 2 * logged_bytes


def test_local_reads_are_counted_when_they_are_made(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(opened: Opened, read: UnitRead, **options: Any) -> bytes:
        made.append(read.num_bytes)
        return read_unit(opened, read, **options)

    monkeypatch.setattr(local_readers, "read_unit", counted)
    ds = open_dataset(shards).shuffle(seed=1, window="1MiB", chunk="64KiB").batch(1)
    next(iter(ds))
    stats = ds.stats()
    assert stats["num_reads"] == stats["num_requests"] == len(made)
    assert stats["read_bytes"] == stats["requested_bytes"] == stats["peak_held_bytes"] == sum(made)
    assert stats["peak_claimed_bytes"] >= stats["peak_held_bytes"]

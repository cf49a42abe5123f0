"""Streams after a scan that left its bytes in files: the same samples, and nothing is requested twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.reading.test_arrivals import Straggler, content, request
from tests.reading.test_far_streams import ORDERS, checksummed, ordered
from tests.stream.faraway import far_away, faulty
from tests.stream.made import ids_of

from shoal.reading.remote import remote_readers, request_queue
from shoal.reading.remote.read_buffer import LEAST_BUFFER_BYTES
from shoal.reading.remote.request_pool import RequestPool
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.schedule.read_requests import Request
from shoal.stats.counters import Counters
from shoal.storage.passing_bytes import passing_bytes
from shoal.storage.passing_bytes.passing_bytes import PassingBytes
from shoal.storage.retry import current_retry_control
from shoal.storage.store_protocol import Store, StoreWrapper
from shoal.stream.dataset import Dataset
from shoal.testing import Fault

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

BLOCK_BYTES = 20_000


@pytest.fixture(scope="module")
def sums(tars: Dataset) -> Dataset:
    return checksummed(tars)


@pytest.fixture
def passing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PassingBytes]:
    monkeypatch.setattr(passing_bytes, "SMALLEST_BYTES", 1)
    made = PassingBytes(str(tmp_path / "passing"), budget_bytes=64 << 20)
    yield made
    made.close()


def scanned(ds: Dataset, noting: Store, *, part: float = 1.0) -> int:
    """Read the shards block by block, or a part of the blocks; the bytes that were read."""
    opened, rng, num_bytes = ds.stream.opened, random.Random(6), 0
    for path, size in zip(opened.paths, opened.index.shard_bytes.tolist(), strict=True):
        for first in range(0, size, BLOCK_BYTES):
            if rng.random() < part:
                num_bytes += len(noting.read_range(path, first, min(size, first + BLOCK_BYTES)))
    return num_bytes


@pytest.mark.parametrize("room_bytes", [0, LEAST_BUFFER_BYTES])
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_a_stream_requests_nothing_that_was_scanned(
    order: Any, room_bytes: int, sums: Dataset, passing: PassingBytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not answers have room of their own."""
    monkeypatch.setattr(remote_readers, "LEAST_BUFFER_BYTES", room_bytes)
    store = faulty()
    scanned(sums, passing.noting(store))
    store.reads.clear()
    ds = ordered(far_away(sums, passing.serving(store), hedge=True), order)
    assert ids_of(ds) == ds.ids().tolist()
    assert [read for read in store.reads if read[1] < read[2]] == []
    stats = ds.stats()
    assert (stats["num_requests"], stats["requested_bytes"], stats["in_flight_bytes"]) == (0, 0, 0)
    assert passing.counters.served_bytes >= stats["read_bytes"]
    assert passing.counters.fetched_bytes == 0


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_what_was_scanned_in_part_is_requested_in_part(order: Any, sums: Dataset, passing: PassingBytes) -> None:
    store = faulty()
    scanned(sums, passing.noting(store), part=0.6)
    store.reads.clear()
    ds = ordered(far_away(sums, passing.serving(store)), order)
    assert ids_of(ds) == ds.ids().tolist()
    requested = [end - first for _, first, end in store.reads if first < end]
    stats, counters = ds.stats(), passing.counters
    assert stats["num_requests"] == len(requested) > 0
    assert stats["requested_bytes"] == counters.fetched_bytes == sum(requested)
    assert counters.served_bytes > 0
    assert counters.served_bytes + counters.fetched_bytes >= stats["read_bytes"]


@pytest.mark.parametrize("kind", ["sums", "lines"])
def test_bytes_damaged_on_their_way_to_the_scan_are_fetched_again(
    kind: str, request: pytest.FixtureRequest, passing: PassingBytes
) -> None:
    """Those that a checksum finds, and those that cannot be parsed."""
    ds: Dataset = request.getfixturevalue(kind)
    store = faulty(Fault("corrupt", requests=range(10**6))) if kind == "sums" else Mangled()
    scanned(ds, passing.noting(store))
    sound = faulty()
    far = ordered(far_away(ds, passing.serving(sound)), ORDERS[2])
    assert ids_of(far) == far.ids().tolist()
    assert far.stats()["num_corrupt"] > 0
    assert [read for read in sound.reads if read[1] < read[2]]


class Mangled(StoreWrapper):
    """A store whose bytes are none that a line may have."""

    def __init__(self) -> None:
        super().__init__(faulty())

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        return b"\xff" * (end_byte - first_byte)


def test_bytes_from_files_do_not_make_responses_of_the_store_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_queue, "_LATE_AT_FIRST_SECONDS", 60.0)
    store, counters = Straggler(20), Counters()
    stats = RequestStats(counters)

    def read(asked: Request, _: object = None) -> bytes:
        stats.began(asked.num_bytes)
        try:
            if asked.first_byte < 20_000:
                current_retry_control().served(4)
                current_retry_control().served(asked.num_bytes - 4)
                return content(asked)
            return store(asked)
        finally:
            stats.ended(asked.num_bytes)

    pool = RequestPool(read, stats, deadline_seconds=60.0, hedge_bytes=100)
    made = pool.ask([request(number) for number in range(21)])
    for pending in made[:20]:
        pool.wait(pending)
    threading.Timer(0.3, store.go_on.set).start()
    assert pool.wait(made[20]) == b"the first answer"
    pool.close()
    assert store.begun.count(20) == 1
    assert (counters.num_requests, counters.requested_bytes) == (1, 10)
    assert counters.num_hedges == 0

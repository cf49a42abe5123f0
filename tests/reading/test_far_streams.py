"""Streams from a remote store: the same samples, in a budget, in few requests, through all that a network does."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.samples import write_tar
from tests.stream.faraway import Dead, Distant, far_away, faulty
from tests.stream.made import check_sample, described, ids_of, open_finely, reading_threads, write_lines, write_tars

import shoal
from shoal.errors import ShardError, StorageError
from shoal.indexing.checksums import extent_checksums
from shoal.orders import Block, Buffer, Full, Sequential, Window
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.remote import remote_readers
from shoal.reading.remote.read_buffer import LEAST_BUFFER_BYTES
from shoal.reading.schedule import memory_division, memory_ledger, read_requests
from shoal.storage.retry import RetryRule, StoppedError
from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset
from shoal.testing import FAULT_KINDS, Fault

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

ORDERS = [Sequential(), Full(), Window(chunks=12, num_canonical_nodes=2), Block(chunks=6), Buffer(samples=40)]
# Faults of one request in ten, as a store tells of them.
TENTH = range(13, 10**6, 10)  # not by chance, which would come from the name of a temporary directory
TENTHS = [Fault(kind, requests=TENTH, seconds=0.01) for kind in FAULT_KINDS]
TENTHS.append(Fault("status", requests=TENTH, status=429, retry_after_seconds=0.01))


def checksummed(ds: Dataset) -> Dataset:
    """With a checksum of every extent in its index."""
    opened = ds.stream.opened
    found = extent_checksums(opened.index, opened.paths, store=opened.store, check=opened.check.check)
    return described(ds, source=replace(opened, index=replace(opened.index, extent_checksum=found)))


@pytest.fixture(scope="module")
def sums(tars: Dataset) -> Dataset:
    return checksummed(tars)


def ordered(ds: Dataset, order: Any) -> Dataset:
    return ds.shuffle(order, seed=8, chunk="6KiB" if order.name != "full" else None)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
@pytest.mark.parametrize("fault", TENTHS, ids=lambda fault: f"{fault.kind}{'-later' * bool(fault.retry_after_seconds)}")
def test_a_fault_of_one_request_in_ten_changes_nothing(
    fault: Fault, order: Any, sums: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_requests, "_LEAST_REQUEST_BYTES", 1)
    monkeypatch.setattr(read_requests, "_REQUESTS_AHEAD", 10**9)  # many requests also where chunks are neighbours
    if fault.kind == "corrupt" and order.name == "full":
        pytest.skip("a checksum is one of a whole extent, and a record is read alone")
    ds = ordered(far_away(sums, store := faulty(fault)), order)
    assert ids_of(ds) == ds.ids().tolist()
    assert store.num_faults()[fault.kind] >= 2
    stats = ds.stats()
    assert stats["num_retries"] + 10 >= store.num_faults()[fault.kind] * (fault.kind not in ("slow", "stall"))
    assert bool(stats["num_corrupt"]) == (fault.kind == "corrupt")
    assert bool(stats["num_throttled"]) == (fault.kind == "status")
    assert stats["in_flight_bytes"] == 0
    assert not reading_threads()


@pytest.mark.parametrize("room_bytes", [0, LEAST_BUFFER_BYTES])
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_all_faults_together_change_nothing(
    order: Any, room_bytes: int, sums: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not answers have room of their own."""
    monkeypatch.setattr(remote_readers, "LEAST_BUFFER_BYTES", room_bytes)
    kept = [fault for fault in TENTHS if fault.kind != "corrupt" or order.name != "full"]
    few = [replace(fault, requests=range(number, 10**6, 37)) for number, fault in enumerate(kept, 13)]
    ds = ordered(far_away(sums, store := faulty(*few), hedge=True), order)
    for epoch in range(3):
        ds.set_epoch(epoch)
        assert ids_of(ds) == ds.ids(epoch=epoch).tolist()
    assert len(store.num_faults()) >= 6
    assert ds.stats()["num_rereads"] == 0


def test_a_late_answer_is_hedged_in_a_mixture_too(sums: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources share threads, and the room that each of them keeps for hedged requests."""
    monkeypatch.setattr(read_requests, "_LEAST_REQUEST_BYTES", 1)
    monkeypatch.setattr(read_requests, "_REQUESTS_AHEAD", 10**9)
    slow = Fault("slow", requests=range(20, 10**6, 100), seconds=1.5)
    stores = [faulty(slow), faulty(slow)]
    fars = [described(far_away(sums, store), reading=ReadingOptions()) for store in stores]
    for far in fars:  # all requests of a shard wait for the one that asks for its size, and none is hedged
        for shard in range(len(far.stream.opened.paths)):
            far.stream.opened.check.check(shard)
    sources = {str(number): ordered(far, Block(chunks=6)) for number, far in enumerate(fars)}
    ds = shoal.mix(sources, seed=1).reading(hedge=True)
    keys = [int(sample["__key__"]) for sample in ds]
    assert keys == [i % len(sums) for i in ds.ids().tolist()]
    assert all(store.num_faults()["slow"] for store in stores)
    assert ds.stats()["num_hedges"] >= 2
    assert ds.stats()["num_hedges_won"] >= 1
    while reading_threads():  # the slow answers come after the end, and other tests count threads
        time.sleep(0.01)


def test_a_store_that_comes_back_is_waited_for(tars: Dataset) -> None:
    store = Dead()
    ds = far_away(tars, store).shuffle("block", seed=2)
    store.lives_at = time.monotonic() + 0.4
    assert ids_of(ds) == ds.ids().tolist()
    assert ds.stats()["num_retries"] > 10
    assert ds.stats()["wait_seconds"] > 0.3


def test_one_that_does_not_is_an_error_within_the_deadline(tars: Dataset) -> None:
    rule = RetryRule(first_pause_seconds=0.001, most_pause_seconds=0.02, deadline_seconds=0.3)
    ds = far_away(tars, Dead(), rule=rule).shuffle("block", seed=2)
    iterator = iter(ds)
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"could not read bytes \[.* attempts in 0\..*connection refused") as caught:
        next(iterator)
    assert time.monotonic() - began < 10
    assert not caught.value.transient
    assert any(path in str(caught.value) for path in tars.stream.opened.paths)
    assert isinstance(caught.value.__cause__, StorageError)
    assert not reading_threads()


def test_closing_ends_pauses(tars: Dataset) -> None:
    rule = RetryRule(first_pause_seconds=60.0, most_pause_seconds=60.0, deadline_seconds=1000.0)
    ds = far_away(tars, faulty(Fault("status", probability=1.0, retry_after_seconds=60.0)), rule=rule)
    ds.stream.opened.check._accepted[:] = b"\1" * ds.stream.opened.index.num_shards  # so that it is reads that fail
    iterator = iter(ds)
    caught: list[BaseException] = []

    def consume() -> None:
        try:
            next(iterator)
        except BaseException as error:  # noqa: BLE001  # looked at below
            caught.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    while not ds.stats()["num_retries"]:
        time.sleep(0.001)
    iterator.close()
    consumer.join(10)
    assert not reading_threads()
    assert isinstance(caught[0], StoppedError)


# ---- checksums, and what is noticed without


@pytest.mark.parametrize("order", ORDERS[2:], ids=lambda order: order.name)
def test_bytes_that_lie_damaged_are_an_error_with_shard_and_bytes(order: Any, tmp_path: Path) -> None:
    ds = checksummed(open_finely(write_tars(tmp_path / "data", [30, 40])))
    path = Path(ds.stream.opened.paths[1])
    data = bytearray(path.read_bytes())
    place = data.index(b"0055.bin") + 700
    data[place] ^= 1
    path.write_bytes(data)
    far = ordered(far_away(ds), order)
    far.stream.opened.check._accepted[:2] = b"\1\1"
    got: list[int] = []
    with pytest.raises(
        ShardError, match=r"s-001\.tar, byte \d+: bytes \[\d+, \d+\) do not have the checksum"
    ) as caught:
        for sample in far:
            got.append(check_sample(sample))  # noqa: PERF401
    assert caught.value.byte is not None
    assert caught.value.byte <= place < caught.value.byte + 20_000
    assert "at none of 5 attempts" in str(caught.value)
    assert far.stats()["num_corrupt"] >= 5
    assert got == far.ids().tolist()[: len(got)]


@pytest.mark.parametrize("kind", ["tars", "lines"])
def test_without_checksums_what_cannot_be_parsed_is_read_again(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds: Dataset = request.getfixturevalue(kind)
    assert ds.stream.opened.index.extent_checksum is None
    store = Distant()
    read, broken = Distant.read_range, set()

    def mangled(self: Distant, path: str, first_byte: int, end_byte: int) -> bytes:
        data = read(self, path, first_byte, end_byte)
        if (path, first_byte) in broken or not data:
            return data
        broken.add((path, first_byte))
        return b"\xff" * 300 + data[300:]  # a header, or the beginning of a line

    monkeypatch.setattr(Distant, "read_range", mangled)
    far = far_away(ds, store).shuffle(Block(chunks=3), seed=1, chunk="6KiB")
    assert ids_of(far) == far.ids().tolist()
    assert far.stats()["num_corrupt"] >= 3
    broken.clear()
    assert check_sample(far[5]) == 5
    assert broken


def test_what_lies_wrong_without_checksums_is_still_an_error(tmp_path: Path) -> None:
    ds = open_finely(write_lines(tmp_path / "data", [30]))
    path = Path(ds.stream.opened.paths[0])
    path.write_bytes(path.read_bytes().replace(b'{"id": 17,', b'{"id"; 17,'))
    far = far_away(ds).shuffle("block", seed=1)
    far.stream.opened.check._accepted[0] = 1
    with pytest.raises(ShardError, match="s-000"):
        list(far)
    assert far.stats()["num_corrupt"] == 2


# ---- budget and requests


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_what_is_under_way_and_held_keeps_to_its_bytes(
    order: Any, large: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever order and however late answers come: never more than the chunks in use and what may be ahead."""
    ahead_bytes = 400_000
    monkeypatch.setattr(memory_division, "ahead_limit_bytes", lambda *_, **__: ahead_bytes)
    store = Distant(latencies=(0.0, 0.0, 0.001, 0.005))
    ds = far_away(large, store, hedge=True)
    ds = ds.shuffle(order, seed=3, chunk="64KiB" if order.name != "full" else None)
    chunks = ds.resolved.chunks
    largest = int((chunks.end_byte - chunks.first_byte).max())
    in_use = {"none": 1, "full": 0, "window": 14, "block": 7, "buffer": 60}[order.name]
    for number, _ in enumerate(ds):
        if number % 50 == 0:
            time.sleep(0.01)
    stats = ds.stats()
    assert stats["peak_claimed_bytes"] <= ahead_bytes + in_use * largest
    assert store.peak_bytes == stats["peak_in_flight_bytes"] <= ahead_bytes
    assert stats["requested_bytes"] <= 1.02 * stats["read_bytes"] + stats["num_hedges"] * largest
    assert stats["num_samples"] == 300


def test_neighbours_share_requests(large: Dataset) -> None:
    """In storage order 6 MB take a few requests, however small the chunks, and not a byte more."""
    store = Distant(latencies=(0.002,))
    ds = far_away(large, store).shuffle(Sequential(), chunk="64KiB")
    num_chunks = len(ds.resolved.chunks)
    assert ids_of_sizes(ds) == [20_000] * 300
    stats = ds.stats()
    assert stats["num_reads"] == num_chunks
    assert stats["num_requests"] <= num_chunks / 2
    assert stats["requested_bytes"] == stats["read_bytes"]


def ids_of_sizes(ds: Dataset) -> list[int]:
    return [len(sample["bin"]) for sample in ds]


def test_single_records_are_joined_where_they_lie_together(large: Dataset) -> None:
    store = Distant(latencies=(0.002,))
    ds = far_away(large, store).select([*range(100, 103), *range(200, 203)])  # few enough to be read one by one
    assert ids_of_sizes(ds) == [20_000] * 6
    assert ds.stats()["num_reads"] == 6
    assert ds.stats()["num_requests"] <= 4


def test_the_first_sample_does_not_wait_for_what_comes_after(large: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Distant()
    read = Distant.read_range
    go_on, numbers = threading.Event(), []

    def held(self: Distant, path: str, first_byte: int, end_byte: int) -> bytes:
        numbers.append(first_byte)
        if end_byte and len([n for n in numbers if n]) > 1:
            assert go_on.wait(20)
        return read(self, path, first_byte, end_byte)

    monkeypatch.setattr(Distant, "read_range", held)
    ds = far_away(large, store).shuffle("block", seed=1)
    iterator = iter(ds)
    next(iterator)
    go_on.set()
    assert len(list(iterator)) == 299


@pytest.mark.parametrize(("ahead_mib", "num_requests"), [(1, 8), (11, 8), (12, 32), (32, 32)])
def test_more_at_first_where_there_is_room_for_their_heaps(
    ahead_mib: int, num_requests: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tar(tmp_path / "a.tar", [{"__key__": str(i).encode(), "bin": b""} for i in range(40)])
    monkeypatch.setattr(memory_ledger, "_LEAST_BYTES", ahead_mib << 20)
    ds = far_away(open_dataset(tmp_path / "a.tar"), Distant()).shuffle(Window(chunks=2), chunk=1024)
    next(iter(ds))
    assert ds.stats()["concurrency"] == num_requests


def test_more_at_a_time_where_the_consumer_waits(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [{"__key__": str(i).encode(), "bin": bytes(60_000)} for i in range(700)])
    store = Distant(latencies=(0.02,))
    ds = far_away(open_dataset(tmp_path / "a.tar"), store).shuffle("block", seed=1, chunk="64KiB")
    assert len(list(ds)) == 700
    assert store.peak > 12
    assert ds.stats()["concurrency"] >= 12
    store.peak = 0
    next(iter(ds))
    assert ds.stats()["concurrency"] >= 12  # the next epoch begins with what was found

"""Large reads come in parts, over several connections, and are as if they had come at once."""

from __future__ import annotations

import gzip
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.stream.faraway import Distant, far_away, faulty
from tests.stream.made import described, ids_of, open_finely, write_tars

from shoal.errors import ShardError, StorageError
from shoal.indexing.checksums import extent_checksums
from shoal.orders import Block, Full, Window
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.remote.read_buffer import ReadBuffer
from shoal.reading.remote.remote_readers import RemoteReaders
from shoal.reading.schedule import read_requests
from shoal.reading.schedule.memory_ledger import MemoryBudget
from shoal.reading.schedule.read_requests import Request, split_large
from shoal.reading.schedule.units import UnitRead
from shoal.stats.counters import Counters
from shoal.storage.files.memory_pool import MemoryPool
from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset
from shoal.testing import Fault

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

ORDERS: list[Any] = [Block(chunks=3), Full(), Window(chunks=4, num_canonical_nodes=1)]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if 2 KB were large."""
    monkeypatch.setattr(read_requests, "LARGE_BYTES", 2000)
    monkeypatch.setattr(read_requests, "PART_BYTES", 1000)


def checksummed(ds: Dataset) -> Dataset:
    opened = ds.stream.opened
    found = extent_checksums(opened.index, opened.paths, store=opened.store, check=opened.check.check)
    return described(ds, source=replace(opened, index=replace(opened.index, extent_checksum=found)))


@pytest.fixture
def zipped(tmp_path: Path) -> Dataset:
    """Compressed shards, of one extent each: 80 samples of 2000 bytes."""
    zipped = tmp_path / "zipped"
    zipped.mkdir()
    for path in write_tars(tmp_path / "plain", [20] * 4).iterdir():
        (zipped / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
    return checksummed(open_dataset(zipped))


def test_parts_are_equal_and_leave_nothing_out() -> None:
    assert split_large(Request(3, 5, 5 + (8 << 20), (0,))) == [Request(3, 5, 5 + (8 << 20), (0,))]
    whole = Request(3, 7, 7 + (30 << 20) + 1, (4,))
    made = split_large(whole)
    assert len(made) == 8
    assert (made[0].first_byte, made[-1].end_byte) == (whole.first_byte, whole.end_byte)
    assert all(one.end_byte == after.first_byte for one, after in itertools.pairwise(made))
    assert max(part.num_bytes for part in made) <= 4 << 20
    assert min(part.num_bytes for part in made) > 3 << 20
    together = Request(3, 7, 7 + (30 << 20), (4, 5))
    assert split_large(together) == [together]


def test_they_are_put_together_in_any_order_and_taken_without_a_copy_more() -> None:
    request = Request(0, 100, 100 + 9000, (0,))
    data = bytes(range(250)) * 36
    whole = ReadBuffer(request, MemoryPool())
    for first in (6000, 0, 3000, 6000):
        part = request._replace(first_byte=100 + first, end_byte=3100 + first)
        whole.put(part, data[first : first + 3000])
    assert bytes(whole.take({})) == data
    whole.put(request, data)  # a second request that comes after all
    assert not len(whole.take({}))


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
@pytest.mark.parametrize("hedge", [False, True])
def test_the_stream_is_the_same_and_each_byte_is_asked_for_once(order: Any, hedge: bool, tars: Dataset) -> None:
    store = Distant(latencies=(0.0, 0.001, 0.003))
    ds = far_away(checksummed(tars), store, hedge=hedge).shuffle(
        order, seed=8, chunk="6KiB" if order.name != "full" else None
    )
    assert ids_of(ds) == ds.ids().tolist()
    stats = ds.stats()
    assert order.name == "full" or stats["num_requests"] > 1.5 * stats["num_reads"]  # its reads are small
    if not hedge:
        assert stats["requested_bytes"] <= 1.02 * stats["read_bytes"]
    assert store.peak > 1


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("kind", ["corrupt", "truncate", "status"])
def test_faults_of_parts_change_nothing(kind: Any, zipped: Dataset) -> None:
    """The checksum is one of the whole read: a part alone cannot tell that it is wrong."""
    store = faulty(Fault(kind, requests=range(11, 10**6, 17)))
    ds = far_away(zipped, store).shuffle(Block(chunks=2), seed=1)
    assert sorted(ids_of(ds)) == list(range(80))
    assert store.num_faults()[kind] >= 1
    assert bool(ds.stats()["num_corrupt"]) == (kind == "corrupt")


@pytest.mark.usefixtures("small_parts")
def test_what_lies_wrong_is_an_error_as_ever(tmp_path: Path) -> None:
    ds = checksummed(open_finely(write_tars(tmp_path / "data", [30])))
    path = Path(ds.stream.opened.paths[0])
    data = bytearray(path.read_bytes())
    data[data.index(b"0011.bin") + 700] ^= 1
    path.write_bytes(data)
    ds.stream.opened.store.close()
    far = far_away(ds).shuffle(Block(chunks=3), seed=1, chunk="6KiB")
    far.stream.opened.check._accepted[0] = 1
    with pytest.raises(ShardError, match="at none of 5 attempts"):
        list(far)


@pytest.mark.usefixtures("small_parts")
def test_a_part_that_cannot_be_had_is_the_error_of_the_read(tars: Dataset) -> None:
    store = faulty(Fault("status", status=403, requests=[9]))
    ds = far_away(tars, store).shuffle(Block(chunks=3), seed=1, chunk="6KiB")
    ds.stream.opened.check._accepted[:] = b"\1" * ds.stream.opened.index.num_shards
    with pytest.raises(StorageError, match="403"):
        list(ds)


def test_what_comes_in_turn_is_asked_for_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it at once, since there is room: then the parts that are wanted first do not come last."""
    monkeypatch.setattr(read_requests, "_LEAST_REQUEST_BYTES", 500)
    monkeypatch.setattr(read_requests, "_MOST_REQUEST_BYTES", 500)
    write_tars(tmp_path / "plain", [20])
    opened = far_away(open_dataset(tmp_path / "plain"), store := Distant(latencies=[0.002])).stream.opened
    data = Path(opened.paths[0]).read_bytes()[:40_000]
    opened.check.check(0)
    store.requests.clear()
    ledger = MemoryBudget(ahead_limit_bytes=1 << 20)
    readers = RemoteReaders(opened, Counters(), ledger, ReadingOptions())
    assert b"".join(readers.parts_in_turn(UnitRead(0, 0, 0, 40_000, 0, 1))) == data
    readers.close()
    places = [first_byte // 500 for _, first_byte, _ in store.requests]
    assert sorted(places) == list(range(80))
    assert max(places[:20]) < min(places[-20:])  # about: threads are not told in which order to run
    assert (ledger.ahead_bytes, ledger.held_bytes, ledger.arrived_bytes) == (0, 0, 0)


class Ledger(MemoryBudget):
    most_ahead_bytes = 0

    def reserve(self, num_bytes: int) -> None:
        super().reserve(num_bytes)
        self.most_ahead_bytes = max(self.most_ahead_bytes, self.ahead_bytes)


@pytest.mark.parametrize("ahead_bytes", [0, 1500, 4000, 9000])
def test_what_comes_in_turn_stays_within_what_may_be_ahead(
    ahead_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for one part, where that is full of what is wanted later."""
    monkeypatch.setattr(read_requests, "_LEAST_REQUEST_BYTES", 500)
    monkeypatch.setattr(read_requests, "_MOST_REQUEST_BYTES", 500)
    write_tars(tmp_path / "plain", [20])
    opened = far_away(open_dataset(tmp_path / "plain"), Distant(latencies=[0.0005])).stream.opened
    opened.check.check(0)
    ledger = Ledger(ahead_limit_bytes=4080)  # of which a 51st part is for gaps
    readers = RemoteReaders(opened, Counters(), ledger, ReadingOptions())
    ledger.reserve(ahead_bytes)
    taken = b"".join(readers.parts_in_turn(UnitRead(0, 0, 0, 20_000, 0, 1)))
    readers.close()
    assert taken == Path(opened.paths[0]).read_bytes()[:20_000]
    assert max(4000, ahead_bytes) - 500 < ledger.most_ahead_bytes <= max(4000, ahead_bytes + 500)
    assert ledger.peak_bytes <= ledger.most_ahead_bytes
    assert (ledger.ahead_bytes, ledger.held_bytes, ledger.arrived_bytes) == (ahead_bytes, 0, 0)

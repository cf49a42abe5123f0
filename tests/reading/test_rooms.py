"""Answers go to room that their consumer made, and only the first who claims it writes there."""

from __future__ import annotations

import threading
import time
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.stream.faraway import Distant, far_away

from shoal.orders import Window
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.remote import remote_readers
from shoal.reading.remote.read_buffer import ReadBuffer
from shoal.reading.remote.remote_readers import RemoteReaders
from shoal.reading.schedule import read_requests
from shoal.reading.schedule.memory_ledger import MemoryBudget
from shoal.reading.schedule.read_requests import Request
from shoal.reading.schedule.units import extent_read
from shoal.stats.counters import Counters
from shoal.storage.files.memory_pool import MemoryPool
from shoal.storage.http.http_store import HttpStore
from shoal.stream.dataset import Dataset
from shoal.testing import RangeServer

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


READ = Request(0, 100, 300_100, (0,))


def test_the_first_claim_counts() -> None:
    room = ReadBuffer(READ, MemoryPool())
    view = room.claim(READ)
    assert view is not None
    assert room.claim(READ) is None
    view[:] = memory = bytes(range(250)) * 1200
    view.release()
    data = room.take({100: b""})
    assert data == memory
    assert isinstance(data, memoryview)
    assert not isinstance(data.obj, bytes | bytearray)  # without a copy
    assert room.is_released


def test_who_writes_too_late_changes_nothing_that_was_taken() -> None:
    read = READ._replace(end_byte=104)
    room = ReadBuffer(read, MemoryPool())
    view = room.claim(read)
    assert view is not None
    view[:] = b"good"
    data = room.take({100: b""})
    view[:] = b"late"
    assert bytes(data) == b"good"


def test_what_another_request_brought_takes_the_place_of_what_is_still_written() -> None:
    read = READ._replace(end_byte=108)
    parts = [read._replace(end_byte=104), read._replace(first_byte=104)]
    room = ReadBuffer(read, MemoryPool())
    view = room.claim(parts[0])
    assert view is not None
    view[:] = b"late"
    assert room.put(parts[0], b"good") == b"good"
    assert room.put(parts[1], b"also") == b""
    assert bytes(room.take({100: b"good", 104: b""})) == b"goodalso"


def test_memory_is_used_again_when_nobody_can_see_it() -> None:
    memories = MemoryPool()
    views = [memoryview(memories.take(200_000))[:199_000].toreadonly() for _ in range(3)]
    views[0] = views[0][5:100]  # a slice of a view sees it
    array = np.frombuffer(views[1], dtype=np.uint8)
    weak = weakref.ref(array)
    del views[1:]
    assert memories.num_mapped == 3
    again = memories.take(200_000)  # the third
    assert memories.num_mapped == 3
    assert again is not views[0].obj
    memories.take(190_000)
    assert memories.num_mapped == 4
    del array, again
    assert weak() is None
    taken = [memories.take(size) for size in (195_000, 199_999, 190_000)]
    assert memories.num_mapped == 4
    assert len({id(memory) for memory in taken}) == 3
    assert views[0].obj not in taken


def test_memory_of_another_size_goes_back() -> None:
    memories = MemoryPool()
    memories.take(1_000_000)
    memories.take(500_000)
    assert memories.num_mapped == 2
    known = [memories.take(500_000) for _ in range(2)]
    assert memories.num_mapped == 3
    memories.clear()
    assert [len(memory) for memory in known] == [500_000] * 2


@dataclass
class Filling(Distant):
    """Remote files, each request of a thread once late; remembers who filled what."""

    filled: list[int] = field(default_factory=list)
    late: set[tuple[str, int]] = field(default_factory=set)
    gate: threading.Event = field(default_factory=threading.Event)

    def fill(self, path: str, first_byte: int, buffer: memoryview) -> None:
        self.filled.append(len(buffer))
        if len(self.filled) == 3:  # until a second request has been answered, and longer
            self.gate.wait(5.0)
            buffer[:] = bytes(len(buffer))
        super().fill(path, first_byte, buffer)


@dataclass
class Stuck(Distant):
    """Answers no request until it is let."""

    gate: threading.Event = field(default_factory=threading.Event)

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        self.gate.wait(5.0)
        return super().read_range(path, first_byte, end_byte)


def test_a_second_request_has_bytes_of_its_own(tars: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one, which was thought lost, has the room, and writes zeros there after the second has answered."""
    monkeypatch.setattr(remote_readers, "LEAST_BUFFER_BYTES", 0)
    monkeypatch.setattr(read_requests, "_LEAST_REQUEST_BYTES", 1)
    store = Filling()
    ds = far_away(tars, store, hedge=True).shuffle(Window(chunks=12, num_canonical_nodes=2), seed=8, chunk="6KiB")
    seen: list[Any] = []
    for sample in ds:
        seen.append(sample)
        if len(seen) == 40:
            store.gate.set()
    assert [int(sample["__key__"]) for sample in seen] == [int(ds[i]["__key__"]) for i in ds.ids().tolist()]
    assert ds.stats()["num_hedges"] >= 1
    assert len(store.filled) > 3


@pytest.mark.parametrize("large_bytes", [1 << 30, 2000], ids=["in a room", "in parts"])
def test_bytes_that_are_asked_for_twice_have_two_places(
    large_bytes: int, tars: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when every sample is read alone, and two of one extent are wanted soon after each other."""
    monkeypatch.setattr(remote_readers, "LEAST_BUFFER_BYTES", 0)
    monkeypatch.setattr(read_requests, "LARGE_BYTES", large_bytes)
    monkeypatch.setattr(read_requests, "PART_BYTES", 1000)
    opened = far_away(tars, Distant()).stream.opened
    read = extent_read(opened.index, 0)
    data = Path(opened.paths[read.shard]).read_bytes()[read.first_byte : read.end_byte]
    readers = RemoteReaders(opened, Counters(), MemoryBudget(ahead_limit_bytes=1 << 20), ReadingOptions())
    [first] = readers.request([read])
    arrivals = first.parts
    assert (len(arrivals) > 1) == (large_bytes == 2000)
    while any(arrival.result is None for arrival in arrivals):
        time.sleep(0.001)
    [second] = readers.request([read])
    for promise in (first, second):
        readers.read_into(read, promise, memoryview(buffer := bytearray(len(data))))
        assert buffer == data
    readers.close()


def test_a_closed_stream_keeps_no_room(tars: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where answers never come, and the threads that wait for them know what was asked."""
    monkeypatch.setattr(remote_readers, "LEAST_BUFFER_BYTES", 0)
    store = Stuck()
    opened = far_away(tars, store).stream.opened
    readers = RemoteReaders(opened, Counters(), MemoryBudget(ahead_limit_bytes=1 << 20), ReadingOptions())
    promises = [promise for extent in range(12) for promise in readers.request([extent_read(opened.index, extent)])]
    assert all(promise.buffer is not None and not promise.buffer.is_released for promise in promises)
    readers.close()
    assert all(promise.buffer is not None and promise.buffer.is_released for promise in promises)
    store.gate.set()


def test_stores_fill_what_they_would_give(tmp_path: Any) -> None:
    data = bytes(range(256)) * 2000
    (tmp_path / "a.bin").write_bytes(data)
    store = HttpStore()
    with RangeServer(tmp_path) as server:
        for first, end in ((0, len(data)), (5, 6), (1000, 400_001)):
            buffer = bytearray(end - first)
            store.fill(server.url_of("a.bin"), first, memoryview(buffer))
            assert buffer == data[first:end] == store.read_range(server.url_of("a.bin"), first, end)
    store.close()

"""What is read of a remote shard: the right bytes, by whichever way is cheaper, with nothing left running."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stream.far import FarStore, known_costs

from shoal.indexing.scan.costs import REACH_BYTES, ReadCosts
from shoal.indexing.scan.remote_scans import BLOCK_BYTES, ScanReading, ScanReads
from shoal.storage.files.memory_pool import MemoryPool
from shoal.storage.store_protocol import ObjectInfo, Store

MIB = 1 << 20
STREAMS = (1.0, 100 * MIB, True)  # where a comparison stands that is clearly for a stream


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def reading_of(reads: ScanReads, num_bytes: int, threads: ThreadPoolExecutor, *, num_at_once: int = 1) -> ScanReading:
    return ScanReading(reads, "s", num_bytes, threads=threads, num_at_once=num_at_once, memories=MemoryPool())


class Blank(Store):
    """An object of zeros, of any size."""

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        del path
        return bytes(end_byte - first_byte)

    def stat(self, path: str) -> ObjectInfo:
        raise NotImplementedError


def cost_of(positions: list[int], num_bytes: int, threads: ThreadPoolExecutor, request_bytes: int) -> tuple[int, int]:
    """Requests and bytes of reading 2 KiB at each position."""
    reads = ScanReads(Blank(), known_costs(request_bytes=request_bytes))
    reading = reading_of(reads, num_bytes, threads)
    for position in positions:
        reading(position, min(num_bytes, position + 2048))
    reading.close()
    return reads.traffic.num_requests, reads.traffic.read_bytes


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 3000),
    spread_bytes=st.sampled_from([0, 4096, 100_000, 400_000, 900_000]),
    order=st.sampled_from(["equal", "uniform", "pairs", "halves"]),
    gap_bytes=st.sampled_from([512, 4096, 60_000, 300_000, 1_000_000, 3_000_000, 20_000_000]),
)
def test_any_sizes_cost_at_most_a_little_more_than_the_better_way(
    seed: int, count: int, spread_bytes: int, order: str, gap_bytes: int
) -> None:
    with ThreadPoolExecutor(1) as threads:
        gaps = gaps_of(random.Random(seed), count, gap_bytes, spread_bytes, order)
        positions = [0]
        for gap in gaps:
            positions.append(positions[-1] + gap)
        num_bytes = positions.pop() + 512
        request_bytes = MIB
        num_requests, read_bytes = cost_of(positions, num_bytes, threads, request_bytes)
    stream = -(-num_bytes // BLOCK_BYTES) * request_bytes + num_bytes
    reached, hops = -1, 0
    for position in positions:
        if position + 2048 > reached:
            reached, hops = position + REACH_BYTES, hops + 1
    headers = hops * (request_bytes + REACH_BYTES)
    slack = 8 * BLOCK_BYTES
    assert num_requests * request_bytes + read_bytes <= 1.5 * min(stream, headers) + slack


def gaps_of(draw: random.Random, count: int, gap_bytes: int, spread_bytes: int, order: str) -> list[int]:
    if order == "pairs":  # a large member with a small one beside it
        return [gap_bytes, 1024] * (count // 2 + 1)
    if order == "halves":  # small ones, and then large ones
        return [1024] * (count // 2) + [gap_bytes] * (count // 2 + 1)
    return [gap_bytes + (draw.randrange(spread_bytes + 1) if order == "uniform" else 0) for _ in range(count)]


@settings(deadline=None, max_examples=25)
@given(data=st.data(), num_bytes=st.integers(1, 9 * MIB), request_bytes=st.sampled_from([1, 40_000, MIB, 100 * MIB]))
def test_any_ranges_are_the_right_bytes(data: st.DataObject, num_bytes: int, request_bytes: int) -> None:
    contents = random.Random(num_bytes).randbytes(4096) * (num_bytes // 4096 + 1)
    store = FarStore({"s": contents[:num_bytes]})
    with ThreadPoolExecutor(3) as threads:
        reading = reading_of(ScanReads(store, known_costs(request_bytes=request_bytes)), num_bytes, threads)
        position = 0
        for _ in range(data.draw(st.integers(1, 30))):
            steps = st.sampled_from([0, 0, 1, 512, 3000, 60_000, 700_000, 3 * MIB, -2000, -MIB])
            position = min(max(0, position + data.draw(steps)), num_bytes - 1)
            end = min(num_bytes, position + data.draw(st.sampled_from([0, 1, 2048, 16 << 10, MIB, 5 * MIB])))
            assert bytes(reading(position, end)) == contents[position:end]
            position = end
    assert all(0 <= first < end <= num_bytes for _, first, end in store.requests)


def test_small_shards_take_one_request(threads: ThreadPoolExecutor) -> None:
    assert cost_of([0, 300_000, 700_000], MIB, threads, MIB) == (1, MIB)


def test_headers_of_large_members_take_one_request_each(threads: ThreadPoolExecutor) -> None:
    positions = [number * 10_000_896 for number in range(50)]
    assert cost_of(positions, 50 * 10_000_896 + 1024, threads, MIB) == (50, 50 * REACH_BYTES)


def test_small_members_are_a_stream(threads: ThreadPoolExecutor) -> None:
    num_bytes = 4608 * 10_000
    num_requests, read_bytes = cost_of(list(range(0, num_bytes, 4608)), num_bytes, threads, MIB)
    assert num_bytes - REACH_BYTES < read_bytes <= num_bytes
    assert num_requests <= -(-num_bytes // BLOCK_BYTES) + 1


def test_the_next_shard_begins_as_the_last_one_went(threads: ThreadPoolExecutor) -> None:
    num_bytes = 100_864 * 200
    positions = list(range(0, num_bytes, 100_864))
    reads = ScanReads(Blank(), known_costs())
    counts = []
    for _ in range(3):
        before = reads.traffic.num_requests
        reading = reading_of(reads, num_bytes, threads)
        for position in positions:
            reading(position, position + 2048)
        reading.close()
        counts.append(reads.traffic.num_requests - before)
    assert counts[1:] == [-(-num_bytes // BLOCK_BYTES)] * 2
    assert counts[0] <= counts[1] + 4


def test_a_stream_has_as_much_under_way_as_it_may() -> None:
    store = FarStore({"s": bytes(40 * MIB)})
    released = threading.Semaphore(0)
    arrived = threading.Semaphore(0)

    def before(path: str, first_byte: int, end_byte: int) -> None:
        del path, first_byte, end_byte
        arrived.release()
        released.acquire()

    store.before = before  # type: ignore[method-assign]
    with ThreadPoolExecutor(16) as threads:
        reads = ScanReads(store, known_costs())
        reads.costs.last_comparison = STREAMS
        reading = reading_of(reads, 40 * MIB, threads, num_at_once=5)
        waiting = threads.submit(reading, 0, 1000)
        for _ in range(6):
            arrived.acquire()
        assert not waiting.done()
        for _ in range(6):
            released.release()
        assert waiting.result() == bytes(1000)
        reading.close()
    assert store.most_at_once == 6
    assert len(store.requests) == 6


def test_costs_are_what_was_measured() -> None:
    costs = ReadCosts()
    for _ in range(200):
        costs.measured(2048, 0.005)
        costs.measured(BLOCK_BYTES, 0.005 + BLOCK_BYTES / 200e6)
    assert costs.request_seconds == pytest.approx(0.005, rel=0.05)
    assert costs.byte_seconds == pytest.approx(1 / 200e6, rel=0.05)
    assert costs.request_bytes() == pytest.approx(1_000_000, rel=0.1)
    costs.measured(2048, 60.0)  # one that hung
    assert costs.request_seconds < 0.007
    for _ in range(1000):
        costs.measured(2048, 10.0)
    # Never more, however slow requests are; but a shard that is scanned alone would leave others idle.
    assert (costs.request_bytes(), costs.request_bytes(7), costs.request_bytes(32)) == (MIB, MIB, 4 * MIB)


def test_an_error_of_a_stream_is_raised_where_its_bytes_are_wanted(threads: ThreadPoolExecutor) -> None:
    store = FarStore({"s": bytes(6 * MIB)})

    def before(path: str, first_byte: int, end_byte: int) -> None:
        del path, end_byte
        if first_byte >= 4 * MIB:
            raise KeyError(first_byte)

    store.before = before  # type: ignore[method-assign]
    reads = ScanReads(store, known_costs())
    reads.costs.last_comparison = STREAMS
    reading = reading_of(reads, 6 * MIB, threads)
    for first in range(0, 4 * MIB, MIB):
        reading(first, first + MIB)
    with pytest.raises(KeyError, match=str(4 * MIB)):
        reading(4 * MIB, 5 * MIB)

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.reading.schedule.read_requests import coalesce
from shoal.reading.schedule.units import UnitRead


def read(shard: int, first_byte: int, num_bytes: int) -> UnitRead:
    return UnitRead(0, shard, first_byte, first_byte + num_bytes, 0, 1)


@given(
    reads=st.lists(
        st.builds(read, st.integers(0, 2), st.integers(0, 60).map(lambda n: n * 40), st.integers(1, 2000)), max_size=40
    ),
    most_bytes=st.integers(1, 5000),
)
def test_every_read_is_in_one_request_and_little_else(reads: list[UnitRead], most_bytes: int) -> None:
    requests = coalesce(reads, most_bytes=most_bytes)
    assert sorted(place for request in requests for place in request.reads) == list(range(len(reads)))
    assert [request.reads[0] for request in requests] == sorted(request.reads[0] for request in requests)
    for request in requests:
        wanted: set[int] = set()
        for place in request.reads:
            part = reads[place]
            assert part.shard == request.shard
            assert request.first_byte <= part.first_byte <= part.end_byte <= request.end_byte
            wanted.update(range(part.first_byte, part.end_byte))
        assert (min(wanted), max(wanted) + 1) == (request.first_byte, request.end_byte)
        assert request.num_bytes <= 1.02 * len(wanted)
        assert request.num_bytes <= most_bytes or len(request.reads) == 1
        assert list(request.reads) == sorted(request.reads)


def test_neighbours_become_one_request_up_to_its_limit() -> None:
    reads = [read(0, 1000 * number, 1000) for number in range(10)]
    assert [request.reads for request in coalesce(reads, most_bytes=4000)] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)]
    backwards = coalesce(reads[::-1], most_bytes=10_000)
    assert [(r.first_byte, r.end_byte, r.reads) for r in backwards] == [(0, 10_000, tuple(range(10)))]


def test_a_small_gap_is_read_and_a_larger_one_is_not() -> None:
    assert len(coalesce([read(0, 0, 1000), read(0, 1039, 1000)], most_bytes=10_000)) == 1
    assert len(coalesce([read(0, 0, 1000), read(0, 1041, 1000)], most_bytes=10_000)) == 2
    assert len(coalesce([read(0, 0, 1000), read(1, 1000, 1000)], most_bytes=10_000)) == 2


def test_the_same_bytes_are_asked_for_once() -> None:
    assert [r.reads for r in coalesce([read(0, 0, 1000)] * 3 + [read(0, 100, 50)], most_bytes=2000)] == [(0, 1, 2, 3)]
    assert coalesce([], most_bytes=1000) == []

"""The shuffle buffer: the order of `orders.Buffer`, in samples or bytes, restored at any step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.live.live_openers import from_iterable
from shoal.live.shuffle_buffer import BufferSize, Held, ShuffleBuffer
from shoal.orders import Buffer


@given(st.integers(1, 300), st.integers(1, 80), st.integers(0, 2**64 - 1))
def test_until_the_source_ends_the_order_is_that_of_the_seekable_buffer(total: int, slots: int, seed: int) -> None:
    got = list(from_iterable(range(total)).shuffle(seed=seed, buffer=slots))
    expected = Buffer(samples=slots).bind([total], seed=seed).ids(0, total).tolist()
    steps = max(0, total - slots)
    assert got[:steps] == expected[:steps]
    assert sorted(got) == list(range(total))


def test_the_last_samples_come_in_random_order_too() -> None:
    firsts = {next(iter(from_iterable(range(20)).shuffle(seed=seed, buffer=50))) for seed in range(60)}
    assert len(firsts) > 10


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 200))
def test_a_buffer_of_bytes_holds_at_most_one_sample_too_many(sizes: list[int], limit: int) -> None:
    buffer = ShuffleBuffer(BufferSize(0, None, limit))
    coming = list(enumerate(sizes))
    left: list[int] = []
    while coming or len(buffer):
        while coming and not buffer.is_full:
            number, size = coming.pop(0)
            buffer.put(Held(bytes(size), number))
        assert buffer.num_bytes == sum(len(entry.sample) for entry in buffer.entries())
        assert buffer.num_bytes < limit + max(sizes)
        left.append(buffer.pick().place)
    assert sorted(left) == list(range(len(sizes)))


@given(st.integers(0, 40), st.integers(1, 12))
def test_it_goes_on_where_it_was(steps: int, slots: int) -> None:
    def run(buffer: ShuffleBuffer, numbers: list[int], count: int) -> list[int]:
        left: list[int] = []
        while len(left) < count:
            while numbers and not buffer.is_full:
                buffer.put(Held(None, numbers.pop(0)))
            if not len(buffer):
                break
            left.append(buffer.pick().place)
        return left

    whole = run(ShuffleBuffer(BufferSize(5, slots)), list(range(40)), 40)
    numbers, first = list(range(40)), ShuffleBuffer(BufferSize(5, slots))
    before = run(first, numbers, steps)
    second = ShuffleBuffer(BufferSize(5, slots))
    second.restore(first.entries(), steps=first.steps, hole=first.hole)
    assert before + run(second, numbers, 40) == whole


@pytest.mark.parametrize("buffer", [0, -1, 2**32, 1.5, True, None, "many", "0B"])
def test_other_sizes_are_refused(buffer: object) -> None:
    with pytest.raises(UsageError, match="buffer"):
        BufferSize.of(0, buffer)

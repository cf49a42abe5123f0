"""Orders of torch's samplers, against torch's own loops written out in Python, and by their laws."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.examples import few_examples
from tests.order.datasets import chunk_of, datasets, scan

from shoal.errors import StateError, UsageError
from shoal.orders import TorchDistributed, TorchRandom
from shoal.peers.mersenne_twister import MersenneWords, words_after, words_passed
from shoal.peers.torch_samplers.torch_numbers import PAIRED_RANGE, bounded, large_permutation
from shoal.peers.transpositions import exchanged

KINDS: tuple[Any, ...] = ("sampler", "loader", "global", "epoch")


class Generator:
    """Torch's generator: Python's has the same words, and is seeded otherwise."""

    def __init__(self, seed: int) -> None:
        key = [seed & 0xFFFFFFFF]
        for i in range(1, 624):
            key.append((1812433253 * (key[-1] ^ (key[-1] >> 30)) + i) & 0xFFFFFFFF)
        self._random = random.Random()
        self._random.setstate((3, (*key, 624), None))

    def word(self) -> int:
        return self._random.getrandbits(32)

    def pair(self) -> int:
        return self.word() << 32 | self.word()

    def permutation(self, size: int) -> list[int]:
        items = list(range(size))
        for i in range(size - 1):
            other = i + self.word() % (size - i)
            items[i], items[other] = items[other], items[i]
        return items

    def large_permutation(self, size: int) -> list[int]:
        items: list[int] = []
        for i in range(size):
            other = self.pair() % (i + 1)
            items.append(i)
            items[i], items[other] = items[other], i
        return items

    def state(self) -> NDArray[np.uint8]:
        """As ``torch.Generator.get_state()`` gives it; the seed is filled in by who needs it."""
        *key, position = self._random.getstate()[1]
        left = np.array([625 - position, 1], dtype="<i4")
        words = np.array([position % 624, *key], dtype="<u8")
        told = [np.zeros(1, dtype="<u8").tobytes(), left.tobytes(), words.tobytes(), bytes(40)]
        return np.frombuffer(b"".join(told), dtype=np.uint8).copy()


def drawn(generator: Generator, total: int, count: int, *, replacement: bool) -> list[int]:
    """An epoch of torch's `RandomSampler`."""
    if replacement:
        return [generator.word() % total for _ in range(count)]
    found = [i for _ in range(count // total) for i in generator.permutation(total)]
    return found + generator.permutation(total)[: count % total]


@given(st.lists(st.integers(0, 2**32), max_size=60))
@example([0] * 50)
def test_exchanges_are_those_of_a_loop(numbers: list[int]) -> None:
    size = len(numbers)
    partners = np.array([i + number % (size - i) for i, number in enumerate(numbers)], dtype=np.int64)
    items = list(range(size))
    for i, other in enumerate(partners.tolist()):
        items[i], items[other] = items[other], items[i]
    assert exchanged(size, lambda start, stop: partners[start:stop]).tolist() == items


@pytest.mark.parametrize("size", [65_536, 65_537, 200_000])
def test_exchanges_go_on_from_one_tile_to_the_next(size: int) -> None:
    bound = TorchRandom().bind([size], seed=7)
    assert scan(bound).tolist() == Generator(7).permutation(size)


@given(st.integers(0, 2**64), st.lists(st.integers(0, 3_000_000), min_size=1, max_size=6))
@settings(max_examples=15)
def test_words_are_the_same_from_wherever_they_are_read(seed: int, starts: list[int]) -> None:
    words, all_words = MersenneWords.seeded(seed), MersenneWords.seeded(seed).words(0, 3_000_100)
    for start in starts:
        assert np.array_equal(words.words(start, start + 100), all_words[start : start + 100])
        assert np.array_equal(words_after(seed, start).words(0, 100), all_words[start : start + 100])


@given(datasets(max_samples=300, max_chunks=20), st.data())
def test_random_is_torch_s(samples: NDArray[np.int64], data: st.DataObject) -> None:
    total = int(samples.sum())
    seed, epoch = data.draw(st.integers(0, 2**64 - 10)), data.draw(st.integers(0, 3))
    count = data.draw(st.none() | st.integers(1, 3 * total))
    replacement, kind = data.draw(st.booleans()), data.draw(st.sampled_from(KINDS))
    order = TorchRandom(kind, replacement=replacement, num_samples=count)
    expected: list[int] = []
    generator = Generator(seed)
    for number in range(epoch + 1):
        if kind in ("loader", "global"):
            generator.pair()
        if kind == "epoch":
            generator = Generator(seed + number)
        of_sampler = Generator(generator.pair()) if kind == "global" else generator
        expected = drawn(of_sampler, total, count or total, replacement=replacement)
    bound = order.bind(samples, seed=seed, epoch=epoch)
    assert scan(bound).tolist() == expected


@given(datasets(max_samples=300, max_chunks=20), st.integers(1, 400), st.booleans(), st.booleans(), st.integers(0, 9))
def test_distributed_is_torch_s(
    samples: NDArray[np.int64], ranks: int, shuffle: bool, drop_last: bool, epoch: int
) -> None:
    total = int(samples.sum())
    indices = Generator(5 + epoch).permutation(total) if shuffle else list(range(total))
    size = total // ranks * ranks if drop_last else -(-total // ranks) * ranks
    expected = (indices * -(-size // total))[:size]
    order = TorchDistributed(num_replicas=ranks, shuffle=shuffle, drop_last=drop_last)
    bound = order.bind(samples, seed=5, epoch=epoch)
    assert scan(bound).tolist() == expected
    positions = np.arange(size)
    assert bound.axis(positions, positions, positions).tolist() == (positions % ranks).tolist()


@few_examples(10)
@given(datasets(max_samples=2000, max_chunks=30), st.data())
def test_the_laws_of_orders(samples: NDArray[np.int64], data: st.DataObject) -> None:
    """A seek equals a scan, chunks are those of the ids, and positions invert ids: the first position of repeats."""
    total = int(samples.sum())
    order: Any = data.draw(
        st.builds(
            TorchRandom,
            st.sampled_from(("sampler", "epoch")),
            replacement=st.booleans(),
            num_samples=st.none() | st.integers(1, 2 * total),
        )
        | st.builds(TorchDistributed, st.integers(1, 9), shuffle=st.booleans(), drop_last=st.booleans())
    )
    bound = order.bind(samples, seed=3, epoch=2)
    ids = scan(bound)
    assert len(ids) == bound.num_samples == order.num_positions(samples)
    start = data.draw(st.integers(0, len(ids)))
    stop = data.draw(st.integers(start, len(ids)))
    again = order.bind(samples, seed=3, epoch=2)
    found, chunks = again.locate(start, stop)
    assert np.array_equal(found, ids[start:stop])
    assert np.array_equal(chunks, chunk_of(samples, found))
    first = {sample: position for position, sample in reversed(list(enumerate(ids.tolist())))}
    assert again.positions(np.arange(total)).tolist() == [first.get(sample, -1) for sample in range(total)]
    sample = data.draw(st.integers(0, total - 1))
    assert again.first_between(sample, start, stop) == next((i for i in range(start, stop) if ids[i] == sample), -1)


@given(st.integers(1, 300), st.integers(0, 2**32))
def test_permutations_of_hundreds_of_millions_are_made_otherwise(size: int, seed: int) -> None:
    """Torch's other way, at sizes that can be tried."""
    assert large_permutation(MersenneWords.seeded(seed), 0, size).tolist() == Generator(seed).large_permutation(size)


@pytest.mark.parametrize("bound", [PAIRED_RANGE - 1, PAIRED_RANGE, 2**40 + 1])
def test_large_bounds_take_two_words(bound: int) -> None:
    generator = Generator(1)
    expected = [(generator.word() if bound < PAIRED_RANGE else generator.pair()) % bound for _ in range(100)]
    words = MersenneWords.seeded(1)
    assert bounded(words, 0, 100, bound).tolist() == expected
    assert bounded(words, 30, 60, bound).tolist() == expected[30:60]


@given(
    st.integers(0, 5),
    st.integers(0, 40),
    st.integers(0, 1000),
    st.sampled_from(("sampler", "loader", "global")),
    st.booleans(),
)
def test_a_state_of_the_generator_says_where_to_go_on(
    epoch: int, yielded: int, before: int, kind: Any, persistent: bool
) -> None:
    """Whatever was drawn before; ``before`` words that the order does not know of.

    With persistent workers it has to know of them: what follows them is different before the first epoch.
    """
    assume(before == 0 or not persistent)
    samples, seed = np.array([20, 20]), 2**40 + 3
    order = TorchRandom(kind, persistent_workers=persistent)
    generator = Generator(seed)
    for _ in range(before):
        generator.word()
    for number in range(epoch):
        if kind != "sampler" and not (persistent and number):
            generator.pair()
        generator.pair() if kind == "global" else drawn(generator, 40, 40, replacement=False)
    state = generator.state()
    state[:8] = np.array([seed], dtype="<u8").view(np.uint8)
    if kind != "sampler" and not (persistent and epoch):
        generator.pair()
    of_sampler = Generator(generator.pair()) if kind == "global" else generator
    expected = drawn(of_sampler, 40, 40, replacement=False)
    found = order.adopted({"generator": state, "yielded": yielded}, samples, 0)
    assert found is not None
    if yielded < 40:
        bound = found.order.bind(samples, seed=found.seed, epoch=found.epoch)
        assert bound.ids(found.position, 40).tolist() == expected[yielded:]
    else:
        assert found.position == 0
    if before == 0:
        assert found.order == order
        assert found.epoch == epoch + yielded // 40


def test_states_that_cannot_be_used() -> None:
    samples, state = np.array([4]), Generator(0).state()
    assert TorchRandom().adopted({"epoch": 3, "yielded": 2}, samples, 0) is None
    with pytest.raises(StateError, match="has at least 5016 bytes; got 3"):
        TorchRandom().adopted({"generator": state[:3], "yielded": 2}, samples, 0)
    with pytest.raises(StateError, match="is 2 steps old"):
        given_state = {"_steps_since_snapshot": 2, "_snapshot": {"generator": state, "yielded": 2}}
        TorchRandom().adopted(given_state, samples, 0)
    assert words_passed(1, np.zeros(624, dtype=np.uint32), 5, most=10**6) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"generator": "own"}, "generator must be one of 'sampler', 'loader', 'global', 'epoch'; got 'own'"),
        ({"generator": "global", "stateful": True}, "seeds a generator for all epochs"),
        ({"generator": "loader", "stateful": True, "replacement": True}, "in a StatefulDataLoader"),
        ({"num_samples": 0}, "num_samples must be at least 1; got 0"),
        ({"drawn": -1}, "drawn must be at least 0; got -1"),
    ],
)
def test_samplers_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TorchRandom(**arguments)
    with pytest.raises(UsageError, match="num_replicas must be at least 1; got 0"):
        TorchDistributed(num_replicas=0)


def digest(ids: NDArray[np.int64]) -> str:
    return hashlib.blake2b(ids.astype("<u8").tobytes(), digest_size=8).hexdigest()


# Of ids that torch 2.13.0 and torchdata 0.11.0 gave (tests/compat/orders/torch_samplers.py prints them).
DIGESTS = [
    (TorchRandom("loader"), 5, 1, 0, "ab9ed386f753c040"),
    (TorchRandom("epoch"), 65536, 4219918144720109109, 0, "ce454275d884a0a0"),
    (TorchRandom(), 2974, 0, 1, "f975d38ff2b2488d"),
    (TorchRandom("epoch", num_samples=22), 11, 0, 2, "886e05168601c775"),
    (TorchRandom("epoch", num_samples=32), 13, 5241815115701522205, 0, "83840f349654d21f"),
    (TorchRandom("epoch", replacement=True), 355, 0, 1, "c88c235922fc8f55"),
    (TorchRandom("epoch", stateful=True), 2651, 3110015850176577870, 0, "58923fc2a4f7d1da"),
    (TorchRandom("loader", num_samples=47), 28, 1, 1, "ea97513a14660c3a"),
    (TorchRandom(), 133, 0, 0, "4c08615469d2728b"),
    (TorchRandom("global"), 31, 1, 1, "54c708d854797261"),
    (TorchRandom("epoch", replacement=True), 915, 7284582555001288996, 2, "7d7e73bbccb69262"),
    (TorchRandom(persistent_workers=True), 38, 4013833218657951622, 1, "0df464572e7990c0"),
    (TorchRandom(stateful=True), 6, 1, 2, "ee6b5ffac4534e29"),
    (TorchRandom(stateful=True, workers=True, persistent_workers=True), 19, 2496692661954643667, 0, "46f0a9aa818b408d"),
    (TorchRandom(replacement=True, stateful=True), 2, 0, 2, "c3f5cc9bd28814a6"),
    (TorchRandom("epoch", num_samples=1333), 1213, 0, 1, "e2616195d43c857f"),
    (TorchDistributed(1), 1000, 7, 0, "6841083543002a80"),
    (TorchDistributed(3), 1000, 7, 1, "d7b8d98eeca1a723"),
    (TorchDistributed(8), 1000, 7, 2, "9fbf976e93afb569"),
    (TorchDistributed(64), 1000, 7, 3, "d8d929c87642fdb9"),
]


@pytest.mark.golden
@pytest.mark.parametrize(("order", "total", "seed", "epoch", "expected"), DIGESTS)
def test_ids_that_torch_gave(order: Any, total: int, seed: int, epoch: int, expected: str) -> None:
    assert digest(scan(order.bind([total], seed=seed, epoch=epoch))) == expected

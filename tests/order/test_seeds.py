from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.order import seeds
from shoal.order.seeds import MAX_SEED, check_epoch, check_seed, draws, key, keys, text_keys
from shoal.orders import Block, Buffer, Full, Order, Sequential, Window

MANY_CHUNKS = np.full(2000, 10)


def test_keys_of_neighbouring_words_are_all_different() -> None:
    words = itertools.product(
        range(12), range(12), ["", "place", "phase", "placf", "a-purpose-of-many-words"], range(5)
    )
    made = [key(seed, epoch, purpose, word) for seed, epoch, purpose, word in words]
    made += [key(seed, epoch, "place") for seed in range(12) for epoch in range(12)]
    assert len(set(made)) == len(made)


def test_words_do_not_run_into_each_other() -> None:
    assert key(0, 0, "ab", 1) != key(0, 0, "ab\0", 1)
    assert key(0, 0, "x", 1, 2) != key(0, 0, "x", 2, 1)
    assert key(0, 0, "x", 0) != key(0, 0, "x")
    assert key(0, 0, "12345678", 8) != key(0, 0, "12345678\x08")


def test_one_bit_of_a_word_changes_half_of_the_key() -> None:
    changed = []
    for seed in range(40):
        base = key(seed, 3, "place", 7)
        for bit in range(64):
            changed += [(base ^ key(seed ^ (1 << bit), 3, "place", 7)).bit_count()]
            changed += [(base ^ key(seed, 3 ^ (1 << bit), "place", 7)).bit_count()]
            changed += [(base ^ key(seed, 3, "place", 7 ^ (1 << bit))).bit_count()]
    assert abs(np.mean(changed) - 32) < 5 * 4 / len(changed) ** 0.5
    assert min(changed) > 8


def test_keys_of_an_array_are_all_different_and_even() -> None:
    made = keys(key(0, 0, "block"), np.arange(100_000))
    assert len(np.unique(made)) == len(made)
    ones = np.array([np.count_nonzero(made >> np.uint64(bit) & np.uint64(1)) for bit in range(64)])
    assert np.abs(ones - 50_000).max() < 5 * 158


@given(st.lists(st.text(st.characters(codec=None), max_size=40), max_size=20), st.integers(1, 9))
def test_keys_of_texts_are_those_of_their_words(texts: list[str], num_at_once: int) -> None:
    expected = []
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
        expected.append(key(3, 0, "text", *words, len(data)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeds, "_TEXTS_AT_ONCE", num_at_once)
        assert text_keys(key(3, 0, "text"), texts).tolist() == expected


def test_keys_under_one_base_each_are_those_under_that_base() -> None:
    bases, words = draws(5, np.arange(10)), np.arange(10) * 3
    each = [int(keys(int(base), words[i : i + 1])[0]) for i, base in enumerate(bases)]
    assert keys(bases, words).tolist() == each


def test_draws_are_even_and_unrelated_from_counter_to_counter() -> None:
    for base in (0, 1, 2**63, key(0, 0, "x")):
        random = draws(base, np.arange(1 << 17))
        fine = np.bincount((random >> np.uint64(56)).astype(np.int64), minlength=256)
        chi = ((fine - 512) ** 2 / 512).sum()
        assert abs(chi - 255) < 6 * (2 * 255) ** 0.5
        centred = random / 2.0**64 - 0.5
        for lag in range(1, 20):
            assert abs((centred[lag:] * centred[:-lag]).mean() * 12) * len(centred) ** 0.5 < 5.5


def test_draws_under_one_key_each_are_those_under_that_key() -> None:
    bases, counters = keys(5, np.arange(10)), np.arange(10) * 3
    each = [int(draws(int(base), counters[i : i + 1])[0]) for i, base in enumerate(bases)]
    assert draws(bases, counters).tolist() == each


def test_counters_are_not_changed() -> None:
    counters = np.arange(5, dtype=np.uint64)
    draws(3, counters)
    keys(3, counters)
    assert counters.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("order", [Full(), Window(chunks=64), Block(chunks=64), Buffer(samples=500)], ids=repr)
@pytest.mark.parametrize(
    ("one", "other"), [((0, 1), (1, 0)), ((0, 0), (1, 0)), ((0, 0), (0, 1)), ((7, 2), (2, 7)), ((0, 5), (5, 0))]
)
def test_epochs_and_seeds_give_unrelated_orders(order: Order, one: tuple[int, int], other: tuple[int, int]) -> None:
    first, second = (order.bind(MANY_CHUNKS, seed=seed, epoch=epoch) for seed, epoch in (one, other))
    total = first.num_samples
    a, b = first.ids(0, total), second.ids(0, total)
    # Positions of samples are as random as those of chunks, of which there are `independent`.
    independent = total if isinstance(order, Full) else len(MANY_CHUNKS)
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / independent**0.5
    assert abs(np.corrcoef(first.positions(np.arange(total)), second.positions(np.arange(total)))[0, 1]) < (
        5 / independent**0.5
    )
    assert np.count_nonzero(a == b) < 50  # about one for a permutation; a chunk can meet itself
    assert kept_neighbours(a, b) < 150


def kept_neighbours(a: np.ndarray, b: np.ndarray) -> int:
    """Pairs that follow each other in one order and in the other."""
    place = np.empty_like(b)
    place[b] = np.arange(len(b))
    return int(np.count_nonzero(np.abs(np.diff(place[a])) == 1))


def test_the_same_seed_and_epoch_give_the_same_order() -> None:
    for order in (Full(), Window(chunks=64), Block(chunks=64), Buffer(samples=500)):
        one, other = (order.bind(MANY_CHUNKS, seed=MAX_SEED, epoch=3) for _ in range(2))
        assert np.array_equal(one.ids(0, 5000), other.ids(0, 5000))


def test_an_order_is_not_that_of_the_seed_plus_the_epoch() -> None:
    for order in (Full(), Window(chunks=64), Block(chunks=64), Buffer(samples=500)):
        seen = {order.bind(MANY_CHUNKS, seed=s, epoch=e).ids(0, 50).tobytes() for s in range(6) for e in range(6)}
        assert len(seen) == 36


def test_nodes_of_a_window_are_unrelated() -> None:
    """Nodes of one dataset of equal chunks would deliver in step if they shared places, phases or ranks."""
    samples = np.full(1024, 50)
    bound = Window(chunks=256, num_canonical_nodes=4).bind(samples, seed=0)
    ids = bound.ids(0, bound.num_samples)
    inside = (ids % 50).reshape(-1, 4).astype(float)
    for i, j in itertools.combinations(range(4), 2):
        assert abs(np.corrcoef(inside[:, i], inside[:, j])[0, 1]) < 5.5 / len(inside) ** 0.5


@pytest.mark.parametrize("seed", [None, 1.0, "1", b"1", [1]])
def test_a_seed_of_another_kind_is_refused(seed: object) -> None:
    with pytest.raises(UsageError, match=r"seed must be an integer from 0 to 2\*\*64 - 1; got "):
        check_seed(seed)


@pytest.mark.parametrize("seed", [-1, 2**64, 10**30])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(UsageError, match=rf"got {seed}"):
        check_seed(seed)


@pytest.mark.parametrize("order", [Full(), Window(), Block(), Buffer()], ids=repr)
@pytest.mark.parametrize("seed", [None, -1, 2**64, 0.5])
def test_every_order_refuses_a_wrong_seed(order: Order, seed: int) -> None:
    with pytest.raises(UsageError, match="seed must be an integer"):
        order.bind([10, 10], seed=seed)


def test_seeds_may_be_numpy_integers() -> None:
    assert check_seed(np.uint64(MAX_SEED)) == MAX_SEED
    assert check_seed(np.int32(7)) == 7


@pytest.mark.parametrize("order", [Sequential(), Full(), Window(), Block(), Buffer()], ids=repr)
@pytest.mark.parametrize("epoch", [None, -1, 2**64, 0.5, "1"])
def test_every_order_refuses_a_wrong_epoch(order: Order, epoch: Any) -> None:
    with pytest.raises(UsageError, match="epoch must be an integer from 0"):
        order.bind([10, 10], epoch=epoch)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.int32, np.uint8])
def test_integers_of_numpy_give_the_order_of_those_of_python(kind: Any) -> None:
    """As a loop over `np.arange` has them: fixed widths neither overflow nor change what comes."""
    pairs: list[tuple[Order, Order]] = [
        (Full(), Full()),
        (Window(chunks=64), Window(chunks=kind(64))),
        (Window(chunks=200, num_canonical_nodes=3), Window(chunks=kind(100) * kind(2), num_canonical_nodes=kind(3))),
        (Block(chunks=64), Block(chunks=kind(64))),
        (Buffer(samples=100), Buffer(samples=kind(100))),
    ]
    for plain, other in pairs:
        one, two = plain.bind(MANY_CHUNKS, seed=5, epoch=3), other.bind(MANY_CHUNKS, seed=kind(5), epoch=kind(3))
        assert np.array_equal(one.ids(0, 3000), two.ids(0, 3000))
        assert json.dumps(other.parameters) == json.dumps(plain.parameters)
        assert other == plain
        assert repr(other) == repr(plain)
    assert type(check_epoch(kind(7))) is int

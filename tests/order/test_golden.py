"""Fixed digests: an order that was released never changes under its version, whatever the machine, Python or numpy."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.order.arrays.index_ranges import Runs
from shoal.order.arrays.permutation import permute, permute_each
from shoal.order.partition import Partition
from shoal.order.sampling.copies import Copies, OverCopies, Turns
from shoal.order.sampling.weights_and_classes import ByClass, ByWeight, Sampling, integer_weights
from shoal.order.seeds import draws, key, keys, text_keys
from shoal.orders import Block, Buffer, Full, Order, Sequential, Window

pytestmark = pytest.mark.golden

EQUAL = np.full(500, 200)
UNEVEN = np.array([(i * i * 7919 + 13) % 401 for i in range(700)])
SPARSE = np.where(np.arange(300) % 3 == 0, UNEVEN[:300], 0)
HUGE = np.full(100_000, 100_000)
WIDE = 1 + UNEVEN[np.arange(20_000) % 700] // 4  # slabs of thousands, in which some draws are equal


def digest(arrays: Iterable[NDArray]) -> str:
    words = b"".join(array.astype("<u8").tobytes() for array in arrays)
    return hashlib.blake2b(words, digest_size=8).hexdigest()


def of_order(order: Order, samples: NDArray[np.int64], *, seed: int, epoch: int) -> str:
    """Of all ids of a dataset, of some spans of a huge one."""
    bound = order.bind(samples, seed=seed, epoch=epoch)
    total = bound.num_samples
    if total < 10**7:
        return digest(bound.locate(0, total))
    return digest(bound.ids(start, start + 1000) for start in (0, total // 3, total - 1000))


ORDERS = [
    (Sequential(), "uneven", 0, 0, "78371528a9c3a218"),
    (Full(), "equal", 0, 0, "a41103281b243d0d"),
    (Full(), "equal", 0, 1, "ea44e30f05f71b11"),
    (Full(), "huge", 5, 3, "bf23b5ff7bd040bf"),
    (Window(chunks=2, num_canonical_nodes=1), "equal", 1, 2, "bb192b4014929a72"),
    (Window(chunks=2, num_canonical_nodes=1), "uneven", 1, 2, "59d1edc910c32b03"),
    (Window(chunks=2, num_canonical_nodes=1), "sparse", 1, 2, "0796ca2d465f1511"),
    (Window(chunks=64, num_canonical_nodes=1), "equal", 1, 2, "dc8f916d8915c16f"),
    (Window(chunks=64, num_canonical_nodes=1), "uneven", 1, 2, "766b690b8c6413b8"),
    (Window(chunks=64, num_canonical_nodes=1), "sparse", 1, 2, "4bb2edb4b2da675a"),
    (Window(chunks=64), "equal", 1, 2, "c460fccc53dc0d4a"),
    (Window(chunks=64), "uneven", 1, 2, "20b476373141ac74"),
    (Window(chunks=64), "sparse", 1, 2, "74f677cfd74f0735"),
    (Window(chunks=100, num_canonical_nodes=7), "equal", 1, 2, "d87f8794f6943088"),
    (Window(chunks=100, num_canonical_nodes=7), "uneven", 1, 2, "8153467a2b640d2d"),
    (Window(chunks=100, num_canonical_nodes=7), "sparse", 1, 2, "89f8ff6e2938be52"),
    (Window(chunks=64), "equal", 2, 1, "65ba0c81d7effacd"),
    (Window(chunks=64), "equal", 2**64 - 1, 0, "040a59f861e3c73f"),
    (Window(chunks=600, num_canonical_nodes=5), "uneven", 0, 0, "5be5e529f6bfc64d"),
    (Window(chunks=1024), "huge", 0, 0, "4ff778d7d587fb99"),
    (Window(chunks=16, num_canonical_nodes=1), "huge", 9, 9, "2197676bd43fb211"),
    (Window(chunks=16_384, num_canonical_nodes=1), "wide", 4, 1, "fec7e823ae9d55f4"),
    (Window(chunks=16_384, num_canonical_nodes=2), "wide", 4, 1, "bb3f7bbc94b10523"),
    (Block(chunks=10), "equal", 1, 2, "6327edf8ecacfb1a"),
    (Block(chunks=10), "uneven", 1, 2, "0e4ca5d501c4bde3"),
    (Block(chunks=10), "sparse", 1, 2, "18276d74ce2a71a1"),
    (Buffer(samples=1000), "equal", 1, 2, "7bf37a8c6510bb54"),
    (Buffer(samples=1000), "uneven", 1, 2, "26abad9c7a05c2c6"),
    (Buffer(samples=1000), "sparse", 1, 2, "18ee8c737bb0ea6a"),
]


@pytest.mark.parametrize(("order", "samples", "seed", "epoch", "expected"), ORDERS)
def test_orders(order: Order, samples: str, seed: int, epoch: int, expected: str) -> None:
    data = {"equal": EQUAL, "uneven": UNEVEN, "sparse": SPARSE, "huge": HUGE, "wide": WIDE}[samples]
    assert of_order(order, data, seed=seed, epoch=epoch) == expected


def test_keys() -> None:
    words = [key(seed, epoch, what, 3) for seed in (0, 1, 2**64 - 1) for epoch in (0, 5) for what in ("", "place")]
    assert digest([np.array(words, dtype=np.uint64)]) == "f71eb1474b0f56a2"


def test_draws() -> None:
    assert digest([draws(2**64 - 1, np.arange(1000)), keys(7, np.arange(1000))]) == "d23bbf540ddbe8ee"
    assert digest([text_keys(7, ["", "ä", *(f"{'speaker-' * (i % 5)}{i}" for i in range(1000))])]) == "c7111d408646d6f3"


def test_permutations() -> None:
    sizes = [*range(1, 70), 1000, 2**16, 2**16 + 1, 2**32 - 1, 2**32, 10**12 + 7, 2**63]
    arrays = [permute(np.arange(min(size, 200)), size, key(1, 2, "x")) for size in sizes]
    each = np.arange(1, 500)
    arrays.append(permute_each(each // 2, each, keys(3, each)).astype(np.int64))
    assert digest(arrays) == "6309e65067e8008f"


def test_dealing() -> None:
    bound = Window(chunks=64).bind(UNEVEN, seed=1)
    arrays = []
    for world_size, remainder in ((3, "keep"), (7, "pad"), (16, "drop")):
        part = Partition(64 * world_size, world_size, remainder)
        share = part.share(bound, 2, 0, part.num_batches(bound.num_samples, 1000), 1000)
        arrays += [share.ids, share.positions, share.chunks, share.repeated, share.batch_first]
    assert digest(arrays) == "3e675eae8a899fd7"


def test_choices() -> None:
    assert Runs.of(np.arange(0, 100, 3), 100).digest() == "5e2ca6945f6ed5e9"


def test_samplings() -> None:
    weights = integer_weights(1.0 / (1 + np.arange(int(UNEVEN.sum())) % 1009))
    classes = (np.arange(len(weights)) % 97 % 13).astype(np.uint8)
    rules: list[Sampling] = [
        ByWeight(weights, len(weights)),
        ByWeight(weights, 20_000).without_repeats(),
        ByClass(classes, np.bincount(classes), 300_000),
        ByClass.limited(classes, np.bincount(classes), 2000),
    ]
    arrays = [rule.counts(seed=3, epoch=epoch) for rule in rules for epoch in (0, 1, 2**40)]
    turns = Turns.of(Copies(rules[2].counts(seed=3, epoch=1)), UNEVEN)
    bound = OverCopies(Window(chunks=64).bind(np.diff(turns.starts), seed=3, epoch=1), turns)
    assert digest([*arrays, *bound.locate(0, 300_000)]) == "ffbf2c6101f3f19e"
    digests = ["d20df7c835999c14", "42e42892519271bd", "86316f8a09a8865f", "308089d460693296"]
    assert [rule.digest() for rule in rules] == digests

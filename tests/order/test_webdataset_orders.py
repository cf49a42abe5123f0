"""Orders of WebDataset, against its buffer written out in Python, and by their laws."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.examples import few_examples
from tests.order.datasets import chunk_of, datasets, scan

from shoal.errors import UsageError
from shoal.order.partition import Partition
from shoal.order.registry import named_order
from shoal.orders import WebDatasetDetshuffle, WebDatasetResampled, WebDatasetShuffle
from shoal.peers.webdataset.growing_buffer import GrowingBuffer
from shoal.peers.webdataset.python_integers import PythonIntegers, words_of
from shoal.peers.webdataset.webdataset_orders import mixed_seed


def shuffled(items: Any, bufsize: int, initial: int, seed: Any) -> Iterator[Any]:
    """A buffer that holds what it holds."""
    rng, items = random.Random(seed), iter(items)
    buffer: list[Any] = []

    def picked() -> Any:
        place = rng.randint(0, len(buffer) - 1)
        buffer[place], found = buffer[-1], buffer[place]
        buffer.pop()
        return found

    for item in items:
        buffer.append(item)
        if len(buffer) < bufsize:
            buffer.extend(itertools.islice(items, 1))
        if len(buffer) >= min(initial, bufsize):
            yield picked()
    while buffer:
        yield picked()


def loaded(streams: list[list[list[int]]], size: int) -> list[tuple[int, int]]:
    """Ids and ranks in the order of a run, whose streams are those of the workers of each rank."""
    runs = []
    for rank, workers in enumerate(streams):
        batches = [[stream[i : i + size] for i in range(0, len(stream), size)] for stream in workers]
        turns = itertools.zip_longest(*batches)
        runs.append([(rank, batch) for turn in turns for batch in turn if batch is not None])
    steps = itertools.zip_longest(*runs)
    return [(i, rank) for step in steps for each in step if each for rank, batch in [each] for i in batch]


@few_examples(25)
@given(
    st.integers(0, 400),
    st.integers(0, 300),
    st.integers(0, 300),
    st.integers(0, 2**64) | st.text(max_size=3),
    st.data(),
)
@example(3, 10, 3, 0, None)
@example(9, 3, 100, 0, None)
def test_the_buffer_is_the_one_that_holds(length: int, size: int, initial: int, seed: Any, data: Any) -> None:
    expected = list(shuffled(range(length), size, initial, seed))
    buffer = GrowingBuffer(length, size, initial, words_of(seed))
    start = data.draw(st.integers(0, length)) if data else 0
    stop = data.draw(st.integers(start, length)) if data else length
    assert buffer.arrivals(start, stop).tolist() == expected[start:stop]
    assert buffer.arrivals(0, length).tolist() == expected
    assert buffer.steps(np.array(expected, dtype=np.int64)).tolist() == list(range(length))
    endless = GrowingBuffer(None, size, initial, words_of(seed))
    known = max(0, (length - size) // 2)  # of these no later arrival changes any
    assert endless.arrivals(0, known).tolist() == expected[:known]


@pytest.mark.parametrize(("length", "size"), [(150_000, 900), (150_000, 20_000), (40_000, 33_000)])
def test_the_buffer_goes_on_from_tile_to_tile_and_seeks(length: int, size: int) -> None:
    expected = np.array(list(shuffled(range(length), size, 100, 5)))
    buffer = GrowingBuffer(length, size, 100, words_of(5))
    for start, stop in [(70_000, 140_000), (30_000, 70_000), (0, 20), (16_300, 16_500), (0, length), (39_990, 40_000)]:
        begin, end = min(start, length), min(stop, length)
        assert np.array_equal(buffer.arrivals(begin, end), expected[begin:end])
    some = np.random.default_rng(0).permutation(length)[:500]
    assert np.array_equal(expected[buffer.steps(some)], some)


@few_examples(25)
@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(-1, 1), st.integers(0, 200)), max_size=6), st.integers())
@example([(2**31, 0, 50), (1, 0, 40), (64, -1, 64), (60, 1, 200)], 0)
def test_integers_are_python_s(parts: list[tuple[int, int, int]], seed: int) -> None:
    rng, integers = random.Random(seed), PythonIntegers(words_of(seed))
    for bound, step, count in parts:
        count = min(count, bound) if step < 0 else count  # noqa: PLW2901
        expected = [rng.randrange(bound + step * i) for i in range(count)]
        found = integers.ramp(count, bound, step) if step else integers.equal(count, bound)
        assert found.tolist() == expected


@st.composite
def runs(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments that all orders have."""
    return {
        "bufsize": draw(st.integers(0, 200)),
        "initial": draw(st.integers(0, 120)),
        "shardshuffle": draw(st.integers(0, 20)),
        "shard_initial": draw(st.integers(0, 20)),
        "batch_size": draw(st.integers(1, 20)),
        "world_size": draw(st.integers(1, 4)),
        "num_workers": draw(st.integers(0, 3)),
        "persistent_workers": draw(st.booleans()),
        "shard_seed": draw(st.none() | st.integers(0, 9)),
        "sample_seed": draw(st.none() | st.integers(0, 9)),
        "detshuffle": draw(st.booleans()),
    }


@given(datasets(max_samples=600, max_chunks=30), runs(), st.booleans(), st.booleans(), st.none() | st.text(max_size=3))
@few_examples(25)
def test_shuffles_are_those_of_the_pipeline(
    samples: NDArray[np.int64], run: dict[str, Any], counts: bool, before: bool, list_seed: str | None
) -> None:
    order = (WebDatasetDetshuffle if counts else WebDatasetShuffle)(
        **run, shuffled_before_split=before, list_seed=list_seed
    )
    epoch = 0 if run["num_workers"] and not run["persistent_workers"] else 3
    shard_seed = 7 if run["shard_seed"] is None else run["shard_seed"]
    sample_seed = 7 if run["sample_seed"] is None else run["sample_seed"]
    shard_seed, sample_seed = shard_seed + epoch * run["detshuffle"], sample_seed + epoch * counts
    shards = list(range(len(samples)))
    if list_seed is not None:
        random.Random(list_seed).shuffle(shards)

    def through(listed: list[int]) -> list[int]:
        return list(shuffled(listed, run["shardshuffle"], run["shard_initial"], shard_seed))

    shards = through(shards) if before else shards
    first = np.concatenate([[0], np.cumsum(samples)]).tolist()
    streams: list[list[list[int]]] = []
    for rank in range(run["world_size"]):
        streams.append([])
        for worker in range(max(1, run["num_workers"])):
            mine = shards[rank :: run["world_size"]][worker :: max(1, run["num_workers"])]
            read = [i for shard in (mine if before else through(mine)) for i in range(first[shard], first[shard + 1])]
            streams[-1].append(list(shuffled(read, run["bufsize"], run["initial"], sample_seed)))
    expected = loaded(streams, run["batch_size"])
    bound: Any = order.bind(samples, seed=7, epoch=3)
    positions = np.arange(len(expected))
    assert (
        list(zip(scan(bound).tolist(), bound.axis(positions, positions, positions).tolist(), strict=True)) == expected
    )


@given(datasets(max_samples=300, max_chunks=12), runs(), st.booleans(), st.none() | st.integers(1, 150))
@few_examples(25)
def test_resampled_is_that_of_the_pipeline(
    samples: NDArray[np.int64], run: dict[str, Any], split: bool, count: int | None
) -> None:
    order = WebDatasetResampled(**run, split=split, samples_per_worker=count)
    workers, first = max(1, run["num_workers"]), np.concatenate([[0], np.cumsum(samples)]).tolist()
    epoch = 0 if run["num_workers"] and not run["persistent_workers"] else 3
    sample_seed = (7 if run["sample_seed"] is None else run["sample_seed"]) + epoch * run["detshuffle"]
    shard_seed = 7 if run["shard_seed"] is None else run["shard_seed"]
    streams: list[list[list[int]]] = []
    for rank in range(run["world_size"]):
        streams.append([])
        for worker in range(workers):
            rng = random.Random(mixed_seed(rank * 1000 + worker, epoch, 7))
            drawn: Any = (rng.randint(0, len(samples) - 1) for _ in itertools.count())
            if split:
                drawn = itertools.islice(itertools.islice(drawn, rank, None, run["world_size"]), worker, None, workers)
            shards = shuffled(drawn, run["shardshuffle"], run["shard_initial"], shard_seed)
            read = (i for shard in shards for i in range(first[shard], first[shard + 1]))
            emitted = shuffled(read, run["bufsize"], run["initial"], sample_seed)
            each = max(1, first[-1] // (run["world_size"] * workers)) if count is None else count
            streams[-1].append(list(itertools.islice(emitted, each)))
    expected = loaded(streams, run["batch_size"])
    bound = order.bind(samples, seed=7, epoch=3)
    ids, positions = scan(bound), np.arange(len(expected))
    assert bound.num_samples == order.num_positions(samples)
    assert list(zip(ids.tolist(), bound.axis(positions, positions, positions).tolist(), strict=True)) == expected
    found = {sample: position for position, sample in reversed(list(enumerate(ids.tolist())))}
    assert bound.positions(np.arange(first[-1])).tolist() == [found.get(i, -1) for i in range(first[-1])]
    start, sample = len(ids) // 2, int(ids[0])
    again = np.flatnonzero(ids[start:] == sample)
    assert bound.first_between(sample, start, len(ids)) == (start + again[0] if len(again) else -1)


@few_examples(25)
@given(datasets(max_samples=3000, max_chunks=40), runs(), st.booleans(), st.data())
def test_the_laws_of_orders(samples: NDArray[np.int64], run: dict[str, Any], counts: bool, data: st.DataObject) -> None:
    """Every sample once, a seek equals a scan, chunks are those of the ids, and positions invert ids."""
    order = (WebDatasetDetshuffle if counts else WebDatasetShuffle)(**run)
    bound = order.bind(samples, seed=1, epoch=1)
    ids = scan(bound)
    assert np.array_equal(np.sort(ids), np.arange(samples.sum()))
    start = data.draw(st.integers(0, len(ids)))
    stop = data.draw(st.integers(start, len(ids)))
    again = order.bind(samples, seed=1, epoch=1)
    found, chunks = again.locate(start, stop)
    assert np.array_equal(found, ids[start:stop])
    assert np.array_equal(chunks, chunk_of(samples, found))
    assert np.array_equal(again.positions(ids), np.arange(len(ids)))


@few_examples(25)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 3))
def test_global_batches_are_the_same_at_any_world_size(world_size: int, batch_size: int, other: int) -> None:
    """And at the original one each rank has its own samples."""
    samples = np.full(12, 15)
    order = WebDatasetShuffle(bufsize=30, batch_size=batch_size, world_size=world_size)
    bound: Any = order.bind(samples)
    size = batch_size * world_size * other
    batches = [Counter(batch.tolist()) for batch in np.split(scan(bound), range(size, 180, size))]
    partition = Partition(size, other)
    for number, batch in enumerate(batches):
        shares = [partition.share(bound, rank, number, number + 1) for rank in range(other)]
        assert sum((Counter(share.ids[~share.repeated].tolist()) for share in shares), Counter()) == batch


def test_seeds_are_mixed_as_python_hashes_integers() -> None:
    for words in [(1000, 0, 7), (3, 2, 2**61 - 1), (0, 1, 2**64 - 1), (7001, 5, 2**61)]:
        seed = 0
        for word in words:
            seed = (seed * 31 + hash(word)) & 0x7FFFFFFF
        assert mixed_seed(*words) == seed


def test_without_samples_there_is_nothing_to_draw() -> None:
    order = WebDatasetResampled(samples_per_worker=5)
    assert order.bind([0, 0]).num_samples == order.num_positions(np.array([0, 0])) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bufsize": -1}, "bufsize must be at least 0 and at most 4294967295; got -1"),
        ({"world_size": 0}, "world_size must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1; got 0"),
        ({"sample_seed": 1.5}, "sample_seed must be an integer, a text or None; got 1.5"),
        ({"detshuffle": True, "shard_seed": "17"}, "detshuffle adds the epoch to its seed; shard_seed is a text"),
    ],
)
def test_pipelines_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        WebDatasetShuffle(**arguments)


# Of ids, and the rank of each, that webdataset 1.0.2 gave.
DIGESTS: list[tuple[str, dict[str, Any], int, int, int, str]] = [
    ("wds-shuffle", {}, 50, 0, 0, "e522a57cba9bb290"),
    ("wds-shuffle", {"bufsize": 20, "initial": 5, "shardshuffle": 4}, 60, 1, 2, "7f249f52d6b53ab3"),
    (
        "wds-shuffle",
        {
            "bufsize": 33,
            "world_size": 3,
            "num_workers": 2,
            "batch_size": 4,
            "detshuffle": True,
            "persistent_workers": True,
        },
        70,
        5,
        3,
        "f8fdba8b3592fc36",
    ),
    (
        "wds-shuffle",
        {"bufsize": 0, "list_seed": "a text", "shuffled_before_split": True, "world_size": 2},
        40,
        7,
        0,
        "030eca00b4f934b9",
    ),
    ("wds-detshuffle", {"bufsize": 100}, 80, 0, 1, "29742851744660be"),
    (
        "wds-detshuffle",
        {"bufsize": 17, "world_size": 2, "num_workers": 3, "batch_size": 5},
        90,
        1099511627776,
        2,
        "2231d9c82ca352cb",
    ),
    (
        "wds-detshuffle",
        {"bufsize": 64, "num_workers": 3, "batch_size": 5, "persistent_workers": True, "shard_seed": 3},
        90,
        9,
        2,
        "4eeb36767963b2b9",
    ),
    ("wds-resampled", {"samples_per_worker": 300}, 60, 0, 0, "a3c45ed2e256e446"),
    (
        "wds-resampled",
        {
            "samples_per_worker": 200,
            "bufsize": 50,
            "world_size": 2,
            "num_workers": 2,
            "persistent_workers": True,
            "batch_size": 10,
            "detshuffle": True,
        },
        60,
        11,
        3,
        "1a5bac8896949ae4",
    ),
    (
        "wds-resampled",
        {"samples_per_worker": 90, "split": True, "shardshuffle": 8, "world_size": 3},
        30,
        4611686018427387904,
        1,
        "bf1423e50befc287",
    ),
]


@pytest.mark.golden
@pytest.mark.parametrize(("name", "arguments", "shards", "seed", "epoch", "expected"), DIGESTS)
def test_ids_that_webdataset_gave(
    name: str, arguments: dict[str, Any], shards: int, seed: int, epoch: int, expected: str
) -> None:
    samples = np.array([number * 7 % 11 for number in range(shards)])
    bound: Any = named_order(name, arguments).bind(samples, seed=seed, epoch=epoch)
    positions = np.arange(bound.num_samples)
    told = np.concatenate([scan(bound), bound.axis(positions, positions, positions).astype(np.int64)])
    assert hashlib.blake2b(told.astype("<u8").tobytes(), digest_size=8).hexdigest() == expected

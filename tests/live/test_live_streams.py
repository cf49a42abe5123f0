"""Live streams of iterables and functions: every sample once, exact resumes, and losses that are counted."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import pickle
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.errors import StateError, UsageError
from shoal.live.live_dataset import LiveDataset

TOTAL = 120


class Counted:
    """A source that counts up to `TOTAL`, with a state of its own."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.next < TOTAL:
            self.next += 1
            yield sample(self.next - 1)

    def __call__(self) -> dict[str, Any]:
        if self.next == TOTAL:
            raise StopIteration
        self.next += 1
        return sample(self.next - 1)

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


def sample(number: int) -> dict[str, Any]:
    return {"id": number, "data": bytes([number % 251]) * (number % 17), "row": np.arange(number % 3)}


def numbers() -> Iterator[dict[str, Any]]:
    return map(sample, range(TOTAL))


SOURCES: dict[str, Callable[[], LiveDataset]] = {
    "sequence": lambda: shoal.from_iterable([sample(number) for number in range(TOTAL)]),
    "replayed": lambda: shoal.from_iterable(numbers, replay=True),
    "own state": lambda: shoal.from_iterable(Counted()),
    "function": lambda: shoal.from_callable(Counted()),
}


def ids_of(ds: LiveDataset, count: int | None = None) -> list[int]:
    found: list[int] = []
    for each in itertools.islice(ds, count):
        found += np.atleast_1d(each["id"]).tolist()
    return found


@settings(max_examples=40, deadline=None)
@given(
    source=st.sampled_from(list(SOURCES)),
    buffer=st.none() | st.integers(1, 40) | st.sampled_from(["100B", "1KiB"]),
    size=st.none() | st.integers(1, 9),
    filtered=st.booleans(),
    legs=st.lists(st.integers(0, 8), max_size=4),
    contents=st.booleans(),
)
def test_a_chain_of_resumes_is_one_run(
    source: str, buffer: int | str | None, size: int | None, filtered: bool, legs: list[int], contents: bool
) -> None:
    contents = contents or source in ("own state", "function")

    def made() -> LiveDataset:
        ds = SOURCES[source]()
        ds = ds if buffer is None else ds.shuffle(seed=4, buffer=buffer)
        ds = ds.map(lambda sample: {**sample, "id": sample["id"] * 2})
        ds = ds.filter(lambda sample: sample["id"] % 3) if filtered else ds
        return ds if size is None else ds.batch(size)

    whole = ids_of(made())
    assert sorted(whole) == [2 * number for number in range(TOTAL) if not filtered or 2 * number % 3]
    got: list[int] = []
    state: dict[str, Any] | None = None
    for leg in [*legs, None]:
        ds = made()
        if state is not None:
            ds.load_state_dict(state)
            assert ds.stats()["num_lost"] == 0
        got += ids_of(ds, leg)
        state = json.loads(json.dumps(ds.state_dict(contents=contents)))
    assert got == whole


@pytest.mark.parametrize("source", ["own state", "function"])
def test_without_contents_at_most_the_buffer_is_lost_and_counted(source: str) -> None:
    ds = SOURCES[source]().shuffle(seed=1, buffer=30).batch(8)
    got = ids_of(ds, 3)
    again = SOURCES[source]().shuffle(seed=1, buffer=30).batch(8)
    again.load_state_dict(ds.state_dict())
    got += ids_of(again)
    lost = again.stats()["num_lost"]
    assert lost == TOTAL - len(got) == 29
    assert len(set(got)) == len(got)


def test_a_state_is_saved_in_the_midst_of_a_batch() -> None:
    """As a signal handler does while a function of the stream runs, and while `next` waits."""
    states: list[dict[str, Any]] = []

    def made(seen: list[int]) -> LiveDataset:
        def note(one: dict[str, Any]) -> dict[str, Any]:
            seen.append(one["id"])
            if len(seen) == 13:
                states.append(ds.state_dict())
            return one

        ds = SOURCES["sequence"]().shuffle(seed=2, buffer=10).map(note).batch(8)
        return ds

    whole = ids_of(made([]))
    ds = made([-1] * 100)
    ds.load_state_dict(states[0])
    assert ids_of(ds) == whole[8:]  # the fifth sample of the second batch was under way


def test_the_samples_of_a_queue_end_with_a_sentinel_or_an_exception() -> None:
    q: queue.Queue[Any] = queue.Queue()
    for number in [*range(5), None, 6]:
        q.put(number)
    assert list(shoal.from_callable(q.get, sentinel=None)) == [0, 1, 2, 3, 4]
    assert q.get() == 6  # the function was not called again
    one_to_three = iter([1, 2, 3])
    assert list(shoal.from_callable(lambda: next(one_to_three))) == [1, 2, 3]


def test_the_buffer_is_emptied_after_the_end_without_calling_again() -> None:
    q: queue.Queue[Any] = queue.Queue()
    for number in [*range(5), None]:
        q.put(number)
    assert sorted(shoal.from_callable(q.get, sentinel=None).shuffle(seed=0, buffer=100)) == [0, 1, 2, 3, 4]


def test_a_queue_that_is_empty_is_waited_for() -> None:
    q: queue.Queue[int] = queue.Queue()
    done = threading.Event()

    def fill() -> None:
        for number in range(40):
            q.put(number)
        done.set()

    ds = shoal.from_callable(q.get_nowait, poll_seconds=0.001, stop=done.is_set).batch(7)
    iterator = iter(ds)
    threading.Timer(0.05, fill).start()
    assert np.concatenate(list(iterator)).tolist() == list(range(40))
    assert ds.stats()["num_waits"] > 0
    assert ds.stats()["wait_seconds"] > 0


def test_it_gives_up_after_some_time_and_looks_again_in_the_next_loop() -> None:
    q: queue.Queue[int] = queue.Queue()
    ds = shoal.from_callable(q.get_nowait, poll_seconds=0.001, idle_seconds=0.01)
    assert list(ds) == []
    q.put(3)
    assert list(ds) == [3]


def test_ranks_share_a_source_or_have_their_own() -> None:
    def ranks(shared: bool) -> list[LiveDataset]:
        one = shoal.from_iterable(range(100), shared=shared).shuffle(seed=0, buffer=20)
        return [one.partition(rank=rank, world_size=3) for rank in range(3)]

    parts = [list(ds) for ds in ranks(shared=True)]
    assert [sorted(part) for part in parts] == [list(range(rank, 100, 3)) for rank in range(3)]
    own = [list(ds) for ds in ranks(shared=False)]
    assert all(sorted(part) == list(range(100)) for part in own)
    assert own[0] != own[1] != own[2]
    with pytest.raises(UsageError, match=r"there are 3 ranks(?s:.)*shared=True"):
        next(iter(shoal.from_iterable(range(9)).partition(rank=0, world_size=3)))


def test_a_shared_iterable_resumes_on_each_rank_and_is_not_elastic() -> None:
    def part(rank: int, world_size: int = 2) -> LiveDataset:
        ds = shoal.from_iterable(numbers, replay=True, shared=True).shuffle(seed=0, buffer=9).batch(4)
        return ds.partition(rank=rank, world_size=world_size)

    whole = [ids_of(part(rank)) for rank in range(2)]
    runs = [part(rank) for rank in range(2)]
    first = [ids_of(ds, 3) for ds in runs]
    states = [ds.state_dict() for ds in runs]
    for rank in range(2):
        again = part(rank)
        again.load_state_dict(states if rank else states[0])
        assert first[rank] + ids_of(again) == whole[rank]
    with pytest.raises(StateError, match=r"rank 0 of 2, but this is rank 1 of 2(?s:.)*list"):
        part(1).load_state_dict(states[0])
    with pytest.raises(StateError, match=r"on 2 ranks, but this run has 3(?s:.)*shoal.follow"):
        part(0, 3).load_state_dict(states)


def test_a_source_that_cannot_say_how_it_goes_on_is_refused() -> None:
    ds = shoal.from_iterable(numbers).batch(3)
    next(iter(ds))
    with pytest.raises(StateError, match=r"at sample 3(?s:.)*replay=True"):
        shoal.from_iterable(numbers).batch(3).load_state_dict(ds.state_dict())
    live = shoal.from_iterable(numbers, replay=False).batch(3)
    live.load_state_dict(ds.state_dict())
    assert next(iter(live))["id"].tolist() == [0, 1, 2]


def test_a_shorter_source_is_refused() -> None:
    ds = SOURCES["replayed"]().batch(8)
    assert len(ids_of(ds, 4)) == 32
    with pytest.raises(StateError, match="ends after 20 when it is replayed"):
        shoal.from_iterable(lambda: itertools.islice(numbers(), 20), replay=True).load_state_dict(ds.state_dict())
    ds = SOURCES["sequence"]().batch(8)
    ids_of(ds, 4)
    with pytest.raises(StateError, match="sequence, but this sequence has 20"):
        shoal.from_iterable(list(range(20))).load_state_dict(ds.state_dict())


def test_states_of_others_are_refused() -> None:
    ds = SOURCES["sequence"]().shuffle(seed=1, buffer=10)
    state = ds.state_dict()
    cases: list[tuple[Any, LiveDataset, str]] = [
        (state, SOURCES["sequence"]().shuffle(seed=2, buffer=10), "seed=1; this stream has"),
        (state, SOURCES["sequence"]().shuffle(seed=1, buffer=11), "10 samples"),
        (state, SOURCES["function"]().shuffle(seed=1, buffer=10), "of the kind 'iterable'"),
        (state, SOURCES["own state"]().shuffle(seed=1, buffer=10), "has state_dict"),
        (state | {"steps": 3}, ds, "was changed"),
        ({"epoch": 3}, ds, "not a state of a live stream: it holds 'epoch'"),
        ([], ds, "no states"),
        ([state, state], ds, "had 1 ranks"),
        (3, ds, "is the dict that"),
    ]
    for given_state, other, text in cases:
        with pytest.raises(StateError, match=text):
            other.load_state_dict(given_state)


def test_a_sample_whose_function_fails_is_left_behind_and_counted() -> None:
    def fussy(sample: int) -> int:
        if sample == 2:
            msg = "two is bad"
            raise ValueError(msg)
        return sample

    ds = shoal.from_iterable(range(5)).map(fussy).batch(2)
    iterator = iter(ds)
    assert next(iterator).tolist() == [0, 1]
    with pytest.raises(ValueError, match="two is bad"):
        next(iterator)
    assert [batch.tolist() for batch in iterator] == [[3, 4]]
    assert ds.stats()["num_failed"] == 1
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(iter(shoal.from_iterable(range(5)).map(lambda _: next(iter(())))))


def test_verbs_do_what_those_of_a_dataset_do() -> None:
    records = [{"a.txt": b"x%d" % number, "cls": b"%d" % number, "odd": 1} for number in range(4)]
    ds = shoal.from_iterable(records).decode().rename(text="a.txt;b.txt").columns("text", "cls").batch(3)
    batches = list(ds)
    assert batches[0]["text"] == ["x0", "x1", "x2"]
    assert batches[0]["cls"].tolist() == [0, 1, 2]
    assert list(shoal.from_iterable(records).to_tuple("cls", "odd"))[1] == (b"1", 1)
    assert list(shoal.from_iterable(range(5)).batch(2, remainder="drop").map(sum)) == [1, 5]
    assert list(shoal.from_iterable([{"x": np.int32(1)}]).format("python")) == [{"x": 1}]
    draws = [
        list(
            shoal.from_iterable(range(6)).shuffle(seed=seed, buffer=3).map(lambda n, rng: (n, rng.random()), seed=True)
        )
        for seed in (0, 0, 1)
    ]
    assert draws[0] == draws[1]
    assert dict(draws[0]) != dict(draws[2])


def test_a_dataset_prints_counts_and_travels() -> None:
    ds = shoal.from_iterable(range(9)).shuffle(seed=1, buffer=4).filter(bool).batch(3)
    expected = "an iterable (range), shuffled in a buffer of 4 samples, seed=1, filter, batches of 3"
    assert repr(ds) == f"<shoal.LiveDataset: {expected}>"
    next(iter(ds))
    assert (ds.stats()["num_samples"], ds.stats()["num_batches"]) == (3, 1)
    again = pickle.loads(pickle.dumps(ds))
    assert sorted(np.concatenate(list(again)).tolist()) == list(range(1, 9))
    assert again.stats()["num_filtered"] == 1


ODD: Any = 3  # what callers may pass all the same


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: shoal.from_iterable(ODD), "takes an iterable"),
        (lambda: shoal.from_iterable("data/*.tar"), "shoal.open"),
        (lambda: shoal.from_iterable(iter(range(3)), replay=True), "needs a source that can restart"),
        (lambda: shoal.from_callable(ODD), "takes a function"),
        (lambda: shoal.from_callable(list, poll_seconds=-1), "poll_seconds"),
        (lambda: shoal.from_callable(list, stop=ODD), "stop must be a function"),
        (lambda: shoal.from_iterable([]).shuffle(seed=0, buffer=2).shuffle(seed=0, buffer=2), "already"),
        (lambda: shoal.from_iterable([]).batch(2).shuffle(seed=0, buffer=2), "before batch"),
        (lambda: shoal.from_iterable([]).batch(0), "at least one"),
        (lambda: shoal.from_iterable([]).batch(2, remainder="pad"), "remainder"),
        (lambda: shoal.from_iterable([]).decode("hf"), "features"),
        (lambda: next(iter(shoal.from_iterable(lambda: ODD))), "not an iterable"),
    ],
)
def test_what_cannot_be_done_is_refused(call: Callable[[], object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        call()


def test_workers_of_torch_share_like_ranks() -> None:
    torch = pytest.importorskip("torch")

    class Live(torch.utils.data.IterableDataset):  # type: ignore[misc,name-defined]
        def __iter__(self) -> Iterator[Any]:
            return iter(shoal.from_iterable(range(50), shared=True).shuffle(seed=0, buffer=8).batch(5))

    loader = torch.utils.data.DataLoader(Live(), batch_size=None, num_workers=2)
    assert sorted(np.concatenate(list(loader)).tolist()) == list(range(50))


def test_a_queue_of_another_process_is_a_source() -> None:
    context = multiprocessing.get_context("forkserver")
    q = context.Queue()
    writer = context.Process(target=put_numbers, args=(q, 30))
    writer.start()
    got = sorted(shoal.from_callable(q.get, sentinel=None).shuffle(seed=0, buffer=8))
    writer.join()
    assert got == list(range(30))


def put_numbers(q: Any, count: int) -> None:
    for number in range(count):
        q.put(number)
    q.put(None)


def test_what_only_a_dataset_has_is_refused_in_one_sentence() -> None:
    ds = shoal.from_iterable(range(5))
    only = {name for name in dir(shoal.Dataset) if not name.startswith("_")} - set(dir(LiveDataset))
    assert {"take", "select", "tokenize", "pack_sequences", "with_ids"} <= only
    for name in only:
        with pytest.raises(AttributeError, match=rf"a live stream has no {name}, which"):
            getattr(ds, name)
    with pytest.raises(AttributeError, match=r"islice"):
        ds.take(3)
    with pytest.raises(AttributeError, match=r"no attribute 'maap'"):
        _ = ds.maap
    assert not hasattr(ds, "__len__")


@pytest.mark.parametrize("arguments", [{"seed": 0}, {"seed": 0, "window": "4MiB"}])
def test_a_shuffle_without_a_buffer_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"through a buffer(?s:.)*buffer=10_000"):
        shoal.from_iterable(range(5)).shuffle(**arguments)


def test_live_states_are_loaded_as_a_list_and_not_merged() -> None:
    state = shoal.from_iterable(range(5)).state_dict()
    with pytest.raises(UsageError, match=r"live stream(?s:.)*load_state_dict\(\) the list"):
        shoal.merge_states([state, state])


def test_an_error_of_a_function_names_the_number_of_the_sample() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(shoal.from_iterable(range(3)).map(lambda sample: 1 // (sample - 2)))
    assert "of sample 2 of the source" in caught.value.__notes__[0]

"""Functions that process several samples at a time give what they give one after another, and end with the iterator."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stream.made import at, open_finely, reading_threads, write_tars

import shoal
from shoal.errors import UsageError
from shoal.orders import Window
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

NUM_SAMPLES = 90
KINDS = ["coroutine", "threads", "in turn"]


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    directory = tmp_path_factory.mktemp("concurrent")
    write_tars(directory / "data", [40, 50])
    return open_finely(directory / "data").shuffle(Window(chunks=6, num_canonical_nodes=2), seed=3).with_ids()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Fail if a test leaves a thread: each iterator ends its own."""
    yield
    until = time.monotonic() + 10
    while (left := reading_threads()) and time.monotonic() < until:
        time.sleep(0.01)
    assert left == []


def pause(sample: Any, seed: int) -> float:
    """A delay that puts samples out of order: most are short, and some long."""
    return random.Random(f"{seed} {sample['__id__']}").choice([0, 0, 0, 0.0005, 0.003])


def made(kind: str, function: Callable[..., Any], seed: int) -> Callable[..., Any]:
    """The function as a coroutine function, or one that is slow, or as it is."""
    if kind == "coroutine":

        async def waits(sample: Any, *more: Any) -> Any:
            await asyncio.sleep(pause(sample, seed))
            return function(sample, *more)

        return waits

    def slow(sample: Any, *more: Any) -> Any:
        time.sleep(pause(sample, seed))
        return function(sample, *more)

    return slow if kind == "threads" else function


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "double": 2 * int(sample["cls"])}


def drawn(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {**sample, "drawn": sample.get("drawn", 0) + int(rng.integers(1 << 40))}


def kept(sample: dict[str, Any]) -> bool:
    return int(sample["cls"]) % 7 != 2


def numbered(step: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function that counts its calls: it needs all samples in order."""
    numbers = itertools.count()
    return lambda sample: {**sample, f"call {step}": next(numbers)}


Step = tuple[str, str, int]
STEPS = st.tuples(st.sampled_from(["map", "seeded", "filter"]), st.sampled_from(KINDS), st.integers(1, 9))


def through(ds: Dataset, steps: list[Step], *, concurrently: bool, counts: bool = True) -> Dataset:
    """The dataset with these steps, and perhaps a function that counts its calls after each."""
    for number, (verb, kind, most) in enumerate(steps):
        used = kind if concurrently else "in turn"
        limit: dict[str, Any] = {"max_concurrency": most} if used != "in turn" else {}
        if verb == "map":
            ds = ds.map(made(used, doubled, number), **limit)
        elif verb == "seeded":
            ds = ds.map(made(used, drawn, number), seed=True, **limit)
        else:
            ds = ds.filter(made(used, kept, number), **limit)
        ds = ds.map(numbered(number)) if counts else ds
    return ds


def shown(item: Any) -> Any:
    """A sample or a batch as values that compare."""
    return json.loads(
        json.dumps(item, default=lambda value: value.tolist() if hasattr(value, "tolist") else repr(value))
    )


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(STEPS, min_size=1, max_size=3),
    size=st.sampled_from([None, 1, 7, 32]),
    world_size=st.integers(1, 3),
)
def test_the_samples_are_those_of_one_call_after_another(
    steps: list[Step], size: int | None, world_size: int, tars: Dataset
) -> None:
    counts = size in (None, 32)  # a small batch may repeat an earlier sample, which is processed out of turn

    def run(*, concurrently: bool) -> list[Any]:
        items = []
        for rank in range(world_size):
            part = tars.partition(rank=rank, world_size=world_size)
            ds = through(part, steps, concurrently=concurrently, counts=counts)
            items.append([shown(item) for item in (ds if size is None else ds.batch(size))])
        return items

    assert run(concurrently=True) == run(concurrently=False)
    assert reading_threads() == []


@settings(max_examples=40, deadline=None)
@given(
    before=st.lists(STEPS, min_size=1, max_size=2),
    kinds=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 9)), min_size=2, max_size=2),
    size=st.sampled_from([None, 1, 7]),
    stop=st.integers(0, 60),
)
def test_a_stopped_run_goes_on_with_any_concurrency(
    before: list[Step], kinds: list[tuple[str, int]], size: int | None, stop: int, tars: Dataset
) -> None:
    def made_of(steps: list[Step]) -> Dataset:
        ds = tars.partition(rank=0, world_size=1)
        for number, (verb, kind, most) in enumerate(steps):
            function: Any = drawn if verb == "seeded" else doubled
            seeds: dict[str, Any] = {"seed": True} if verb == "seeded" else {}
            limit: dict[str, Any] = {"max_concurrency": most} if kind != "in turn" else {}
            if verb == "filter":
                ds = ds.filter(made(kind, kept, number), **limit)
            else:
                ds = ds.map(made(kind, function, number), **seeds, **limit)
        return ds if size is None else ds.batch(size)

    after = [(verb, *kinds[number]) for number, (verb, _, _) in enumerate(before)]
    whole = [shown(item) for item in made_of([(verb, "in turn", 1) for verb, _, _ in before])]
    ds = made_of(before)
    with iter(ds) as iterator:
        first = [shown(item) for item in itertools.islice(iterator, stop)]
    then = made_of(after)
    state = json.loads(json.dumps(ds.state_dict()))
    if state["epoch"]:  # the whole epoch was read
        assert first == whole
        return
    then.load_state_dict(state)
    assert first + [shown(item) for item in then] == whole
    del ds, then  # a function that is called for a repeated sample has a loop as long as its dataset
    assert reading_threads() == []


@pytest.mark.parametrize("kind", ["coroutine", "threads"])
@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("most", [1, 2, 16])
def test_an_error_is_raised_at_its_sample(kind: str, size: int | None, most: int, tars: Dataset) -> None:
    ids = tars.ids().tolist()
    bad = {ids[21], ids[22], ids[23]}

    def fails(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["__id__"] in bad:
            raise KeyError(int(sample["__id__"]))
        return sample

    ds = tars.map(made(kind, fails, 1), max_concurrency=most)
    if kind == "threads" and most == 1:
        ds = tars.map(fails)
    ds = ds.map(doubled) if size is None else ds.map(doubled).batch(size)
    received: list[int] = []
    iterator = iter(ds)
    with pytest.raises(KeyError) as caught:
        for item in iterator:
            received += np.atleast_1d(item["__id__"]).tolist()
    assert received == ids[: 21 if size is None else 20]
    assert caught.value.args == (ids[21],)
    (note,) = caught.value.__notes__
    assert note.startswith("shoal: in map(")
    assert f"of the sample with id {ids[21]}, which begins at byte" in note
    assert at(ds) == (0, len(received))
    with pytest.raises(KeyError):
        next(iterator)
    assert reading_threads() == []


def test_an_error_before_and_after_a_coroutine_is_raised_at_its_sample(tars: Dataset) -> None:
    ids = tars.ids().tolist()

    async def waits(sample: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0.001)
        return sample

    def fails(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "x": 1 // (sample["__id__"] != ids[30])}

    for ds in (tars.map(fails).map(waits), tars.map(waits).map(fails), tars.map(waits).map(fails).map(waits)):
        received = []
        with pytest.raises(ZeroDivisionError, match="division") as caught:
            received += [sample["__id__"] for sample in ds]
        assert "__notes__" in vars(caught.value) or caught.value.__notes__
        received = []
        iterator = iter(ds)
        with pytest.raises(ZeroDivisionError):
            for sample in iterator:
                received.append(sample["__id__"])
        assert received == ids[:30]


@pytest.mark.parametrize("kind", ["coroutine", "threads"])
def test_so_many_calls_run_at_a_time_and_no_more(kind: str, tars: Dataset) -> None:
    most, running, highest = 6, 0, 0
    lock, are_all = threading.Lock(), threading.Event()

    def enter() -> None:
        nonlocal running, highest
        with lock:
            running += 1
            highest = max(highest, running)
        if running == most:
            are_all.set()

    def leave() -> None:
        nonlocal running
        with lock:
            running -= 1

    async def waits(sample: Any) -> Any:
        enter()
        while not are_all.is_set():  # noqa: ASYNC110  # fewer at a time would never end
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        leave()
        return sample

    def slow(sample: Any) -> Any:
        enter()
        assert are_all.wait(30)
        leave()
        return sample

    function: Any = waits if kind == "coroutine" else slow
    assert [s["__id__"] for s in tars.map(function, max_concurrency=most)] == tars.ids().tolist()
    assert highest == most


def test_other_calls_go_on_while_the_first_sample_is_slow(tars: Dataset) -> None:
    first = tars.ids().tolist()[0]
    others: list[int] = []

    async def waits(sample: Any) -> Any:
        while sample["__id__"] == first and len(others) < 4:  # noqa: ASYNC110  # more than run at a time
            await asyncio.sleep(0.001)
        others.append(sample["__id__"])
        return sample

    assert [s["__id__"] for s in tars.map(waits, max_concurrency=2)] == tars.ids().tolist()


def test_an_iteration_has_one_event_loop(tars: Dataset) -> None:
    loops = []

    async def notes(sample: Any) -> Any:
        loops.append(asyncio.get_running_loop())
        return sample

    ds = tars.map(notes).map(notes)
    assert len(list(ds)) == NUM_SAMPLES
    assert len(loops) == 2 * NUM_SAMPLES
    assert len(set(map(id, loops))) == 1
    assert loops[0].is_closed()
    loops.clear()
    assert [ds[5]["__id__"], ds[7]["__id__"]] == [5, 7]
    assert len(set(map(id, loops))) == 2  # one for each function, as long as the dataset
    assert not loops[0].is_closed()
    del ds
    assert all(loop.is_closed() for loop in loops)


@pytest.mark.parametrize("ends", ["close", "drop", "stop", "with"])
def test_the_end_of_an_iterator_cancels_its_coroutines(ends: str, tars: Dataset) -> None:
    begun: set[int] = set()
    ended: set[int] = set()
    first = tars.ids().tolist()[0]

    async def hangs(sample: Any) -> Any:
        begun.add(sample["__id__"])
        try:
            await asyncio.sleep(0 if sample["__id__"] == first else 1000)
        finally:
            ended.add(sample["__id__"])
        return sample

    iterator = iter(tars.map(hangs, max_concurrency=5))
    assert next(iterator)["__id__"] == first
    until = time.monotonic() + 10
    while len(begun) < 5 and time.monotonic() < until:
        time.sleep(0.01)
    if ends == "drop":
        del iterator
    elif ends == "with":
        with iterator:
            pass
    else:
        getattr(iterator, ends)()
        assert list(iterator) == []
    until = time.monotonic() + 10
    while (reading_threads() or begun != ended) and time.monotonic() < until:
        time.sleep(0.01)
    assert begun == ended
    assert len(begun) in (5, 6)


def test_ctrl_c_cancels_the_coroutines(tars: Dataset) -> None:
    ended = threading.Event()

    async def hangs(sample: Any) -> Any:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(1000)
        finally:
            ended.set()
        return sample

    for call in (lambda ds: next(iter(ds)), lambda ds: ds[3], lambda ds: next(iter(ds.batch(4)))):
        ended.clear()
        ds = tars.map(hangs, max_concurrency=1)
        with pytest.raises(KeyboardInterrupt):
            call(ds)
        assert ended.wait(10)
        del ds


@pytest.mark.parametrize("kind", ["coroutine", "blocked", "threads"])
def test_a_call_that_does_not_end_does_not_keep_the_iterator_open(kind: str, tars: Dataset) -> None:
    goes_on = threading.Event()

    async def ignores_its_end(sample: Any) -> Any:
        while not goes_on.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        return sample

    async def blocks_the_loop(sample: Any) -> Any:
        goes_on.wait()
        return sample

    def blocks(sample: Any) -> Any:
        goes_on.wait()
        return sample

    function: Any = {"coroutine": ignores_its_end, "blocked": blocks_the_loop, "threads": blocks}[kind]
    iterator = iter(tars.map(function, max_concurrency=3))
    threading.Timer(0.2, iterator.stop).start()
    try:
        assert list(iterator) == []  # while the calls go on
        assert not goes_on.is_set()
        iterator.close()
    finally:
        goes_on.set()


def test_functions_of_sources_run_at_a_time_and_keep_their_places(tars: Dataset) -> None:
    plain = tars.map(doubled)

    def mixed(kind: str) -> list[Any]:
        sources = {
            "a": through(tars, [("map", kind, 5), ("filter", kind, 3)], concurrently=True),
            "b": tars,
            "c": through(plain.filter(kept), [("seeded", kind, 4)], concurrently=True),
        }
        ds = shoal.mix(sources, weights={"a": 2, "b": 1, "c": 1}, epoch_size=150, missing="none").shuffle(seed=1)
        return [shown(batch) for batch in ds.map(made(kind, doubled, 3)).batch(11)]

    with pytest.warns(match="the same data"):
        assert mixed("coroutine") == mixed("threads") == mixed("in turn")


def test_an_error_of_a_source_names_the_source(tars: Dataset) -> None:
    async def fails(sample: Any) -> Any:
        raise KeyError(sample["__id__"])

    ds = shoal.mix({"a": tars.map(fails), "b": tars.map(doubled).take(50)}, weights={"a": 1, "b": 1}, epoch_size=100)
    with pytest.raises(KeyError) as caught:
        list(ds)
    assert any("of the source 'a'" in note for note in caught.value.__notes__)


def test_samples_by_id_batches_and_live_streams_take_coroutine_functions(tars: Dataset) -> None:
    async def doubles(sample: Any) -> Any:
        await asyncio.sleep(0)
        return doubled(sample)

    async def sums(batch: Any) -> int:
        await asyncio.sleep(0)
        return sum(batch["double"].tolist())

    async def is_kept(sample: Any) -> bool:
        await asyncio.sleep(0)
        return kept(sample)

    ds = tars.map(doubles)
    assert ds[4] == tars.map(doubled)[4]
    assert ds.as_map()[4] == tars.map(doubled)[4]
    assert list(ds.batch(8).map(sums)) == list(tars.map(doubled).batch(8).map(lambda b: sum(b["double"].tolist())))
    filled = [shown(batch) for batch in ds.filter(is_kept, refill=True).batch(8)]
    assert filled == [shown(batch) for batch in tars.map(doubled).filter(kept, refill=True).batch(8)]
    rare = [shown(b) for b in tars.filter(lambda s: s["__id__"] == 3).batch(2)]

    async def is_rare(sample: Any) -> bool:
        return bool(sample["__id__"] == 3)

    assert [shown(b) for b in tars.filter(is_rare).batch(2)] == rare  # most batches repeat a sample
    live = shoal.from_iterable([{"cls": n, "__id__": n} for n in range(5)]).map(doubles).filter(is_kept)
    assert [sample["double"] for sample in live] == [0, 2, 6, 8]
    del ds, live


def test_damaged_samples_are_left_out_as_before(tars: Dataset, tmp_path: Path) -> None:
    def fussy(data: bytes) -> bytes:
        if int(data) % 10 == 3:
            raise ValueError("damaged")
        return data

    def run(function: Any) -> tuple[list[int], int]:
        ds = tars.decode({"cls": fussy}).map(function).reading(on_error="skip")
        ids = [int(sample["__id__"]) for sample in ds]
        return ids, ds.stats()["num_skipped"]

    async def same(sample: Any) -> Any:
        await asyncio.sleep(0)
        return sample

    assert run(same) == run(dict)
    assert run(same)[1] == 9


class Fetches:
    """An object that is called like a coroutine function."""

    async def __call__(self, sample: Any, factor: int = 2) -> Any:
        await asyncio.sleep(0)
        return {**sample, "double": factor * int(sample["cls"])}

    async def method(self, sample: Any) -> Any:
        return await self(sample)


async def fetched(factor: int, sample: Any) -> Any:
    return await Fetches()(sample, factor)


@pytest.mark.parametrize("function", [Fetches(), Fetches().method, functools.partial(fetched, 2)])
def test_other_forms_of_coroutine_functions(function: Any, tars: Dataset) -> None:
    assert [s["double"] for s in tars.map(function)] == [s["double"] for s in tars.map(doubled)]


async def generates(sample: Any) -> Any:
    yield sample


def test_wrong_functions_and_numbers_are_refused(tars: Dataset) -> None:
    async def waits(sample: Any) -> Any:
        return sample

    def forgets(sample: Any) -> Any:
        return waits(sample)

    for verb in (tars.map, tars.filter):
        with pytest.raises(UsageError, match="forgets returned a coroutine, which nothing awaits"):
            next(iter(verb(forgets)))
        with pytest.raises(UsageError, match="generates returned an asynchronous generator"):
            next(iter(verb(generates)))
        wrongs: list[Any] = [0, -1, 1.5, "4"]
        for wrong in wrongs:
            with pytest.raises(UsageError, match="max_concurrency"):
                verb(waits, max_concurrency=wrong)
    with pytest.raises(UsageError, match=r"map\(\) processes batches one after another, but max_concurrency=4"):
        tars.batch(4).map(waits, max_concurrency=4)
    with pytest.raises(UsageError, match="a coroutine function"):
        tars.decode({"cls": waits})


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3), StopAsyncIteration()])
def test_errors_that_end_tasks_end_the_iteration(error: BaseException, tars: Dataset) -> None:
    async def raises(sample: Any) -> Any:
        await asyncio.sleep(0)
        raise error

    expected = RuntimeError if isinstance(error, asyncio.CancelledError) else type(error)
    with pytest.raises(expected):
        next(iter(tars.map(raises)))


def test_a_coroutine_cannot_wait_for_its_own_loop(tars: Dataset) -> None:
    datasets: list[Dataset] = []

    async def looks_up(_: Any) -> Any:
        return datasets[0][0]

    datasets.append(tars.map(looks_up))
    with pytest.raises(RuntimeError, match="of its own event loop"):
        datasets[0][3]
    datasets.clear()
    gc.collect()  # the error refers to the dataset, and to itself


def test_the_time_of_calls_counts_as_time_of_stages(tars: Dataset) -> None:
    async def waits(sample: Any) -> Any:
        await asyncio.sleep(0.02)
        return sample

    ds = tars.map(waits, max_concurrency=8)
    assert len(list(ds)) == NUM_SAMPLES
    stats = ds.stats()
    assert stats["bottleneck"] == "stages"
    assert stats["num_samples"] == NUM_SAMPLES
    assert stats["make_seconds"] >= 0.02 * NUM_SAMPLES / 8

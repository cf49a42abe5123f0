"""One run through an epoch: what it yields, how it fails, and that it leaves nothing running."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.stream.made import at, batches_of, check_batch, check_sample, flat, ids_of, reading_threads, repeats_of

import shoal
from shoal.errors import ShardError, UsageError
from shoal.order.partition import Partition
from shoal.orders import Block, Buffer, Full, Sequential, Window
from shoal.reading.beside import partners
from shoal.reading.checks import damaged_samples
from shoal.reading.local.local_readers import LocalReaders
from shoal.reading.resolved_epochs import Pieces
from shoal.reading.schedule import memory_division
from shoal.storage.files.local_store import LocalStore
from shoal.storage.retry import StoppedError
from shoal.stream.dataset import Dataset
from shoal.stream.iterating import batch_maker
from shoal.stream.iterating.batch_maker import BatchMaker, runs_of
from shoal.stream.iterating.batcher import WholeBatches
from shoal.stream.iterating.piece_batches import PieceBatches
from shoal.stream.states.delivery_sums import NOTHING
from shoal.stream.states.iterator_position import Position

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

ORDERS = [Sequential(), Full(), Window(chunks=6, num_canonical_nodes=2), Block(chunks=4), Buffer(samples=30)]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_choices_before_and_after_the_shuffle_agree_with_ids(order: Any, tars: Dataset) -> None:
    stored = tars.skip(20).select(np.arange(20, 197, 3)).take(40)
    expected = np.arange(20, 197, 3)[:40].tolist()
    assert stored.ids().tolist() == expected == ids_of(stored)
    shuffled = stored.shuffle(order, seed=4)
    assert sorted(ids_of(shuffled)) == expected
    whole = shuffled.ids()
    some = shuffled.skip(5).take(20).select([0, 3, 4, 19])
    assert some.ids().tolist() == whole[[5, 8, 9, 24]].tolist() == ids_of(some)
    few = tars.select([3, 150, 196]).shuffle(order, seed=4)  # so few are read one by one
    assert sorted(ids_of(few)) == [3, 150, 196]
    assert ids_of(few.batch(2).map(lambda batch: {name: values[0] for name, values in batch.items()}))


def test_state_counts_what_was_yielded_and_no_more(tars: Dataset) -> None:
    iterator = iter(tars.shuffle(seed=1).batch(10))
    assert at(iterator) == (0, 0)
    for step in range(1, 20):
        next(iterator)
        assert at(iterator) == (0, 10 * step)
    next(iterator)
    assert at(iterator) == (1, 0)
    assert next(iterator, None) is None
    assert next(iterator, None) is None
    assert at(iterator) == (1, 0)


# ---- errors


def failing_at(number: int) -> Any:
    def function(sample: dict[str, Any]) -> dict[str, Any]:
        if check_sample(sample) == number:
            msg = "no such luck"
            raise ValueError(msg)
        return sample

    return function


@pytest.mark.parametrize("batch", [None, 7])
def test_an_error_of_a_function_ends_the_iterator_and_is_not_counted(batch: int | None, tars: Dataset) -> None:
    plain = tars.shuffle("full", seed=1)
    bad = int(plain.ids()[50])
    ds = plain.map(failing_at(bad))
    ds = ds.batch(batch) if batch else ds
    iterator = iter(ds)
    with pytest.raises(ValueError, match="no such luck") as caught:
        list(iterator)
    assert any(f"id {bad}" in note for note in caught.value.__notes__)
    assert at(iterator) == (0, 49 if batch else 50)
    assert not reading_threads()
    with pytest.raises(ValueError, match="no such luck"):
        next(iterator)  # an epoch that failed does not look like one that ended
    assert at(iterator) == (0, 49 if batch else 50)
    assert ds.state_dict()["epoch"] == 0
    rest = plain.batch(3)
    rest.load_state_dict(ds.state_dict())
    assert flat(batches_of(rest)) == plain.ids(start=at(iterator)[1]).tolist()


def test_an_error_of_a_function_of_batches_is_not_counted(tars: Dataset) -> None:
    calls = []

    def function(batch: Any) -> Any:
        calls.append(batch)
        if len(calls) == 3:
            msg = "full memory"
            raise RuntimeError(msg)
        return batch

    ds = tars.shuffle("full").batch(10).map(function)
    with pytest.raises(RuntimeError, match="full memory"):
        list(ds)
    assert ds.state_dict()["position"] == 20
    assert not reading_threads()


@pytest.mark.parametrize("verb", ["map", "filter", "batch"])
def test_stop_iteration_of_a_function_does_not_look_like_the_end(verb: str, tars: Dataset) -> None:
    def function(sample: Any) -> Any:
        return next(iter(()))

    ds = tars.batch(4).map(function) if verb == "batch" else getattr(tars, verb)(function)
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(ds)
    assert ds.state_dict()["epoch"] == 0


def test_closing_ends_and_is_not_the_end_of_the_epoch(tars: Dataset) -> None:
    ds = tars.shuffle(seed=1).batch(10)
    iterator = iter(ds)
    next(iterator)
    iterator.close()
    iterator.close()
    assert next(iterator, None) is None
    assert ds.state_dict() == iterator.state_dict()
    assert at(iterator) == (0, 10)
    assert batches_of(ds)[0] == ds.ids(stop=10).tolist()


@pytest.mark.parametrize("place", ["dataset_stream.IteratorSpec", "iterating.iterator.runs_of"])
@pytest.mark.parametrize("is_stopped", [False, True])
def test_an_error_of_a_new_beginning_is_raised_again(
    is_stopped: bool, place: str, tars: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But the end of a stopped iterator is no error."""

    def fails(*_: Any, **__: Any) -> Any:
        if is_stopped:
            iterator.stop()
        msg = "no such luck"
        raise ValueError(msg)

    ds = tars.shuffle(seed=1).batch(10)
    iterator = iter(ds)
    ds.set_epoch(3)
    monkeypatch.setattr(f"shoal.stream.{place}", fails)
    for _ in range(3):
        with pytest.raises(StopIteration if is_stopped else ValueError):
            next(iterator)
    assert at(iterator)[1] == 0
    assert not reading_threads()


@pytest.mark.parametrize("place", ["reading.part_readers.budget_of", "stream.iterating.piece_batches.Reading"])
def test_what_was_opened_is_closed_if_the_rest_fails(
    place: str, tars: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second source of a mixture, and behind the readers of all."""
    calls: list[Any] = []

    def fails(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if place.endswith("Reading") or len(calls) == 2:
            msg = "no such luck"
            raise MemoryError(msg)
        return memory_division.budget_of(*arguments, **options)

    opened: list[int] = []
    closed: list[int] = []
    monkeypatch.setattr(LocalReaders, "__init__", counted_in(opened, LocalReaders.__init__))
    monkeypatch.setattr(LocalReaders, "close", counted_in(closed, LocalReaders.close))
    monkeypatch.setattr(f"shoal.{place}", fails)
    ds = tars.shuffle("block", seed=1)
    with pytest.raises(MemoryError, match="no such luck"):
        next(iter(shoal.mix({"a": ds, "b": ds}, seed=1)))
    assert opened
    assert opened == closed


def test_a_piece_that_is_made_during_a_stop_is_closed(tars: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tars.shuffle("block", seed=1).batch(7).stream.iterator_spec()
    maker = BatchMaker(spec.position())

    class StoppedMeanwhile(PieceBatches):
        def __init__(self, *arguments: Any) -> None:
            maker.close()
            super().__init__(*arguments)

    monkeypatch.setattr(batch_maker, "PieceBatches", StoppedMeanwhile)
    closed: list[int] = []
    monkeypatch.setattr(LocalReaders, "close", counted_in(closed, LocalReaders.close))
    with pytest.raises(StoppedError):
        next(runs_of(maker, spec))
    assert closed


def test_the_steps_of_a_piece_do_not_count_as_done_after_a_stop(tars: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tars.shuffle("block", seed=1).batch(7).stream.iterator_spec()
    maker = BatchMaker(spec.position())
    pieces = Pieces(replace(spec.work.resolved.whole(spec.work.opened, 0), is_last=False))
    monkeypatch.setattr(batch_maker, "_pieces", lambda *_: pieces)
    batches = itertools.chain.from_iterable(runs_of(maker, spec))
    next(batches)
    maker.close()
    assert next(batches, None) is None
    assert maker.position.num_yielded == 1


def counted_in(calls: list[int], method: Any) -> Any:
    """The method, which notes whose it is."""

    def noted(self: Any, *arguments: Any) -> Any:
        calls.append(id(self))
        return method(self, *arguments)

    return noted


def test_batches_of_workers_are_handed_on_in_their_order() -> None:
    received = WholeBatches(Position(0, 0, Partition(1, 1), 9), str.upper)
    for batch in "abc":
        received.add(batch, NOTHING)
    assert [received.batch() for _ in range(3)] == ["A", "B", "C"]
    assert not received.is_full


# ---- filters


def filtered(keep: Any) -> Any:
    return lambda sample: check_sample(sample) in keep


def test_filter_keeps_batches_cut_as_they_were(tars: Dataset) -> None:
    keep = set(range(0, 197, 3))
    ds = tars.shuffle("full", seed=6)
    order = ds.ids().tolist()
    got = batches_of(ds.filter(filtered(keep)).batch(10))
    assert got == [[i for i in order[at : at + 10] if i in keep] for at in range(0, 197, 10)]
    single = tars.shuffle("full", seed=6).filter(filtered(keep))
    assert ids_of(single) == [i for i in order if i in keep]
    assert single.stats()["num_filtered"] == 197 - len(keep)
    assert single.stats()["num_samples"] == len(keep)
    with pytest.raises(TypeError, match="filter"):
        len(single)


def test_a_rank_left_with_nothing_gets_a_marked_repeat_and_resumes_are_exact(tars: Dataset) -> None:
    keep = {5, 77, 190}
    described = tars.shuffle("full", seed=6).filter(filtered(keep))
    order = described.ids().tolist()
    delivered: list[int] = []
    state = described.state_dict()
    for world_size, steps in ((3, 4), (1, 2), (5, 3), (2, 100)):
        ranks = [described.partition(rank=rank, world_size=world_size).batch(4) for rank in range(world_size)]
        for ds in ranks:
            ds.load_state_dict(state)
        iterators = [iter(ds) for ds in ranks]
        for step in range(steps):
            batches = [next(iterator, None) for iterator in iterators]
            if batches[0] is None:
                assert batches == [None] * world_size
                break
            for batch in batches:
                assert batch is not None
                pairs = list(zip(check_batch(batch), repeats_of(batch), strict=True))
                assert pairs
                assert {number for number, _ in pairs} <= keep
                assert all(again for _, again in pairs) or not any(again for _, again in pairs)
                if pairs[0][1]:
                    position = state["position"] + 4 * world_size * step
                    before = [order[(position - back) % 197] for back in range(1, 198)]
                    assert pairs == [(next(number for number in before if number in keep), True)]
                delivered += [number for number, again in pairs if not again]
        assert all(ds.state_dict() == ranks[0].state_dict() for ds in ranks)
        state = ranks[0].state_dict()
        for iterator in iterators:
            iterator.close()
    assert sorted(delivered) == sorted(keep)
    assert state["epoch"] == 1


def test_a_filter_that_keeps_nothing_is_an_error(tars: Dataset) -> None:
    with pytest.raises(UsageError, match=r"filter\(\) keeps none of the 197 samples"):
        next(iter(tars.shuffle("full").filter(lambda sample: False).batch(8)))
    assert not reading_threads()


def test_a_filter_that_keeps_one_sample_looks_at_each_position_once(
    tars: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []
    read = damaged_samples.read_sample

    def counted(opened: Any, sample_id: int, *others: Any, **more: Any) -> Any:
        looked_at.append(sample_id)
        return read(opened, sample_id, *others, **more)

    monkeypatch.setattr(partners, "read_sample", counted)
    ds = tars.shuffle("full", seed=6)
    order = ds.ids().tolist()
    for kept in (order[0], order[100], order[196]):
        looked_at.clear()
        got = batches_of(ds.filter(filtered({kept})).batch(1))
        assert got == [[kept]] * 197
        assert len(looked_at) < 3 * 197


def test_an_epoch_without_a_batch_is_logged(lines: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    ds = lines.batch(1, remainder="drop")
    assert list(ds.partition(rank=0, world_size=100)) == []
    assert "remainder='drop' leaves no batch: an epoch has 83 samples, but a global batch of 100 ranks has 100" in (
        caplog.text
    )
    caplog.clear()
    assert len(list(ds.partition(rank=0, world_size=83))) == 1
    assert not caplog.text


def test_an_interrupt_is_not_the_end_of_the_epoch(tars: Dataset) -> None:
    def function(sample: dict[str, Any]) -> dict[str, Any]:
        if not interrupted and len(got) == 40:
            interrupted.append(True)
            raise KeyboardInterrupt
        return sample

    interrupted: list[bool] = []
    got: list[int] = []
    ds = tars.shuffle(seed=1).map(function)
    iterator = iter(ds)
    with pytest.raises(KeyboardInterrupt):
        for sample in iterator:
            got.append(check_sample(sample))  # noqa: PERF401  # what came before is looked at
    for _ in range(2):
        with pytest.raises((KeyboardInterrupt, StopIteration)):
            next(iterator)
    assert at(ds) == (0, 40)
    assert ids_of(ds) == ds.ids().tolist()
    assert at(ds) == (1, 0)


# ---- nothing is left running


@pytest.mark.usefixtures("readers")
def test_no_thread_is_left(tars: Dataset) -> None:
    ds = tars.shuffle(seed=1).batch(8)
    iterator = iter(ds)
    next(iterator)
    iterator.close()
    assert not reading_threads()

    iterator = iter(ds)
    next(iterator)
    del iterator
    assert not reading_threads()

    for _ in ds:
        break
    assert not reading_threads()

    with iter(ds) as iterator:
        next(iterator)
    assert not reading_threads()

    def consume() -> None:
        for _ in ds:
            msg = "the trainer fails"
            raise KeyError(msg)

    with pytest.raises(KeyError):
        consume()
    assert not reading_threads()
    list(ds)
    assert not reading_threads()


def test_threads_read_where_the_store_does_not_read_ahead(tars: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tars.stream.opened.store, "reads_ahead", False)
    iterator = iter(tars.shuffle(seed=1))
    next(iterator)
    assert reading_threads()
    iterator.close()
    assert not reading_threads()


def test_an_iterator_in_a_cycle_may_be_collected_by_a_thread_of_its_own(
    large: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large.stream.opened.store, "reads_ahead", False)
    fill, collect, collected = LocalStore.fill, threading.Event(), threading.Event()

    def collecting(self: LocalStore, path: str, first_byte: int, buffer: memoryview) -> None:
        if first_byte and collect.wait(10):  # not the first chunk, which the consumer waits for
            gc.collect()
            collected.set()
        fill(self, path, first_byte, buffer)

    monkeypatch.setattr(LocalStore, "fill", collecting)
    gc.disable()
    try:
        holder: list[Any] = [iter(large)]
        next(holder[0])
        holder.append(holder)
        del holder
        collect.set()
        assert collected.wait(10)
    finally:
        gc.enable()
    gc.collect()
    deadline = time.monotonic() + 10
    while reading_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not reading_threads()


def test_close_waits_for_the_reads_in_progress_and_not_for_all(large: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large.stream.opened.store, "reads_ahead", False)
    monkeypatch.setattr(memory_division, "ahead_limit_bytes", lambda *_, **__: 1 << 20)
    read, now_slow, slow_one = LocalStore.read_range, threading.Event(), threading.Event()

    def slow(self: LocalStore, path: str, first_byte: int, end_byte: int) -> bytes:
        if end_byte and now_slow.is_set():
            slow_one.set()
            time.sleep(0.1)
        return read(self, path, first_byte, end_byte)

    monkeypatch.setattr(LocalStore, "read_range", slow)
    iterator = iter(large.shuffle("full", seed=1))
    next(iterator)
    time.sleep(0.2)  # what was asked for is there
    now_slow.set()
    while not slow_one.is_set():  # now a group of a dozen reads or more is under way, and none of it is waited for
        next(iterator)
        time.sleep(0.005)
    started = time.monotonic()
    iterator.close()
    assert time.monotonic() - started < 0.8
    assert not reading_threads()


# Each child of this script is a process of its own that ends in the middle of an epoch; forked before anything was
# read, so that only the ends take time.
SCRIPT = """
    import gc, os, sys, time
    sys.path[:0] = {path!r}
    import shoal
    from shoal.storage.files.local_store import LocalStore
    delay, late, read = 0, [], LocalStore.read_range
    def slow(self, *args):
        if delay:
            late.append(args)
        time.sleep(delay)
        return read(self, *args)
    LocalStore.read_range = slow
    ds = shoal.open({data!r}).shuffle("full", seed=1)
    for number in range({num_children}):
        parent = os.fork()
        if not parent:
            break
        _, status = os.waitpid(parent, 0)
        print(os.waitstatus_to_exitcode(status), time.time(), flush=True)
    else:
        raise SystemExit(0)
    ds.stream.opened.store.reads_ahead = number % 3 == 0
    iterator = iter(ds)
    next(iterator)
    time.sleep({delay})  # what was asked for first is there; what is asked for from now on is late
    delay = {delay}
    for step in range(200 if {delay} else number):
        if late:
            break
        next(iterator)
        time.sleep(0.001)
    print("ends", time.time(), flush=True)
    if number % 4 == 1:
        keep = [iterator]; keep.append(keep); del iterator
    if number % 4 == 2:
        raise SystemExit(0)
    if number % 4 == 3:
        gc.freeze(); sys.last = iterator
"""


@pytest.mark.parametrize(
    ("delay", "num_children", "most_seconds"),
    [
        (0, 8, 10),  # nothing is late, so only an end that waits for itself is
        (0.2, 3, 1.2),
        pytest.param(0, 30, 10, marks=pytest.mark.drill),
        pytest.param(0.2, 9, 1.2, marks=pytest.mark.drill),
    ],
)
def test_a_process_that_ends_in_the_middle_of_an_epoch_ends_at_once(
    delay: float, num_children: int, most_seconds: float, large: Dataset
) -> None:
    """With threads, some reads are under way then: groups of dozens, so that waiting for all would take seconds."""
    source = [str(Path(__file__).parents[2] / "src")]
    text = SCRIPT.format(path=source, data=large.stream.opened.paths[0], delay=delay, num_children=num_children)
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(text)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 2 * num_children
    for (said, began), (code, ended) in zip(lines[::2], lines[1::2], strict=True):
        assert (said, code) == ("ends", "0")
        assert float(ended) - float(began) < most_seconds


def test_a_damaged_sample_is_named_where_it_stands(tmp_path: Path) -> None:
    from shoal.stream.open_dataset import open_dataset

    (tmp_path / "a.jsonl").write_text('{"id": 0}\n{"id": 1}\n{"id": \n{"id": 3}\n')
    iterator = iter(open_dataset(tmp_path / "a.jsonl"))
    assert [next(iterator)["id"], next(iterator)["id"]] == [0, 1]
    with pytest.raises(ShardError, match=r"a\.jsonl, byte 2\d: .*not JSON"):
        next(iterator)
    assert at(iterator) == (0, 2)

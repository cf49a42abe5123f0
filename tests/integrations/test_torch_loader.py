"""`shoal.torch.DataLoader`: what ``iter(dataset)`` gives, whoever makes it; a state that counts what was received."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integrations import stages
from tests.stream.made import at, check_batch, flat, reading_threads

import shoal
from shoal.errors import StateError, UsageError, WorkerError
from shoal.stream.dataset import Dataset
from shoal.torch import DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than this machine has cores
]

WORKERS = [0, 2, *(pytest.param(num_workers, marks=pytest.mark.drill) for num_workers in (1, 3))]


def ids_of(batches: Any) -> list[list[int]]:
    return [batch["__id__"].tolist() for batch in batches]


def expected(ds: Dataset, *, epoch: int = 0) -> list[list[int]]:
    return [ds.batch_ids(step, epoch=epoch).tolist() for step in range(len(ds))]


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("order", ["window", "full"])
def test_the_order_is_that_of_the_dataset_whoever_makes_the_batches(
    num_workers: int, order: str, tars: Dataset
) -> None:
    ds = tars.shuffle(order, seed=3).with_ids().partition(rank=1, world_size=2).batch(9)
    loader = DataLoader(ds, num_workers=num_workers)
    batches = list(loader)
    assert ids_of(batches) == expected(ds)
    assert len(batches) == len(loader) == len(ds) == 11
    assert flat(check_batch({**batch, "__id__": batch["__id__"].numpy()}) for batch in batches) == flat(ids_of(batches))
    assert isinstance(batches[0]["__id__"], torch.Tensor)
    assert isinstance(batches[0]["bin"], list)
    assert at(ds) == (1, 0)
    assert loader.stats()["num_samples"] == len(flat(ids_of(batches)))


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize(("remainder", "marks"), [("keep", [True, False]), ("pad", [True] * 3), ("drop", None)])
def test_the_uneven_end(num_workers: int, remainder: str, marks: list[bool] | None, tars: Dataset) -> None:
    parts = [
        tars.with_ids().partition(rank=rank, world_size=14).batch(3, remainder=remainder) for rank in (0, 5, 13)
    ]  # 197 = 4 * 42 + 29
    for ds in parts:
        assert ids_of(DataLoader(ds, num_workers=num_workers)) == expected(ds)
    if num_workers in {0, 2}:
        last = list(DataLoader(tars.skip(192).with_ids().partition(rank=5, world_size=6).batch(2, remainder=remainder)))
        assert len(last) == (remainder != "drop")
        # 5 samples for 6 ranks; which rank has the repeat is the order's affair
        assert all(isinstance(batch.get("__pad__", torch.zeros(1, dtype=torch.bool)), torch.Tensor) for batch in last)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_more_workers_than_batches(num_workers: int, tars: Dataset) -> None:
    ds = tars.take(5).with_ids().batch(5)
    assert ids_of(DataLoader(ds, num_workers=num_workers)) == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)], ids=str)
def test_epochs_follow_each_other(num_workers: int, persistent: bool, tars: Dataset) -> None:
    ds = tars.shuffle(seed=3).with_ids().batch(16)
    loader = DataLoader(ds, num_workers=num_workers, persistent_workers=persistent)
    for epoch in range(3):
        assert loader.state_dict()["epoch"] == epoch
        assert ids_of(loader) == expected(ds, epoch=epoch)
    loader.set_epoch(1)
    assert ids_of(loader) == expected(ds, epoch=1)
    loader.close()


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_loop_that_counts_to_the_length_has_ended_the_epoch(
    num_workers: int, persistent: bool, tars: Dataset
) -> None:
    ds = tars.shuffle(seed=3).with_ids().batch(50)
    loader = DataLoader(ds, num_workers=num_workers, persistent_workers=persistent)
    for epoch in range(3):
        assert ids_of(itertools.islice(loader, len(loader))) == expected(ds, epoch=epoch)
        assert loader.dataset.epoch == epoch + 1
    loader.close()


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_the_state_counts_what_was_received(num_workers: int, persistent: bool, tars: Dataset) -> None:
    ds = tars.shuffle(seed=3).with_ids().batch(8)
    whole = expected(ds)
    loader = DataLoader(ds, num_workers=num_workers, prefetch_factor=4, persistent_workers=persistent)
    iterator = iter(loader)
    received = ids_of(itertools.islice(iterator, 5))
    state = loader.state_dict()
    assert state == ds.state_dict() == iterator.state_dict()
    assert (state["epoch"], state["position"]) == (0, 40)
    assert len(json.dumps(state)) < 1024
    # What was made ahead does not count for the certificate either.
    kept = loader.certificate()
    assert kept["epochs"]["0"] | {"sum": ""} == {"start": 0, "end": 40, "num_samples": 40, "sum": ""}
    ds.check_certificate(kept)
    # Entering the loop again begins where the epoch did, as with iter(ds).
    assert ids_of(loader) == whole
    loader.load_state_dict(state)
    assert received + ids_of(loader) == whole
    whole_certificate = shoal.merge_certificates([kept, loader.certificate()])
    ds.check_certificate(whole_certificate)
    assert whole_certificate["epochs"]["0"]["num_samples"] == 197
    loader.close()

    for other_workers, world_size in [(1, 2), (0, 3)]:
        parts, delivered = [], [kept]
        for rank in range(world_size):
            other = tars.shuffle(seed=3).with_ids().partition(rank=rank, world_size=world_size).batch(5)
            again = DataLoader(other, num_workers=other_workers)
            again.load_state_dict(state)
            parts.append(flat(ids_of(again)))
            delivered.append(again.certificate())
        assert shoal.merge_certificates(delivered) == whole_certificate
        assert sorted(flat(received) + flat(parts)) == list(range(197))


def test_a_state_with_other_numbers_reaches_workers_that_stay(tars: Dataset) -> None:
    ds = tars.shuffle(seed=3, window=60_000).with_ids().batch(16)
    loader = DataLoader(tars.shuffle(seed=3).with_ids().batch(16), num_workers=2, persistent_workers=True)
    ids_of(loader)
    loader.load_state_dict(ds.state_dict())
    assert ids_of(loader) == expected(ds) != expected(tars.shuffle(seed=3).batch(16))
    with pytest.raises(StateError, match="seed=4"):
        loader.load_state_dict(tars.shuffle(seed=4).state_dict())
    loader.close()


def test_a_break_and_an_iterator_that_is_over(tars: Dataset) -> None:
    ds = tars.with_ids().batch(50)
    loader = DataLoader(ds, num_workers=1, persistent_workers=True)
    for _ in loader:
        break
    assert at(ds) == (0, 50)
    first = iter(loader)
    next(first)
    second = iter(loader)  # the workers make batches of one pass at a time
    assert len(list(second)) == 4
    assert list(first) == []
    assert list(second) == []
    loader.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_filters_keep_the_number_of_batches(num_workers: int, tars: Dataset) -> None:
    ds = tars.filter(stages.is_remote).with_ids().batch(30)
    here = [batch["__id__"].tolist() for batch in ds]
    ds.set_epoch(1)
    ds.set_epoch(0)
    certificate = ds.certificate()
    batches = list(DataLoader(ds, num_workers=num_workers))
    assert ds.certificate() == certificate
    assert ids_of(batches) == here
    assert len(batches) == 7
    assert sum(bool(batch["__pad__"].all()) for batch in batches if "__pad__" in batch) == 5


@pytest.mark.parametrize("num_workers", [0, 2])
def test_collate_fn_gets_the_samples(num_workers: int, tars: Dataset) -> None:
    ds = tars.batch(64)
    assert flat(DataLoader(ds, num_workers=num_workers, collate_fn=stages.numbered)) == list(range(197))
    padded = tars.batch(64, remainder="pad")
    last = list(DataLoader(padded, num_workers=num_workers, collate_fn=stages.named))[-1]
    assert len(last["numbers"]) == 64
    assert isinstance(last["__pad__"], torch.Tensor)
    assert int((~last["__pad__"]).sum()) == 5
    mapped = tars.batch(64).map(len)
    assert list(DataLoader(mapped, num_workers=num_workers, collate_fn=stages.numbered)) == [64, 64, 64, 5]


def test_workers_share_the_batches_in_turn(tars: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_TEST_NOTES", str(tmp_path))
    ds = tars.batch(20).map(stages.with_pid)
    pids = [batch["pid"] for batch in DataLoader(ds, num_workers=3)]
    assert len(set(pids)) == 3
    assert pids == [pids[step % 3] for step in range(10)]
    assert os.getpid() not in pids


def test_worker_init_fn_and_seeds(tars: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_TEST_NOTES", str(tmp_path))
    ds = tars.batch(50).map(stages.with_seed)
    drawn = []
    for _ in range(2):
        ds.set_epoch(0)
        generator = torch.Generator().manual_seed(7)
        context = "fork" if hasattr(os, "fork") else None  # so that the environment of this test arrives
        loader = DataLoader(
            ds,
            num_workers=2,
            generator=generator,
            worker_init_fn=stages.note_worker,
            multiprocessing_context=context,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks is the point
            drawn.append([batch["drawn"] for batch in loader])
        ds.load_state_dict(tars.state_dict())
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 4
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.isdigit()) == ["0", "1"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_keeps_its_type_and_its_place(num_workers: int, tars: Dataset) -> None:
    ds = tars.map(stages.fail_at_100).with_ids().batch(8)
    loader = DataLoader(ds, num_workers=num_workers)
    iterator, received = iter(loader), []
    with pytest.raises(KeyError, match="this is sample 100") as caught:
        for batch in iterator:
            received.append(batch["__id__"].tolist())  # noqa: PERF401  # what came before the error counts
    assert flat(received) == list(range(96))
    assert at(ds) == (0, 96)
    notes = "\n".join(caught.value.__notes__)
    assert "100" in notes
    assert ("in a worker process" in notes) == bool(num_workers)
    with pytest.raises(KeyError):
        next(iterator)
    assert reading_threads() == []


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("function", "how"),
    [(stages.die_at_100, "was ended by SIGKILL"), (stages.stop_at_100, "ended with exit code 3")],
    ids=["killed", "exited"],
)
def test_a_worker_that_is_lost_is_reported_with_the_cause(function: Any, how: str, tars: Dataset) -> None:
    ds = tars.map(function).with_ids().batch(20)
    loader = DataLoader(ds, num_workers=2, persistent_workers=True)
    received = []
    with pytest.raises(WorkerError, match=rf"worker [01] of 2 \(pid \d+\) {how}") as caught:
        for batch in loader:
            received.append(batch["__id__"].tolist())  # noqa: PERF401
    assert caught.value.hint
    assert at(ds) == (0, 20 * len(received))
    state = loader.state_dict()
    whole = DataLoader(tars.with_ids().batch(20), num_workers=0)
    whole.load_state_dict(state)
    assert flat(received) + flat(ids_of(whole)) == list(range(197))
    loader.close()


def test_a_timeout(tars: Dataset) -> None:
    loader = DataLoader(tars.map(stages.slowly).batch(30), num_workers=1, timeout=0.2)
    with pytest.raises(WorkerError, match=r"timeout=0.2 seconds"):
        list(loader)


def test_closing_does_not_wait_for_batches_in_work(tars: Dataset, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    ds = tars.map(partial(stages.slowly_noted, str(notes))).batch(90)
    iterator = iter(DataLoader(ds, num_workers=2))
    while not notes.exists() or notes.stat().st_size < 4:
        time.sleep(0.002)
    iterator.close()
    assert notes.stat().st_size < 180  # the two first batches were not both finished
    with pytest.raises(StopIteration):
        next(iterator)


def test_what_cannot_travel_is_said_with_what_to_do(tars: Dataset) -> None:
    loader = DataLoader(tars.map(lambda sample: sample).batch(4), num_workers=1)
    with pytest.raises(UsageError, match=r"cannot be sent to worker processes") as caught:
        iter(loader)
    assert "num_workers=0" in caught.value.hint
    assert len(list(DataLoader(tars.map(lambda sample: sample).batch(4)))) == 50


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 4}, r"ds.batch\(4\)"),
        ({"shuffle": True}, r"ds.shuffle\(seed="),
        ({"sampler": [1]}, "ds.select"),
        ({"batch_sampler": [[1]]}, "ds.shuffle"),
        ({"drop_last": True}, 'remainder="drop"'),
        ({"in_order": False}, "exact"),
        ({"num_workers": -1}, "num_workers must be from 0 to 4,096; got -1"),
        ({"num_workers": 10**9}, "num_workers must be from 0 to 4,096; got 1,000,000,000"),
        ({"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor must be from 1 to 65,536; got 0"),
        ({"prefetch_factor": 10**9}, "prefetch_factor must be from 0 to 65,536; got 1,000,000,000"),
        ({"num_threads": 10**9}, "num_threads must be from 1 to 4,096"),
        ({"persistent_workers": True}, "but num_workers is 0"),
        ({"worker_init_fn": print}, "but num_workers is 0"),
        ({"multiprocessing_context": "spawn"}, "but num_workers is 0"),
        ({"num_workers": 1, "multiprocessing_context": "spoon"}, "no way 'spoon'"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], message: str, tars: Dataset) -> None:
    with pytest.raises(UsageError, match=message):
        DataLoader(tars.batch(4), **arguments)


def test_what_is_no_argument_or_no_dataset(tars: Dataset) -> None:
    with pytest.raises(TypeError, match="'num_wrokers'"):
        DataLoader(tars.batch(4), num_wrokers=2)
    with pytest.raises(UsageError, match="got list"):
        DataLoader([1, 2, 3])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="yields single samples"):
        iter(DataLoader(tars))
    assert DataLoader(tars.batch(4), drop_last=False, shuffle=None, in_order=True)


def test_batches_are_made_ahead_or_on_demand(tars: Dataset) -> None:
    made: list[int] = []

    def note(batch: dict[str, Any]) -> dict[str, Any]:
        made.append(len(made))
        return batch

    ds = tars.batch(10).map(note)
    iterator = iter(DataLoader(ds, prefetch_factor=0))
    next(iterator)
    assert made == [0]
    iterator.close()
    with pytest.raises(StopIteration):
        next(iterator)
    iterator = iter(DataLoader(ds, prefetch_factor=3))
    next(iterator)
    next(iterator)
    iterator.close()
    assert 3 <= len(made) <= 1 + 5
    assert at(ds) == (0, 20)
    assert reading_threads() == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_nested_loaders(num_workers: int, tars: Dataset) -> None:
    train = tars.shuffle(seed=1).with_ids().batch(40)
    val = tars.take(50).with_ids().batch(20)
    train_loader = DataLoader(train, num_workers=num_workers)
    val_loader = DataLoader(val, num_workers=num_workers)
    outer = []
    for number, batch in enumerate(train_loader):
        outer.append(batch["__id__"].tolist())
        if number in {0, 3}:
            assert sorted(flat(ids_of(val_loader))) == list(range(50))
    assert outer == expected(train)
    assert (at(train), at(val)) == ((1, 0), (2, 0))


def test_copies_and_pickles_stand_where_the_original_does_and_go_their_own_way(tars: Dataset) -> None:
    ds = tars.shuffle(seed=2).with_ids().batch(20)
    loader = DataLoader(ds, num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    received = ids_of(itertools.islice(iterator, 3))
    for other in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert other.state_dict() == loader.state_dict()
        other.load_state_dict(other.state_dict())
        assert received + ids_of(other) == expected(ds)
        assert other.state_dict()["epoch"] == 1
        other.close()
    assert at(loader.dataset) == (0, 60)
    assert len(list(iterator)) == 7
    loader.close()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_stats_say_who_holds_training_up(num_workers: int, tars: Dataset) -> None:
    loader = DataLoader(tars.batch(10), num_workers=num_workers)
    batches = iter(loader)
    assert loader.stats()["bottleneck"] is None
    for _ in range(5):
        next(batches)
    rushed = loader.stats()
    assert 0 < rushed["wait_share"] + rushed["stages_share"] <= 1
    assert rushed["make_seconds"] >= rushed["wait_seconds"] > 0
    end = time.monotonic() + 4 * rushed["elapsed_seconds"] + 0.05
    while time.monotonic() < end:  # training takes its time
        time.sleep(0.01)
    next(batches)
    assert loader.stats()["bottleneck"] == "consumer"
    assert loader.stats()["samples_per_second"] > 0
    loader.close()

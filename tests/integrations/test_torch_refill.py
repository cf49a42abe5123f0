"""`filter(refill=True)` through worker processes: the same batches, states and certificates for any number of them."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integrations import stages, train_refilled
from tests.stream.made import open_finely, write_tars

import shoal
from shoal.errors import UsageError, WorkerError
from shoal.stream.dataset import Dataset
from shoal.torch import DataLoader, IterableDataset

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than this machine has cores
]


def part(tars: Dataset, *, size: int = 7, remainder: str = "keep") -> Dataset:
    ds = tars.shuffle(seed=3).filter(stages.is_odd, refill=True).with_ids()
    return ds.batch(size, remainder=remainder, steps="apart").partition(rank=1, world_size=2)


def ids_of(batches: Any) -> list[list[int]]:
    return [batch["__id__"].tolist() for batch in batches]


@pytest.mark.parametrize(
    ("num_workers", "remainder"),
    [
        (0, "keep"),
        (0, "pad"),
        (0, "drop"),
        (2, "keep"),
        (2, "pad"),
        (2, "drop"),
        pytest.param(1, "pad", marks=pytest.mark.drill),
        pytest.param(3, "keep", marks=pytest.mark.drill),
        pytest.param(3, "drop", marks=pytest.mark.drill),
    ],
)
def test_batches_do_not_depend_on_who_makes_them(num_workers: int, remainder: str, tars: Dataset) -> None:
    here, ds = part(tars, remainder=remainder), part(tars, remainder=remainder)
    loader = DataLoader(ds, num_workers=num_workers)
    batches, expected = list(loader), list(here)
    assert ids_of(batches) == ids_of(expected)
    assert isinstance(batches[0]["__id__"], torch.Tensor)
    assert [batch["bin"] for batch in batches] == [batch["bin"] for batch in expected]
    assert [bool("__pad__" in batch) for batch in batches] == [bool("__pad__" in batch) for batch in expected]
    assert loader.state_dict() == here.state_dict()
    assert loader.certificate() == here.certificate()
    counts = ("num_samples", "num_batches", "num_repeats", "num_filtered", "num_refilled")
    assert [loader.stats()[name] for name in counts] == [here.stats()[name] for name in counts]
    assert ids_of(loader) == ids_of(here)  # the next epoch


@pytest.mark.parametrize(
    ("num_workers", "then", "steps"),
    [
        (0, 2, 0),
        (2, 0, 1),
        (2, 1, 4),
        pytest.param(0, 2, 4, marks=pytest.mark.drill),
        pytest.param(1, 0, 0, marks=pytest.mark.drill),
        pytest.param(2, 3, 1, marks=pytest.mark.drill),
        pytest.param(3, 1, 4, marks=pytest.mark.drill),
    ],
)
def test_a_run_goes_on_with_any_number_of_workers(num_workers: int, then: int, steps: int, tars: Dataset) -> None:
    expected = ids_of(part(tars))
    loader = DataLoader(part(tars), num_workers=num_workers)
    begun = ids_of(itertools.islice(loader, steps))
    state = json.loads(json.dumps(loader.state_dict()))
    again = DataLoader(part(tars), num_workers=then)
    again.load_state_dict(state)
    assert begun + ids_of(again) == expected
    assert again.state_dict()["epoch"] == 1
    whole = part(tars)
    list(whole)
    assert shoal.merge_certificates([loader.certificate(), again.certificate()]) == whole.certificate()


def test_workers_that_stay_learn_what_was_taken(tars: Dataset) -> None:
    """A state that was dealt at another size leaves samples out; the workers of the run before do not know them."""
    parts = [part(tars, size=5).partition(rank=rank, world_size=3) for rank in range(3)]
    before = [i for each in parts for batch in itertools.islice(each, 4) for i in batch["__id__"].tolist()]
    state = shoal.merge_states(each.state_dict() for each in parts)
    after = []
    for rank in range(2):
        loader = DataLoader(part(tars).partition(rank=rank, world_size=2), num_workers=2, persistent_workers=True)
        assert ids_of(itertools.islice(loader, 1))
        loader.load_state_dict(state)
        after += [i for batch in loader for i in batch["__id__"].tolist()]
        loader.close()
    assert sorted(before + after) == list(range(1, 197, 2))


def test_collation_and_functions_of_batches_run_where_batches_are_received(tars: Dataset) -> None:
    ds = part(tars).map(stages.with_pid)
    here = next(iter(ds))["pid"]
    assert {batch["pid"] for batch in DataLoader(part(tars).map(stages.with_pid), num_workers=2)} == {here}
    collated = list(DataLoader(part(tars), num_workers=2, collate_fn=len))
    assert collated == [len(ids) for ids in ids_of(part(tars))]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_of_tensors_arrive_as_they_are(num_workers: int, tars: Dataset) -> None:
    ds = tars.filter(stages.is_odd, refill=True).map(stages.in_torch).batch(8)
    first = next(iter(DataLoader(ds, num_workers=num_workers)))
    assert first["image"].dtype is torch.bfloat16
    assert first["image"][:, 0, 0].tolist() == list(range(1, 16, 2))


def test_other_loaders_are_refused(tars: Dataset) -> None:
    with pytest.raises(UsageError, match="other loaders keep apart"):
        IterableDataset(part(tars))


# Each leg is a world size, a number of workers, and the steps after which each rank is killed, or 0.
# A rank that forks its workers needs no fork server of its own, which would import torch.
@pytest.mark.parametrize("kind", ["filtered", "divided", "joined", pytest.param("windows", marks=pytest.mark.drill)])
@pytest.mark.parametrize(
    ("legs", "method"),
    [
        pytest.param([(2, 1, 7), (1, 0, 0)], "fork", id="one kill"),
        pytest.param([(2, 1, 7), (3, 0, 5), (1, 2, 0)], None, id="two kills", marks=pytest.mark.drill),
    ],
)
def test_a_job_that_is_killed_goes_on_from_what_its_ranks_saved(
    legs: list[tuple[int, int, int]], method: str | None, tmp_path: Path, kind: str
) -> None:
    """Real ranks with worker processes end by SIGKILL after some checkpoints, at other sizes: every sample once."""
    data = write_tars(tmp_path / "data", [70, 1, 0, 147, 62, 60, 35, 102])
    open_finely(data)
    if kind == "joined":
        train_refilled.write_captions(tmp_path, 477)
    context: Any = multiprocessing.get_context("forkserver")
    for number, (world_size, num_workers, steps) in enumerate(legs):
        ranks = [
            context.Process(
                target=train_refilled.run,
                args=(tmp_path, number, rank, world_size, num_workers, steps, method if num_workers else None, kind),
            )
            for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(100)
            assert process.exitcode == (-signal.SIGKILL if steps else 0)
    items, proofs = train_refilled.consumed(tmp_path)
    parts = ((number, part) for number in range(477) for part in range(number % 4))
    odd = ((number, 0) for number in range(1, 477, 2))
    assert sorted(items) == [4 * number + part for number, part in (parts if kind == "divided" else odd)]
    whole = train_refilled.dataset(tmp_path, kind).partition(rank=0, world_size=1)
    list(whole)
    assert shoal.merge_certificates(proofs) == whole.certificate()


@pytest.mark.usefixtures("impatient")
def test_a_lost_worker_loses_nothing_that_was_received(tars: Dataset) -> None:
    ds = tars.map(stages.die_at_100).filter(stages.is_odd, refill=True).with_ids().batch(10)
    loader, received = DataLoader(ds, num_workers=2), []
    with pytest.raises(WorkerError, match="SIGKILL"):
        for batch in loader:
            received += batch["__id__"].tolist()
    again = DataLoader(tars.filter(stages.is_odd, refill=True).with_ids().batch(10), num_workers=1)
    again.load_state_dict(loader.state_dict())
    received += [i for batch in again for i in batch["__id__"].tolist()]
    assert received == list(range(1, 197, 2))


def test_threads_that_decode_change_nothing(tars: Dataset) -> None:
    expected = ids_of(part(tars))
    assert ids_of(DataLoader(part(tars), num_threads=3)) == expected
    assert ids_of(DataLoader(part(tars), prefetch_factor=0)) == expected


def test_an_error_of_a_batch_function_is_raised_at_its_place(tars: Dataset) -> None:
    ds = part(tars).map(stages.fail_with_75)
    loader, received = DataLoader(ds, num_workers=2), []
    with pytest.raises(KeyError):
        for batch in loader:
            received.append(batch["__id__"].tolist())  # noqa: PERF401
    assert received == ids_of(part(tars))[: len(received)]
    again = DataLoader(part(tars), num_workers=0)
    again.load_state_dict(loader.state_dict())
    assert received + ids_of(again) == ids_of(part(tars))

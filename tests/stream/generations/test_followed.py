"""A followed dataset looks at its source at the beginning of each epoch, once, and all ranks take the same shards."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.stream.generations.arriving import Arriving, joined, order_of, shuffled, taken

import shoal
from shoal.errors import UsageError
from shoal.indexing.opened_dataset import Known
from shoal.stream.dataset import Dataset
from shoal.stream.generations import agreed_datasets
from shoal.stream.ranks import Ranks
from shoal.torch import DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


@pytest.fixture
def arriving(tmp_path: Path) -> Arriving:
    arriving = Arriving(tmp_path / "data")
    arriving.arrive(["b.jsonl", "d.jsonl"], 10)
    return arriving


def paths(arriving: Arriving, *names: str) -> list[str]:
    return [str(arriving.directory / f"{name}.jsonl") for name in names]


def followed(arriving: Arriving, size: int = 4) -> Dataset:
    return shuffled(arriving.directory, follow=True).batch(size)


def test_each_epoch_begins_with_the_shards_that_are_there(arriving: Arriving) -> None:
    ds = followed(arriving)
    due = {"bd": order_of(arriving, paths(arriving, "b", "d"), 0)}
    iterator = iter(ds)
    got = next(iterator)["id"].tolist()
    arriving.arrive(["c.jsonl", "a.jsonl"], 3)
    assert got + joined([batch["id"].tolist() for batch in iterator]) == due["bd"]
    assert joined(taken(ds)) == order_of(arriving, paths(arriving, "b", "d", "a", "c"), 1)
    state = ds.state_dict()
    assert (state["shards"], ds.num_samples, ds.stats()["num_new_samples"]) == ([2, 4], 26, 6)
    assert joined(taken(ds)) == order_of(arriving, paths(arriving, "b", "d", "a", "c"), 2)
    (arriving.directory / "b.jsonl").unlink()
    arriving.arrive(["e.jsonl"], 5)
    assert joined(taken(ds)) == order_of(arriving, paths(arriving, "d", "a", "c", "e"), 3)
    assert ds.stats()["num_left_samples"] == 10


def test_an_epoch_that_begins_twice_has_the_same_shards(arriving: Arriving) -> None:
    ds = followed(arriving)
    first = taken(ds, 1)
    arriving.arrive(["a.jsonl"], 3)
    ds.set_epoch(0)
    assert taken(ds, 1) == first
    ds.set_epoch(1)
    assert joined(taken(ds)) == order_of(arriving, paths(arriving, "b", "d", "a"), 1)


def test_a_state_within_an_epoch_goes_on_with_its_shards_and_then_follows(
    arriving: Arriving, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ds = followed(arriving)
    taken(ds)
    arriving.arrive(["e.jsonl", "c.jsonl"], 3)  # listed in another order than they came
    iterator = iter(ds)
    batches = [next(iterator)["id"].tolist()]
    state = json.loads(json.dumps(ds.state_dict()))
    arriving.arrive(["a.jsonl"], 3)
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "another"))
    resumed = followed(arriving, 3)
    resumed.load_state_dict(state)
    assert joined(batches) + joined(taken(resumed)) == order_of(arriving, paths(arriving, *"bdce"), 1)
    assert joined(taken(resumed)) == order_of(arriving, paths(arriving, *"bdcea"), 2)


def test_columns_of_the_index_are_read_from_new_shards(arriving: Arriving) -> None:
    ds = shoal.open(arriving.directory, index_columns=["id", "text:len"], follow=True)
    ds = ds.select(id=lambda ids: ids % 2 == 0).shuffle(seed=1).batch(4)
    assert sorted(joined(taken(ds))) == list(range(0, 20, 2))
    arriving.arrive(["a.jsonl"], 6)
    assert sorted(joined(taken(ds))) == list(range(0, 26, 2))


def test_workers_that_stay_read_the_new_shards(arriving: Arriving) -> None:
    loader = DataLoader(followed(arriving), num_workers=2, persistent_workers=True, multiprocessing_context="fork")
    assert joined([b["id"].tolist() for b in loader]) == order_of(arriving, paths(arriving, "b", "d"), 0)
    arriving.arrive(["a.jsonl"], 6)
    assert joined([b["id"].tolist() for b in loader]) == order_of(arriving, paths(arriving, "b", "d", "a"), 1)
    assert len(loader) == 7


def test_an_index_is_followed_as_shoal_index_appends_to_it(arriving: Arriving) -> None:
    from shoal.cli.main import main

    assert main(["index", str(arriving.directory)]) == 0
    ds = followed(arriving)
    file = shuffled(arriving.directory / "shoal.index", follow=True).batch(4)
    taken(ds), taken(file)
    arriving.arrive(["a.jsonl"], 6)
    assert joined(taken(file)) == order_of(arriving, paths(arriving, "b", "d"), 1)  # the index says what there is
    assert joined(taken(ds)) == order_of(arriving, paths(arriving, "b", "d", "a"), 1)
    assert main(["index", str(arriving.directory), "--append"]) == 0
    assert joined(taken(file)) == joined(taken(ds)) == order_of(arriving, paths(arriving, "b", "d", "a"), 2)


# ---- ranks


def _rank(rank: int, directory: str, environment: dict[str, str], barrier: Any, results: Any) -> None:
    """A rank of a job on this machine: ranks look at different moments, and shards arrive in between."""
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    ds = shuffled(directory, follow=True).batch(2)
    epochs = [joined(taken(ds))]
    barrier.wait()
    if rank:  # the first rank looks before more shards arrive
        barrier.wait()
    iterator = iter(ds) if rank else _begin(ds, directory, barrier)
    epochs.append([i for batch in iterator for i in batch["id"].tolist()])
    results.put((rank, epochs, ds.state_dict()))


def _begin(ds: Dataset, directory: str, barrier: Any) -> Any:
    """Begin the epoch, and let another shard arrive once this rank has decided."""
    made: list[Any] = []
    decisions = Path(os.environ["SHOAL_CACHE_DIR"], "decisions")
    num_before = len(list(decisions.glob("*.decision")))
    thread = threading.Thread(target=lambda: made.append(iter(ds)))
    thread.start()
    while len(list(decisions.glob("*.decision"))) == num_before:
        thread.join(0.01)
    line = json.dumps({"id": 99, "text": "99:"}) + "\n"
    Path(directory, "0.jsonl").write_text(line)
    barrier.wait()
    thread.join()
    return made[0]


def test_ranks_of_a_machine_take_the_shards_of_the_first_that_looks(arriving: Arriving, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    environment = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "SHOAL_CACHE_DIR": str(tmp_path / "cache")}
    order = order_of(arriving, paths(arriving, "b", "d"), 0)
    arguments = (str(arriving.directory), environment, barrier, results)
    ranks = [context.Process(target=_rank, args=(rank, *arguments)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    got = {rank: (epochs, state) for rank, epochs, state in (results.get(timeout=60) for _ in ranks)}
    for rank in ranks:
        rank.join()
    assert sorted(joined([got[rank][0][0] for rank in range(2)])) == sorted(order)
    assert sorted(joined([got[rank][0][1] for rank in range(2)])) == sorted(order)  # nobody took the late shard
    assert got[0][1] == got[1][1]


def test_ranks_that_cannot_reach_each_other_are_refused(arriving: Arriving) -> None:
    ds = followed(arriving).partition(rank=1, world_size=2)
    with pytest.raises(UsageError, match="cannot reach each other") as caught:
        iter(ds)
    assert "extended(INDEX)" in (caught.value.hint or "")


def test_a_rank_that_does_not_come_ends_the_wait(arriving: Arriving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreed_datasets, "_WAIT_SECONDS", 0.05)
    for name, value in {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="ranks 0, 2 of 3 did not come to the beginning of epoch 0"):
        iter(followed(arriving))


class _Decided:
    """A place where another rank has decided."""

    def __init__(self, value: bytes) -> None:
        self.value = value

    def first(self, name: str, value: bytes) -> bytes:
        return self.value

    def wait_for_all(self, name: str, rank: int, num_ranks: int, *, limit_seconds: float) -> list[int]:
        return []


@pytest.mark.parametrize("arrives", [True, False])
def test_a_rank_that_sees_fewer_shards_looks_again(
    arriving: Arriving, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    opened = shuffled(arriving.directory).stream.opened
    arriving.arrive(["a.jsonl"])
    wanted = shuffled([*paths(arriving, "b", "d", "a")]).stream.opened.index
    hidden = (arriving.directory / "a.jsonl").rename(arriving.directory / "a.hidden")
    place = _Decided(json.dumps([Known.of(wanted, with_names=True)]).encode())
    monkeypatch.setattr(agreed_datasets, "decisions_of", lambda _: place)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if arrives and len(pauses) == 2:
            hidden.rename(arriving.directory / "a.jsonl")

    monkeypatch.setattr(time, "sleep", sleep)
    look: Callable[..., Any] = lambda known: known.latest.look_again(known)  # noqa: E731
    two = Ranks.of_arguments(0, 2, 1)
    if arrives:
        assert agreed_datasets.agreed(opened, look, two, epoch=1).index.fingerprint == wanted.fingerprint
        assert len(pauses) == 2
    else:
        with pytest.raises(shoal.errors.StateError, match="does not see the shards that another rank took"):
            agreed_datasets.agreed(opened, look, two, epoch=1)


class _Place:
    """A place in this process where ranks decide one after another."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def first(self, name: str, value: bytes) -> bytes:
        return self.values.setdefault(name, value)

    def wait_for_all(self, name: str, rank: int, num_ranks: int, *, limit_seconds: float) -> list[int]:
        return []


def test_ranks_that_have_opened_different_shards_take_the_same(
    arriving: Arriving, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = _Place()
    monkeypatch.setattr(agreed_datasets, "decisions_of", lambda _: place)
    ranks = [followed(arriving).partition(rank=0, world_size=2)]
    arriving.arrive(["a.jsonl"])
    ranks.append(followed(arriving).partition(rank=1, world_size=2))
    got = taken(ranks[0])
    arriving.arrive(["c.jsonl"])
    got += taken(ranks[1])
    assert ranks[0].state_dict()["index"] == ranks[1].state_dict()["index"]
    assert sorted(joined(got)) == list(range(27))
    arriving.arrive(["0.jsonl"])
    assert sorted(joined(taken(ranks[1]) + taken(ranks[0]))) == list(range(41))

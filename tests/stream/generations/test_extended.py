"""A dataset that is extended: the running epoch stays, the next one has the new shards, and states name both."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.stream.generations.arriving import Arriving, joined, order_of, shuffled, taken

import shoal
from shoal.errors import IndexFileError, StateError, UsageError
from shoal.stream.dataset import Dataset
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


def loaded(ds: Dataset, state: dict[str, Any]) -> Dataset:
    ds.load_state_dict(json.loads(json.dumps(state)))
    return ds


@pytest.mark.parametrize("way", ["directory", "nothing", "list", "index", "dataset"])
def test_the_next_epoch_has_the_new_shards_after_the_old(arriving: Arriving, way: str, tmp_path: Path) -> None:
    old = arriving.arrive(["f.jsonl"])
    old = [str(arriving.directory / name) for name in ("b.jsonl", "d.jsonl", "f.jsonl")]
    ds = shuffled(arriving.directory).batch(4)
    first = taken(ds, 2)
    new = arriving.arrive(["a.jsonl", "e.jsonl"], 9)
    source: Any = {
        "directory": arriving.directory, "nothing": None, "list": [*new, *old], "dataset": shoal.open([*old, *new]),
        "index": tmp_path / "grown.index",
    }[way]  # fmt: skip
    if way == "index":
        from shoal.cli.main import main

        assert main(["index", *old, "--output", str(source)]) == 0
        assert main(["index", *old, *new, "--append", "--output", str(source)]) == 0
        source.rename(arriving.directory / "grown.index")
        source = arriving.directory / "grown.index"
    extended = ds.extended(source)
    assert (extended.epoch, extended.num_samples, extended.state_dict()["position"]) == (0, 27, 8)
    assert extended.state_dict()["next"]["epoch"] == 1
    assert "from epoch 1 on 45 samples" in repr(extended)
    assert joined(first) + joined(taken(extended)) == order_of(arriving, old, 0)
    assert (extended.epoch, extended.num_samples, len(extended)) == (1, 45, 12)
    assert joined(taken(extended)) == order_of(arriving, [*old, *new], 1)
    assert extended.stats()["num_new_shards"] == 2
    assert extended[30]["id"] == arriving.ids_in([*old, *new])[30]


def test_states_of_both_epochs_resume_at_any_world_size(arriving: Arriving, monkeypatch: pytest.MonkeyPatch) -> None:
    old = [str(arriving.directory / name) for name in arriving.arrivals]
    ds = shuffled(arriving.directory).batch(3)
    taken(ds, 2)
    new = arriving.arrive(["a.jsonl"], 9)
    extended = ds.extended()
    states = [extended.state_dict()]
    taken(extended)
    states.append(extended.state_dict())
    taken(extended, 2)
    states.append(extended.state_dict())
    later = arriving.arrive(["c.jsonl"], 5)
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(arriving.directory.parent / "another"))
    for state, (epoch, number) in zip(states, [(0, 6), (1, 0), (1, 6)], strict=True):
        assert (state["epoch"], state["position"]) == (epoch, number)
        ranks = [
            loaded(shuffled(arriving.directory).batch(2).partition(rank=rank, world_size=3), state) for rank in range(3)
        ]
        for of_epoch, shards in [(epoch, old if epoch == 0 else old + new), (epoch + 1, old + new)]:
            steps = list(zip(*(taken(rank) for rank in ranks), strict=True))
            due = order_of(arriving, shards, of_epoch)[number if of_epoch == epoch else 0 :]
            for step, batches in enumerate(steps):
                assert sorted(joined(batches)) == sorted(due[step * 6 : step * 6 + 6])
    assert later


def test_before_its_first_sample_an_epoch_takes_the_new_shards(arriving: Arriving) -> None:
    old = [str(arriving.directory / name) for name in arriving.arrivals]
    ds = shuffled(arriving.directory).batch(3)
    new = arriving.arrive(["a.jsonl"])
    extended = ds.extended()
    assert "next" not in extended.state_dict()
    assert joined(taken(extended)) == order_of(arriving, old + new, 0)


def test_a_numbers_of_a_loaded_state_stay_in_the_running_epoch(arriving: Arriving) -> None:
    ds = shoal.open(arriving.directory).shuffle(seed=5, window="40KiB").batch(3)
    taken(ds, 1)
    other = loaded(shoal.open(arriving.directory).shuffle(seed=5, window="60KiB").batch(3), ds.state_dict())
    arriving.arrive(["a.jsonl", "c.jsonl"])
    assert joined(taken(other.extended())) == joined(taken(loaded(ds, ds.state_dict())))


def test_a_state_from_before_the_growth_loads_into_the_extended_dataset(arriving: Arriving) -> None:
    old = [str(arriving.directory / name) for name in arriving.arrivals]
    ds = shuffled(old).batch(3)
    taken(ds, 2)
    state = ds.state_dict()
    new = arriving.arrive(["a.jsonl"])
    grown = loaded(shuffled(old).extended([*old, *new]).batch(3), state)
    assert joined(taken(grown)) == order_of(arriving, old, 0)[6:]
    assert joined(taken(grown)) == order_of(arriving, old + new, 1)


def test_questions_are_answered_for_the_dataset_of_their_epoch(arriving: Arriving) -> None:
    old = [str(arriving.directory / name) for name in arriving.arrivals]
    ds = shuffled(arriving.directory).batch(4)
    taken(ds, 1)
    new = arriving.arrive(["a.jsonl"])
    extended = ds.extended()
    ids = {0: arriving.ids_in(old), 1: arriving.ids_in(old + new)}
    for epoch, numbers in ids.items():
        assert np.array(numbers)[extended.ids(epoch)].tolist() == order_of(arriving, (old, old + new)[epoch], epoch)
        batch = extended.batch_ids(1, epoch=epoch, rank=0, world_size=1)
        assert batch.tolist() == extended.ids(epoch)[4:8].tolist()
    without = extended.without(steps=[1], epoch=1)
    assert joined(taken(without)) == order_of(arriving, old, 0)
    left = order_of(arriving, old + new, 1)
    assert joined(taken(without)) == left[:4] + left[8:]
    without.set_epoch(0)
    assert joined(taken(without)) == order_of(arriving, old, 0)
    assert extended.state_at(3, epoch=1)["index"] != extended.state_at(3)["index"]


def test_certificates_prove_each_epoch_with_its_dataset(arriving: Arriving) -> None:
    ds = shuffled(arriving.directory).batch(4)
    taken(ds, 1)
    arriving.arrive(["a.jsonl"])
    extended = loaded(ds.extended(), {**ds.extended().state_dict()})
    extended.set_epoch(0)
    taken(extended), taken(extended)
    certificate = json.loads(json.dumps(extended.certificate()))
    assert extended.check_certificate(certificate) == (
        "epoch 0, not whole: positions [4, 20) of 20; epoch 1: all of 27 samples"
    )
    assert [sorted(part) for part in certificate["epochs"].values()] == [
        ["end", "index", "num_samples", "start", "sum"], ["end", "num_samples", "start", "sum"],
    ]  # fmt: skip
    for epoch in ("0", "1"):
        wrong = json.loads(json.dumps(certificate))
        wrong["epochs"][epoch]["sum"] = "0" * 16
        with pytest.raises(StateError, match=f"epoch {epoch}"):
            extended.check_certificate(wrong)
    with pytest.raises(StateError, match="epoch 0 read the dataset"):
        shuffled([arriving.directory / name for name in arriving.arrivals]).check_certificate(certificate)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loaders_and_workers_that_stay_cross_the_border(arriving: Arriving, num_workers: int) -> None:
    old = [str(arriving.directory / name) for name in arriving.arrivals]
    ds = shuffled(arriving.directory).batch(4)
    loader = DataLoader(ds, num_workers=num_workers, multiprocessing_context="fork" if num_workers else None)
    iterator = iter(loader)
    first = [next(iterator)["id"].tolist() for _ in range(2)]
    del iterator
    new = arriving.arrive(["a.jsonl"])
    extended = ds.extended()
    how: dict[str, Any] = {"num_workers": num_workers, "persistent_workers": bool(num_workers)}
    how["multiprocessing_context"] = "fork" if num_workers else None
    loader = DataLoader(extended, **how)
    assert joined(first) + joined([batch["id"].tolist() for batch in loader]) == order_of(arriving, old, 0)
    state = loader.state_dict()
    for epoch in (1, 2):
        assert joined([batch["id"].tolist() for batch in loader]) == order_of(arriving, old + new, epoch)
    resumed = DataLoader(shuffled(arriving.directory).batch(4), **how)
    resumed.load_state_dict(state)
    assert joined([batch["id"].tolist() for batch in resumed]) == order_of(arriving, old + new, 1)


def test_shards_that_left_are_named_before_the_epoch_that_lacks_them(
    arriving: Arriving, caplog: pytest.LogCaptureFixture
) -> None:
    old = [str(arriving.directory / name) for name in arriving.arrivals]
    ds = shuffled(arriving.directory).batch(4)
    iterator = iter(ds)
    first = next(iterator)["id"].tolist()
    new, due = arriving.arrive(["e.jsonl"]), order_of(arriving, old, 0)
    kept = (arriving.directory / "b.jsonl").rename(arriving.directory / "b.gone")
    with caplog.at_level(logging.WARNING):
        extended = ds.extended()
    assert "1 shard left the source, with 10 samples: b.jsonl" in caplog.text
    assert (extended.stats()["num_left_shards"], extended.stats()["num_left_samples"]) == (1, 10)
    assert first + joined([batch["id"].tolist() for batch in iterator]) == due  # the file is open here
    extended.set_epoch(1)
    assert joined(taken(extended)) == order_of(arriving, [old[1], *new], 1)
    assert kept.exists()
    with pytest.raises(shoal.errors.ShoalError, match=r"b\.jsonl"):
        ids = extended.ids(0).tolist()
        taken(loaded(shuffled(old).batch(4), ds.state_at(len(ids) // 2)))


def test_what_cannot_grow_is_refused_with_a_way_out(arriving: Arriving, tmp_path: Path) -> None:
    ds = shuffled(arriving.directory).filter(lambda sample: True, refill=True).batch(4)
    with pytest.raises(UsageError, match="fill their batches"):
        ds.extended()
    with pytest.raises(UsageError, match='index="grow"'):
        shoal.open(arriving.directory, index="grow").shuffle(seed=1).extended()
    with pytest.raises(UsageError, match="follow=True"):
        shoal.open(arriving.directory, index="grow", follow=True)
    masked = shoal.open(arriving.directory).select(np.ones(20, dtype=bool)).shuffle(seed=1)
    arriving.arrive(["z.jsonl"])
    with pytest.raises(UsageError, match="a mask must have a boolean for each of 27 samples"):
        masked.extended()
    tars = tmp_path / "tars"
    shoal.pack.pack([{"__key__": "a", "txt": b"a"}], tars, format="tar")
    with pytest.raises(UsageError, match="shards are jsonl, but the next ones are tar"):
        shuffled(arriving.directory).extended(shoal.open(tars))
    path = arriving.directory / "b.jsonl"
    path.write_text(path.read_text() + '{"id": 1, "text": "more"}\n')
    with pytest.raises(IndexFileError, match="1 shard of the index changed"):
        masked_free = shuffled(sorted(map(str, arriving.directory.glob("*.jsonl")))[:1])
        path.write_text(path.read_text() + '{"id": 2, "text": "more"}\n')
        masked_free.extended(arriving.directory)

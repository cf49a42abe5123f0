"""What frameworks read of a loader, and what they do with it; the real ones are in `tests/integration`."""

from __future__ import annotations

import copy
import itertools
import logging
import math
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data
from tests.stream.made import at
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

import shoal.torch
from shoal.errors import UsageError
from shoal.integrations.torch import framework_view
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

OPTIONS: list[dict[str, Any]] = [
    {},
    {"prefetch_factor": 0},
    {"num_workers": 2},
    {"num_workers": 1, "persistent_workers": True},
]


@pytest.fixture
def ds(tars: Dataset) -> Dataset:
    return tars.shuffle(seed=1).with_ids().columns("__id__").batch(16)


def batches_of(batches: Any) -> list[list[int]]:
    return [batch["__id__"].tolist() for batch in batches]


def epoch_of(ds: Dataset, epoch: int, start: int = 0) -> list[list[int]]:
    ids = ds.ids(epoch=epoch, start=start).tolist()
    return [ids[first : first + 16] for first in range(0, len(ids), 16)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_epoch_named_before_the_first_batch_is_heeded_by_an_existing_iterator(
    options: dict[str, Any], ds: Dataset
) -> None:
    loader = shoal.torch.DataLoader(ds, **options)
    for set_epoch, epoch in ((loader.set_epoch, 2), (ds.set_epoch, 0), (loader.sampler.set_epoch, 5)):
        batches = iter(loader)
        set_epoch(epoch)
        assert batches_of(batches) == epoch_of(ds, epoch)
        assert at(ds) == (epoch + 1, 0)
    batches = iter(loader)
    loader.load_state_dict(ds.state_at(64, epoch=3))
    assert batches_of(batches) == epoch_of(ds, 3, 64)
    batches = iter(loader)
    first = next(batches)
    loader.set_epoch(7)  # too late for this one
    assert batches_of([first, *batches]) == epoch_of(ds, 4)
    assert batches_of(loader) == epoch_of(ds, 7)
    loader.close()


def test_an_iterator_of_a_dataset_follows_as_well(ds: Dataset) -> None:
    batches = iter(ds)
    ds.set_epoch(3)
    assert batches_of(batches) == epoch_of(ds, 3)
    one, other = iter(ds), iter(ds)  # only a named epoch or a state moves what exists
    assert batches_of(one) == batches_of(other) == epoch_of(ds, 4)


def test_a_stopped_iterator_does_not_begin_again(ds: Dataset) -> None:
    loader = shoal.torch.DataLoader(ds)
    batches = iter(loader)
    loader.stop()
    loader.set_epoch(1)
    assert list(batches) == []


def test_a_pass_that_repeats_one_that_was_left_warns_once(ds: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    def warnings() -> list[str]:
        found = [record.getMessage() for record in caplog.records if "come again" in record.getMessage()]
        caplog.clear()
        return found

    caplog.set_level(logging.WARNING, logger="shoal")
    loader = shoal.torch.DataLoader(ds)
    next(iter(loader))
    list(itertools.islice(loader, 3))
    assert warnings() == []  # a look at the first batch
    again = iter(loader)
    assert warnings() == []
    next(again)
    (text,) = warnings()
    assert "epoch 0 begins again at position 0" in text
    assert "set_epoch()" in text
    assert "load_state_dict(state_dict())" in text
    again.close()
    list(itertools.islice(loader, 3))
    list(loader)
    assert warnings() == []

    for cure in (lambda loader, _: loader.load_state_dict(loader.state_dict()), lambda loader, n: loader.set_epoch(n)):
        other = shoal.torch.DataLoader(Dataset(ds.stream.spec))
        seen = set()
        for number in range(4):
            cure(other, number)
            seen |= {i for batch in itertools.islice(other, 3) for i in batch["__id__"].tolist()}
        assert warnings() == []
        assert len(seen) > 3 * 16
    named = shoal.torch.DataLoader(Dataset(ds.stream.spec))
    for _ in range(2):
        named.set_epoch(0)  # on purpose
        list(itertools.islice(named, 3))
    assert warnings() == []


def test_leaving_a_loaded_position_is_said(ds: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    ds.load_state_dict(ds.state_at(64, epoch=3))
    ds.set_epoch(3)
    assert caplog.text == ""
    ds.set_epoch(0)
    assert "set_epoch(0) leaves the loaded position 64 of epoch 3" in caplog.text


def test_a_loader_is_one_of_torch_and_shows_its_attributes(ds: Dataset) -> None:
    def begin(_: int) -> None:
        pass

    generator = torch.Generator()
    loader = shoal.torch.DataLoader(ds, num_workers=2, timeout=50, worker_init_fn=begin, generator=generator)
    assert isinstance(loader, torch_data.DataLoader)
    assert isinstance(loader.sampler, DistributedSampler)
    assert isinstance(loader.sampler, BatchSampler)
    assert (loader.sampler.rank, loader.sampler.num_replicas, loader.sampler.epoch) == (0, 1, 0)
    assert vars(loader)["dataset"] is ds
    assert loader.batch_sampler is None
    assert (loader.batch_size, loader.drop_last, loader.num_workers, loader.timeout) == (16, False, 2, 50)
    assert (loader.worker_init_fn, loader.generator, loader.collate_fn) == (begin, generator, None)
    assert loader.multiprocessing_context.get_start_method() == "forkserver"
    assert (loader.prefetch_factor, loader.persistent_workers, loader.pin_memory) == (2, False, False)
    assert (loader.in_order, loader.pin_memory_device) == (True, "")
    part = Dataset(ds.stream.spec).partition(rank=1, world_size=3)
    assert shoal.torch.DataLoader(part).sampler.num_replicas == 3


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_loader_made_anew_of_its_attributes_is_equal(options: dict[str, Any], ds: Dataset) -> None:
    """As Lightning and Fabric do; they read ``vars(loader)``."""
    loader = shoal.torch.DataLoader(ds, **options)
    names = ("dataset", "num_workers", "collate_fn", "timeout", "prefetch_factor", "persistent_workers")
    given = {name: vars(loader)[name] for name in names}
    given["multiprocessing_context"] = loader.multiprocessing_context
    again = shoal.torch.DataLoader(**given, sampler=loader.sampler, shuffle=False, batch_sampler=None)
    assert batches_of(again) == epoch_of(ds, 0)
    assert at(loader.dataset) == (1, 0)  # the position is the dataset's
    again.close()
    loader.close()


def test_a_framework_that_wants_the_same_batches_in_each_epoch_gets_them(
    ds: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    loader = shoal.torch.DataLoader(ds, sampler=SequentialSampler(range(5)), shuffle=False)
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        assert batches_of(itertools.islice(loader, 2)) == epoch_of(ds, 0)[:2]
    assert caplog.text == ""
    with pytest.raises(UsageError, match="sampler="):
        shoal.torch.DataLoader(ds, sampler=torch_data.RandomSampler(range(5)))


def test_a_framework_that_counts_from_zero_goes_on_from_a_loaded_state(ds: Dataset) -> None:
    loader = shoal.torch.DataLoader(ds)
    loader.load_state_dict(ds.state_at(64, epoch=2))
    for number, wanted in enumerate([epoch_of(ds, 2, 64), epoch_of(ds, 3), epoch_of(ds, 4)]):
        loader.sampler.set_epoch(number)
        assert batches_of(loader) == wanted
    loader.load_state_dict(ds.state_at(16, epoch=7))
    loader.sampler.set_epoch(7)
    list(itertools.islice(loader, 2))
    loader.sampler.set_epoch(8)
    assert batches_of(loader) == epoch_of(ds, 8)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("num_skipped", [0, 5, 12])
def test_a_loader_of_torch_made_of_the_attributes_skips_without_reading(
    options: dict[str, Any], num_skipped: int, ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``accelerate.skip_first_batches`` does, and torch's fetcher after it."""
    monkeypatch.setitem(framework_view._VIEWS, __name__, framework_view._VIEWS["accelerate.data_loader"])
    loader = shoal.torch.DataLoader(ds, **options)
    names = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")
    for epoch in (1, 0):
        assert len(loader.sampler) == len(loader) == 13
        loader.sampler.set_epoch(epoch)
        steps = list(loader.sampler)[num_skipped:]
        kwargs: dict[str, Any] = {name: getattr(loader, name) for name in names}
        kwargs |= {"dataset": loader.dataset, "batch_sampler": steps}
        made: Any = torch_data.DataLoader(**kwargs)
        assert len(made.dataset) == 197
        before = dict(Dataset.stats(vars(loader)["dataset"]))
        assert batches_of(made) == epoch_of(ds, epoch)[num_skipped:]
        assert at(vars(loader)["dataset"]) == (epoch + 1, 0)
        assert loader.stats()["num_samples"] - before["num_samples"] == 197 - 16 * num_skipped
    loader.close()


class FitLoop:
    """As Lightning's, which has read the state of a loader, and will not load it, and has asked for its length once."""

    def __init__(self, loader: shoal.torch.DataLoader, state: dict[str, Any], *, limit: float = 1.0) -> None:
        self.loader, self._combined_loader_states_to_load = loader, [state] if state else []
        self.trainer = SimpleNamespace(limit_train_batches=limit)
        try:
            limits: list[float] = [len(loader)]
        except TypeError:
            limits = [math.inf]
        self._combined_loader = SimpleNamespace(flattened=[loader], limits=limits)

    def _load_combined_loader_states(self) -> None:
        self.loader.load_state_dict(self._combined_loader_states_to_load.pop())

    def begin(self, epoch: int) -> None:
        source = "def on_advance_start(self, epoch):\n    self.loader.sampler.set_epoch(epoch)"
        module: dict[str, Any] = {"__name__": "lightning.pytorch.loops.fit_loop"}
        exec(source, module)  # a method of that module
        module["on_advance_start"](self, epoch)


def test_a_state_that_lightning_did_not_load_is_loaded_when_it_names_the_epoch(ds: Dataset) -> None:
    loader = shoal.torch.DataLoader(ds)
    loop, batches = FitLoop(loader, ds.state_at(64, epoch=1)), iter(loader)
    loop.begin(1)
    assert batches_of(batches) == epoch_of(ds, 1, 64)
    loop.begin(2)
    assert batches_of(itertools.islice(loader, 3)) == epoch_of(ds, 2)[:3]
    loop.begin(3)
    assert batches_of(loader) == epoch_of(ds, 3)


def test_lightning_without_a_length_is_warned_about_once(tars: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    ds = tars.with_ids().filter(bool, refill=True).batch(16)
    for loader in (shoal.torch.DataLoader(ds), shoal.torch.DataLoader(tars.batch(16))):
        for epoch in range(2):
            FitLoop(loader, {}).begin(epoch)
    (record,) = caplog.records
    assert "batch(..., steps=n)" in record.getMessage()


@pytest.mark.parametrize(("limit", "num_warnings"), [(1.0, 1), (5, 0)])
def test_lightning_that_ends_epochs_by_the_first_length_is_warned_about(
    limit: float, num_warnings: int, ds: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    loader = shoal.torch.DataLoader(ds.without(2, epoch=1))
    loop = FitLoop(loader, {}, limit=limit)
    for epoch in range(4):
        loop.begin(epoch)
        len(loader)  # Lightning asks, and does not heed it
        list(loader)
    texts = [record.getMessage() for record in caplog.records]
    assert ["epoch 1 has 12 batches on each rank, but len(loader) was 13" in text for text in texts] == (
        [True] * num_warnings
    )


def test_the_dataset_of_a_loader_counts_samples_as_training_code_expects(ds: Dataset, tars: Dataset) -> None:
    loader = shoal.torch.DataLoader(ds)
    shown = loader.dataset
    assert (len(shown), len(loader), len(ds)) == (197, 13, 13)
    assert isinstance(shown, Dataset)
    assert type(shown) is type(loader.dataset)
    assert repr(shown) == repr(ds)
    next(iter(loader))
    assert at(shown) == at(ds) == (0, 16)
    assert len(shoal.torch.DataLoader(shown)) == 13
    assert len(shown.map(print).partition(rank=0, world_size=13)) == 1  # batches, of a dataset as ever
    for copied in (copy.copy(shown), copy.deepcopy(shown), pickle.loads(pickle.dumps(shown))):
        assert (len(copied), len(shoal.torch.DataLoader(copied))) == (197, 13)
    mixed = shoal.mix({"a": tars, "b": tars}).shuffle(seed=0).batch(16)
    assert len(shoal.torch.DataLoader(mixed).dataset) == mixed.num_samples
    assert shoal.torch.DataLoader(mixed).dataset.sources == mixed.sources


def test_batches_by_length_have_no_size(tmp_path: Path) -> None:
    rows = ({"num_tokens": row % 7 + 1, "tokens": np.arange(row % 7 + 1)} for row in range(100))
    shoal.pack.pack(rows, tmp_path / "rows", format="mds", columns=("num_tokens",))
    ds = shoal.open(tmp_path / "rows").shuffle(seed=0)
    assert shoal.torch.DataLoader(ds.batch_by_length(max_tokens=40)).batch_size is None
    assert shoal.torch.DataLoader(ds.pack_sequences(16).batch(4)).batch_size == 4

"""A function of `map` learns the epoch beside the id, whoever makes the sample and however the run came there."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.stream.made import open_finely, write_lines

from shoal.errors import UsageError
from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


def drawn(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": sample["__id__"], "drawn": np.random.default_rng([sample["__epoch__"], sample["__id__"]]).random()}


def expected(ds: Dataset, epoch: int, start: int = 0) -> list[float]:
    return [float(np.random.default_rng([epoch, number]).random()) for number in ds.ids(epoch, start).tolist()]


@pytest.mark.parametrize("order", ["window", "full"])
def test_the_epoch_is_that_of_the_pass(order: str, tars: Dataset) -> None:
    ds = tars.shuffle(order, seed=1).with_ids().map(drawn)
    for epoch in range(2):
        assert [sample["drawn"] for sample in ds] == expected(ds, epoch)
    ds.set_epoch(7)
    assert [sample["drawn"] for sample in ds] == expected(ds, 7)
    ds.set_epoch(5)
    iterator = iter(ds.batch(16))
    first = iter(ds)
    head = [sample["drawn"] for sample in itertools.islice(first, 50)]
    assert next(iterator)["drawn"].tolist() == expected(ds, 0)[:16]  # a derived dataset begins with epoch 0
    resumed = tars.shuffle(order, seed=1).with_ids().map(drawn)
    resumed.load_state_dict(first.state_dict())
    assert head + [sample["drawn"] for sample in resumed] == expected(ds, 5)


def test_one_sample_is_that_of_the_epoch_that_comes(tars: Dataset) -> None:
    ds = tars.shuffle(seed=1).with_ids().map(drawn)
    view = ds.as_map()
    for epoch in (0, 3):
        ds.set_epoch(epoch)
        one = int(ds.ids(epoch)[0])
        assert ds[one] == view[one] == pickle.loads(pickle.dumps(view))[one] == next(iter(ds))
    list(ds)
    assert ds[9]["drawn"] == view[9]["drawn"] == np.random.default_rng([4, 9]).random()


def test_two_iterators_know_their_own_epochs(tars: Dataset) -> None:
    ds = tars.with_ids()
    one = iter(ds)
    next(one)
    ds.set_epoch(4)
    assert (next(one)["__epoch__"], next(iter(ds))["__epoch__"]) == (0, 4)


@pytest.mark.parametrize("name", [None, "numpy", "python", "torch", "arrow"])
@pytest.mark.parametrize("gathers", [False, True])
def test_in_batches_of_every_format(name: str | None, gathers: bool, tmp_path: Path) -> None:
    pytest.importorskip("torch" if name == "torch" else "pyarrow")
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "a.parquet")
    ds = open_dataset(tmp_path).with_ids()
    ds = ds if gathers else ds.map(dict)
    ds = (ds if name is None else ds.format(name)).batch(4)
    ds.set_epoch(2)
    for batch in ds:
        column = batch["__epoch__"]
        values = column.to_pylist() if name == "arrow" else column if name == "python" else column.tolist()
        assert values == [2] * len(batch["x"])
        if name is None:
            assert column.dtype == batch["__id__"].dtype == np.int64
    tuples = open_dataset(tmp_path).with_ids().to_tuple("__epoch__", "x").batch(10)
    tuples.set_epoch(3)
    assert [column.tolist() for column in next(iter(tuples))] == [[3] * 10, list(range(10))]


def test_what_a_rank_gets_instead_of_nothing_and_what_is_skipped(tars: Dataset) -> None:
    ds = tars.filter(lambda sample: int(sample["cls"]) < 40).with_ids().reading(on_error="skip").batch(40)
    ds.set_epoch(6)
    assert [set(batch["__epoch__"].tolist()) for batch in ds] == [{6}] * 5


def test_a_field_of_that_name_is_refused_in_the_first_epoch(tmp_path: Path) -> None:
    ds = open_finely(write_lines(tmp_path / "lines", [3]))
    assert next(iter(ds.with_ids().with_ids()))["__epoch__"] == 0
    stored = ds.map(lambda sample: {**sample, "__epoch__": 0}).with_ids()
    with pytest.raises(UsageError, match="adds '__epoch__'") as caught:
        next(iter(stored))
    assert "own_epoch" in caught.value.hint
    assert next(iter(ds.rename(__epoch__="id").rename(own="__epoch__").with_ids()))["own"] == 0

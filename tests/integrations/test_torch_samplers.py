"""The map-style view and its samplers: torch's own loader in the order of the dataset."""

from __future__ import annotations

import copy
import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.utils.data as torch_data
from tests.integrations import stages
from tests.stream.made import check_sample

import shoal
from shoal.errors import NoSampleError, UsageError
from shoal.stream.dataset import Dataset
from shoal.torch import BatchSampler, Sampler

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


def as_they_are(samples: list[Any]) -> list[int]:
    return [check_sample(sample) for sample in samples]


def loader_of(ds: Dataset, num_workers: int) -> Any:
    context = "forkserver" if num_workers else None
    return torch_data.DataLoader(
        ds.as_map(),  # type: ignore[arg-type]
        batch_sampler=BatchSampler(ds),
        collate_fn=as_they_are,
        num_workers=num_workers,
        multiprocessing_context=context,
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchs_loader_gives_the_batches_of_the_dataset(num_workers: int, tars: Dataset) -> None:
    ds = tars.shuffle(seed=3).partition(rank=1, world_size=2).batch(9)
    loader = loader_of(ds, num_workers)
    assert len(loader) == 11
    for epoch in (0, 1):
        loader.batch_sampler.set_epoch(epoch)
        assert list(loader) == [ds.batch_ids(step, epoch=epoch).tolist() for step in range(11)]


def test_the_loop_says_how_much_it_received(tars: Dataset) -> None:
    ds = tars.shuffle(seed=3).batch(9)
    whole = [ds.batch_ids(step).tolist() for step in range(len(ds))]
    loader = loader_of(ds, 0)
    received = list(itertools.islice(loader, 4))
    state = loader.batch_sampler.state_dict(4)
    assert state["position"] == 36
    again = loader_of(tars.shuffle(seed=3).batch(9), 0)
    again.batch_sampler.load_state_dict(state)
    assert received + list(again) == whole
    assert loader.batch_sampler.state_dict(len(ds))["epoch"] == 1


def test_single_samples(tars: Dataset) -> None:
    ds = tars.shuffle(seed=3).partition(rank=2, world_size=4)
    ids = list(Sampler(ds))
    assert ids == [check_sample(sample) for sample in ds]
    assert len(ids) == len(Sampler(ds))
    with pytest.raises(UsageError, match="single samples, but this dataset yields batches"):
        Sampler(ds.batch(4))
    with pytest.raises(UsageError, match="batches, but this dataset yields single samples"):
        BatchSampler(ds)


@pytest.mark.parametrize("name", ["numpy", "python", "arrow", "torch"])
def test_a_sample_of_the_view_is_that_of_the_dataset(tmp_path: Path, name: str) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"x": np.arange(5, dtype=np.int16), "when": pa.array([1] * 5, pa.timestamp("s"))}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    ds = shoal.open(tmp_path).format(name).columns("when", "x")
    view = pickle.loads(pickle.dumps(ds.as_map()))
    for number in (0, 4, -2):
        assert type(view[number]) is type(ds[number])
        assert repr(view[number]) == repr(ds[number])
    kinds = {"numpy": "int16", "python": "int", "arrow": "ChunkedArray", "torch": "Tensor"}
    assert type(view[1]["x"]).__name__ == kinds[name]


def test_the_view_is_a_list_of_the_stored_samples(tars: Dataset) -> None:
    view = tars.shuffle(seed=3).with_ids().as_map()
    for copied in (view, copy.deepcopy(view), pickle.loads(pickle.dumps(view))):
        assert len(copied) == 197
        assert [check_sample(copied[i]) for i in (0, 196, -1)] == [0, 196, 196]
        assert [sample["__id__"] for sample in copied.__getitems__([5, 3])] == [5, 3]
    with pytest.raises(NoSampleError, match="no sample 197"):
        view[197]
    with pytest.raises(UsageError, match=r"filter\(\)"):
        tars.filter(stages.is_odd).as_map()

"""A dataset in torch's DataLoader: refused where samples would silently be others, or come more than once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shoal.errors import UsageError
from shoal.stream.dataset import Dataset

data = pytest.importorskip("torch.utils.data", reason="torch is not installed")


class Wrapped(data.IterableDataset):  # type: ignore[misc, name-defined]
    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)


@pytest.mark.parametrize("batch_size", [8, None])
def test_a_dataset_is_no_list(tars: Dataset, batch_size: int | None) -> None:
    loader = data.DataLoader(tars.shuffle(seed=0), batch_size=batch_size)
    with pytest.raises(UsageError, match="like a list"):
        next(iter(loader))


def test_a_worker_would_repeat_all_of_it(tars: Dataset) -> None:
    loader = data.DataLoader(Wrapped(tars), batch_size=None, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(UsageError, match="every sample"):
        next(iter(loader))


def test_without_workers_it_is_what_it_is(tars: Dataset) -> None:
    loader = data.DataLoader(Wrapped(tars.shuffle(seed=0).with_ids().batch(16)), batch_size=None)
    ids = [number for batch in loader for number in batch["__id__"].tolist()]
    assert ids == tars.shuffle(seed=0).ids().tolist()


def test_a_wrapper_of_ones_own_may_ask_by_id(tars: Dataset) -> None:
    class Listed(data.Dataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 10

        def __getitem__(self, number: int) -> Any:
            return tars[number]["__key__"]

    assert len(list(data.DataLoader(Listed(), batch_size=None))) == 10

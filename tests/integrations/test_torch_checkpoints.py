"""States of loaders in the checkpoints of trainers: torch's distributed ones, by rank in torchtitan's, and files."""

from __future__ import annotations

import io
import itertools
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint
from tests.integrations import whole_and_resumed
from tests.integrations.whole_and_resumed import Made, Point, ids_of
from torch.distributed.checkpoint.stateful import Stateful

import shoal
from shoal.errors import StateError
from shoal.stream.dataset import Dataset
from shoal.torch import DataLoader, IterableDataset

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]
dcp: Any = torch.distributed.checkpoint
POINTS: list[Point] = [(0, "new"), (0, 2), (0, "end"), (1, 0), (1, 5), (1, 6)]


class Held:
    """A state on its way through a checkpoint, as the protocol `Stateful` wants it."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def by_torch(state: Any) -> Any:
    """As DeepSpeed keeps a ``client_state``; read as carefully as torch does by default."""
    file = io.BytesIO()
    torch.save({"step": 7, "loader": state}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)["loader"]


TRAVELS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda state: pickle.loads(pickle.dumps(state)),
    "json": lambda state: json.loads(json.dumps(state)),
    "torch": by_torch,
}


@pytest.mark.parametrize("travel", TRAVELS)
def test_a_state_of_torchdatas_loader_survives_a_file(travel: str, few: Dataset) -> None:
    pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    made = Made(few, is_shuffled=True, size=4)
    assert not whole_and_resumed.differences(made, sets_epochs=True, points=POINTS, travel=TRAVELS[travel])


@pytest.mark.parametrize("taken", [0, 2, 6])
def test_a_loader_is_saved_and_loaded_by_torch_distributed(taken: int, few: Dataset, tmp_path: Path) -> None:
    def loader() -> DataLoader:
        return DataLoader(few.shuffle(seed=3).with_ids().batch(4))

    first = loader()
    assert isinstance(first, Stateful)
    first.set_epoch(1)
    head = ids_of(itertools.islice(first, taken))
    dcp.save({"loader": first}, checkpoint_id=tmp_path / "checkpoint")
    again = loader()
    dcp.load({"loader": again}, checkpoint_id=tmp_path / "checkpoint")
    assert again.state_dict() == first.state_dict()
    epoch = 1 if taken < 6 else 2
    expected = [again.dataset.batch_ids(step, epoch=epoch).tolist() for step in range(6)]
    assert (head if taken < 6 else []) + ids_of(again) == expected


def keep(sample: dict[str, Any]) -> bool:
    return int(sample["__id__"]) % 3 != 0


MORE_FIELDS: dict[str, Callable[[Dataset], Dataset]] = {
    "refill": lambda ds: ds.shuffle(seed=3).with_ids().filter(keep, refill=True).batch(4),
    "without": lambda ds: ds.shuffle(seed=3).with_ids().batch(4).without(steps=3),
}


@pytest.mark.parametrize("name", MORE_FIELDS)
def test_torch_distributed_drops_fields_that_a_new_state_lacks(name: str, few: Dataset, tmp_path: Path) -> None:
    first = DataLoader(MORE_FIELDS[name](few))
    next(iter(first))
    dcp.save({"loader": first, "text": Held({"json": json.dumps(first.state_dict())})}, checkpoint_id=tmp_path / "here")
    chain = MORE_FIELDS["refill"] if name == "refill" else lambda ds: ds.shuffle(seed=3).with_ids().batch(4)
    with pytest.raises(StateError, match=r"(?s)the state was changed after it was saved.*save json\.dumps\(state\)"):
        dcp.load({"loader": DataLoader(chain(few))}, checkpoint_id=tmp_path / "here")
    again, text = DataLoader(chain(few)), Held({"json": ""})
    dcp.load({"text": text}, checkpoint_id=tmp_path / "here")
    again.load_state_dict(json.loads(text.state["json"]))
    first.load_state_dict(first.state_dict())
    assert ids_of(again) == ids_of(first)


@pytest.mark.parametrize("point", POINTS)
def test_torchdatas_loader_is_saved_and_loaded_by_torch_distributed(point: Point, few: Dataset, tmp_path: Path) -> None:
    pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    made = Made(few, is_shuffled=True, size=4)

    def travel(state: Any) -> Any:
        dcp.save({"loader": Held(state)}, checkpoint_id=tmp_path / "checkpoint")
        held = Held(made.loader().state_dict())  # torch asks the new loader what to read
        dcp.load({"loader": held}, checkpoint_id=tmp_path / "checkpoint")
        return held.state

    assert not whole_and_resumed.differences(made, sets_epochs=True, points=[point], travel=travel)


def test_each_rank_finds_its_own_state_among_those_of_all(few: Dataset, tmp_path: Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    class OfRank(stateful.StatefulDataLoader):  # type: ignore[misc, name-defined]
        """As the loader of torchtitan: its state is bytes under the name of the rank."""

        def __init__(self, rank: int) -> None:
            # Its loop takes one pass, so the data have no end.
            mixed: Any = shoal.mix({"docs": few.shuffle(seed=3)}, ends="forever")
            ds = mixed.with_ids().columns("__id__").batch(2).partition(rank=rank, world_size=2)
            super().__init__(IterableDataset(ds), batch_size=None)
            self.name = f"dp_rank_{rank}"

        def state_dict(self) -> dict[str, Any]:
            return {self.name: pickle.dumps(super().state_dict()), "world_size": 2}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            super().load_state_dict(pickle.loads(state[self.name]))

    ranks = [OfRank(0), OfRank(1)]
    iterators = [iter(loader) for loader in ranks]
    seen = [ids_of(itertools.islice(iterator, 8)) for iterator in iterators]  # into the second epoch
    both = sorted(i for batches in zip(*seen, strict=True) for batch in batches for i in batch)
    assert len(both) == 32
    assert set(both) == set(range(23))
    dcp.save({"loader": Held({**ranks[0].state_dict(), **ranks[1].state_dict()})}, checkpoint_id=tmp_path / "both")
    for rank, iterator in enumerate(iterators):
        again = OfRank(rank)
        dcp.load({"loader": again}, checkpoint_id=tmp_path / "both")
        assert ids_of(itertools.islice(iter(again), 9)) == ids_of(itertools.islice(iterator, 9))


class Repeating:
    """As DeepSpeed's loader of this kind: it makes its iterator at once, and another whenever one ends."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.iterator = loader, iter(loader)

    def __iter__(self) -> Repeating:
        return self

    def __next__(self) -> Any:
        try:
            return next(self.iterator)
        except StopIteration:
            self.iterator = iter(self.loader)
            return next(self.iterator)


@pytest.mark.parametrize("taken", [0, 4, 6, 9])
def test_a_loader_that_repeats_goes_on_in_the_next_epoch(taken: int, few: Dataset) -> None:
    def loader() -> DataLoader:
        return DataLoader(few.shuffle(seed=3).with_ids().batch(4))

    first = loader()
    expected = [first.dataset.batch_ids(step, epoch=epoch).tolist() for epoch in range(3) for step in range(6)]
    seen = ids_of(itertools.islice(Repeating(first), taken))
    again = loader()
    again.load_state_dict(by_torch(first.state_dict()))
    assert seen + ids_of(itertools.islice(Repeating(again), 18 - taken)) == expected

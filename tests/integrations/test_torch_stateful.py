"""torchdata's `StatefulDataLoader` over `shoal.torch.IterableDataset`: states of every point of two passes."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch.utils.data as torch_data
from tests.integrations import whole_and_resumed
from tests.integrations.whole_and_resumed import EVERYWHERE, Made, Point, ids_of

from shoal.stream.dataset import Dataset
from shoal.torch import IterableDataset

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata
]


# Each two of the three values occur together once; the drills are the other combinations.
PAIRS = [(True, 4, True), (True, -4, False), (True, -1, True), (False, 4, False), (False, -4, True), (False, -1, False)]
OTHERS = [(is_shuffled, size, not sets_epochs) for is_shuffled, size, sets_epochs in PAIRS]


@pytest.mark.parametrize(
    ("is_shuffled", "size", "sets_epochs"),
    [*PAIRS, *(pytest.param(*other, marks=pytest.mark.drill) for other in OTHERS)],
)
def test_a_state_of_any_point_resumes_exactly(is_shuffled: bool, size: int, sets_epochs: bool, few: Dataset) -> None:
    pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    made = Made(few, is_shuffled=is_shuffled, size=size)
    assert whole_and_resumed.differences(made, sets_epochs=sets_epochs, points=EVERYWHERE) == []


@pytest.mark.parametrize("persistent", [False, True])
def test_a_state_of_workers_resumes_exactly(persistent: bool, few: Dataset) -> None:
    pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    made = Made(few, is_shuffled=True, size=4, num_workers=2, persistent=persistent)
    points: list[Point] = [(0, 3), (0, "end"), (1, 0)]
    assert whole_and_resumed.differences(made, sets_epochs=True, points=points) == []


def test_a_state_of_a_part_leaves_the_dataset_where_it_is(few: Dataset) -> None:
    def source() -> IterableDataset:
        return IterableDataset(few.shuffle(seed=3).with_ids().batch(4))

    first = source()
    first.set_epoch(1)
    part = iter(first)
    head = ids_of(itertools.islice(part, 2))
    in_the_middle = part.state_dict()
    rest = ids_of(part)
    at_the_end = part.state_dict()
    for state, left in ((in_the_middle, rest), (at_the_end, [])):
        again = source()
        again.set_epoch(2)
        part = iter(again)
        part.load_state_dict(copy.deepcopy(state))
        assert part.state_dict() == state
        assert ids_of(part) == left
        assert again.dataset.epoch == 2
        assert ids_of(again) == [again.dataset.batch_ids(step, epoch=2).tolist() for step in range(6)]
    assert head + rest == [first.dataset.batch_ids(step, epoch=1).tolist() for step in range(6)]


def test_positions_that_the_run_of_a_state_left_out_stay_left_out(few: Dataset) -> None:
    ds = few.shuffle(seed=3).with_ids().batch(4)
    first, again = IterableDataset(ds.without(positions=[(2, 9)], epoch=1)), IterableDataset(ds)
    part = iter(first)
    head = ids_of(itertools.islice(part, 2))
    resumed = iter(again)
    resumed.load_state_dict(part.state_dict())
    assert head + ids_of(resumed) == [ds.batch_ids(step).tolist() for step in range(6)]
    for source in (first, again):
        source.set_epoch(1)
    assert ids_of(again) == ids_of(first)
    assert sum(map(len, ids_of(again))) == 16


@pytest.mark.parametrize("size", [4, -4])
def test_an_epoch_set_before_the_first_batch_is_the_one_that_comes(size: int, few: Dataset) -> None:
    made = Made(few, is_shuffled=True, size=size)
    source = made.source()
    loader: Any = torch_data.DataLoader(source, batch_size=made.batch_size)
    orders: list[list[list[int]]] = [[], [], [], []]
    for epoch in range(4):
        source.set_epoch(epoch)
        orders[epoch] = ids_of(loader)
    source.set_epoch(0)
    iterator = iter(loader)
    for epoch in (2, 1):
        source.set_epoch(epoch)
    head = ids_of([next(iterator)])
    source.dataset.set_epoch(3)  # of the next pass
    assert head + ids_of(iterator) == orders[1]
    assert ids_of(loader) == orders[3]
    iterator = iter(loader)
    source.load_state_dict(source.dataset.state_at(12, epoch=2))
    assert ids_of(iterator) == orders[2][3:]


def test_an_epoch_set_after_a_state_was_loaded(few: Dataset) -> None:
    source = IterableDataset(few.shuffle(seed=3).with_ids().batch(4))
    orders = [[source.dataset.batch_ids(step, epoch=epoch).tolist() for step in range(6)] for epoch in range(3)]
    source.set_epoch(1)
    part = iter(source)
    next(part)
    state = part.state_dict()
    for epoch, expected in ((1, orders[1][1:]), (2, orders[2]), (0, orders[1][1:])):  # it was in epoch 0
        source = IterableDataset(few.shuffle(seed=3).with_ids().batch(4))
        part = iter(source)
        part.load_state_dict(state)
        source.set_epoch(epoch)
        assert ids_of(part) == expected


def test_a_state_asked_for_before_the_first_pass_begins_nothing(few: Dataset) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    source = IterableDataset(few.shuffle(seed=3).with_ids().batch(4))
    loader = stateful.StatefulDataLoader(source, batch_size=None)
    state = loader.state_dict()  # which makes the iterator that the loop gets
    source.set_epoch(1)
    assert loader.state_dict() != state
    assert ids_of(loader)[0] == source.dataset.batch_ids(0, epoch=1).tolist()

"""Past bad batches: the rest comes as it would have come, on any number of ranks, wherever the run is stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.samples import write_tar_shards

import shoal
from shoal.errors import StateError, UsageError
from shoal.order.state_dict import sealed

NUM_SAMPLES = 200


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> shoal.Dataset:
    directory = tmp_path_factory.mktemp("data")
    write_tar_shards(directory)
    return shoal.open(str(directory / "train-*.tar"))


@pytest.fixture
def ds(data: shoal.Dataset) -> shoal.Dataset:
    return data.shuffle(shoal.orders.Window(8, 2), seed=1, chunk="8KiB").with_ids()


def batches(dataset: shoal.Dataset) -> list[list[int]]:
    return [batch["__id__"].tolist() for batch in dataset]


def flat(lists: list[list[int]]) -> list[int]:
    return [item for each in lists for item in each]


def on_ranks(dataset: shoal.Dataset, world_size: int) -> list[shoal.Dataset]:
    return [dataset.partition(rank=rank, world_size=world_size) for rank in range(world_size)]


def test_steps_are_left_out_and_nothing_else_changes(ds: shoal.Dataset) -> None:
    every = batches(ds.batch(16))
    without = ds.batch(16).without(steps=[3, 4, 9])
    assert batches(without) == [batch for step, batch in enumerate(every) if step not in (3, 4, 9)]
    assert without.state_dict()["epoch"] == 1
    other = ds.batch(16)
    other.set_epoch(1)
    assert batches(without) == batches(other)  # the next epoch is whole
    assert without.ids().tolist() == ds.ids().tolist()


def test_one_step_is_what_batch_ids_showed(ds: shoal.Dataset) -> None:
    batched = ds.batch(16)
    for step in (0, 5, 12):
        gone = batched.batch_ids(step).tolist()
        left = flat(batches(batched.without(step)))
        assert sorted([*left, *gone]) == list(range(NUM_SAMPLES))
    assert len(batched) == 13
    assert len(batched.without(0)) == 12
    assert batched.without(3).batch_ids(3).tolist() == batched.batch_ids(4).tolist()


def test_a_second_call_counts_what_is_left(ds: shoal.Dataset) -> None:
    batched = ds.batch(16)
    twice = batched.without(3).without(3)
    assert batches(twice) == batches(batched.without([3, 4]))
    assert twice.state_dict()["without"] == [[0, 48, 80]]
    far = batched.without(3).without(7)
    assert far.state_dict()["without"] == [[0, 48, 64], [0, 128, 144]]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("remainder", ["keep", "pad", "drop"])
def test_every_rank_gets_as_many_batches(ds: shoal.Dataset, world_size: int, remainder: str) -> None:
    without = ds.batch(global_batch_size=15, remainder=remainder).without(positions=[(20, 61), (199, 200)])
    parts = on_ranks(without, world_size)
    lengths = {len(part) for part in parts}
    lists = [list(part) for part in parts]
    assert {len(each) for each in lists} == lengths == {len(lists[0])}
    assert {len(part) for part in parts} == {13 if remainder == "drop" else 14}  # the next epoch is whole
    once = [
        int(sample)
        for each in lists
        for batch in each
        for sample, again in zip(batch["__id__"], batch.get("__pad__", [False] * len(batch["__id__"])), strict=True)
        if not again
    ]
    ids = ds.ids().tolist()
    left = [*ids[:20], *ids[61:199]]
    assert sorted(once) == sorted(left[: len(left) // 15 * 15] if remainder == "drop" else left)
    assert sum(part.stats()["num_repeats"] for part in parts) == (7 if remainder == "pad" else 0) + max(
        0, world_size - len(left) % 15 if remainder == "keep" else 0
    )


@pytest.mark.parametrize("stop", [0, 1, 2, 3, 6])
@pytest.mark.parametrize(("first_world", "then_world"), [(1, 1), (1, 3), (3, 2)])
def test_stopped_anywhere_it_goes_on_at_any_world_size(
    ds: shoal.Dataset, stop: int, first_world: int, then_world: int
) -> None:
    """Nothing missed, nothing twice; and the state brings the gaps along."""
    positions = [(30, 47), (90, 101)]
    parts = on_ranks(ds.batch(global_batch_size=18).without(positions=positions), first_world)
    before: list[int] = []
    states = []
    for part in parts:
        run = iter(part)
        for _ in range(stop):
            before += next(run)["__id__"].tolist()
        states.append(json.dumps(run.state_dict()))
        run.close()
    assert len(set(states)) == 1
    after: list[int] = []
    for part in on_ranks(ds.batch(global_batch_size=25), then_world):  # which has no gaps of its own
        part.load_state_dict(json.loads(states[0]))
        after += flat(batches(part))
    ids = ds.ids().tolist()
    assert sorted([*before, *after]) == sorted([*ids[:30], *ids[47:90], *ids[101:]])


def test_a_state_from_before_resumes_past_the_spike(ds: shoal.Dataset) -> None:
    """The usual case: the loss spiked at steps 6 and 7, and the last checkpoint is of step 4."""
    batched = ds.batch(16)
    run = iter(batched)
    first = [next(run)["__id__"].tolist() for _ in range(4)]
    checkpoint = batched.state_dict()
    assert "without" not in checkpoint
    again = ds.batch(16).without(steps=range(6, 8))
    again.load_state_dict(checkpoint)
    every = batches(ds.batch(16))
    assert [*first, *batches(again)] == [batch for step, batch in enumerate(every) if step not in (6, 7)]


def test_gaps_of_state_and_dataset_are_joined(ds: shoal.Dataset) -> None:
    one = ds.batch(16).without(2)
    next(iter(one))
    other = ds.batch(16).without(positions=[(160, 176)])
    other.load_state_dict(one.state_dict())
    assert other.state_dict()["without"] == [[0, 32, 48], [0, 160, 176]]
    every = batches(ds.batch(16))
    assert batches(other) == [batch for step, batch in enumerate(every) if step not in (0, 2, 10)]
    other.load_state_dict(ds.batch(16).state_dict())  # another state: what the first one brought is forgotten
    assert other.state_dict()["without"] == [[0, 160, 176]]


def test_a_position_inside_of_a_gap_is_its_end(ds: shoal.Dataset) -> None:
    run = ds.batch(16).without(positions=[(32, 64)])
    run.load_state_dict(ds.batch(16).state_at(48))
    assert run.state_dict()["position"] == 64
    assert flat(batches(run)) == ds.ids().tolist()[64:]


def test_the_state_is_small(ds: shoal.Dataset) -> None:
    ranges = [(10 * number, 10 * number + 5) for number in range(12)]
    state = ds.batch(16).without(positions=ranges).state_dict()
    huge = {
        **state,
        "position": 10**11,
        "without": [[17, 10**11 + number, 10**11 + number + 1] for number in range(12)],
    }
    assert len(json.dumps(huge)) < 1000
    assert "without" not in ds.batch(16).state_dict()
    for wrong, said in [
        ([[0, 5]], r"without\[0\] must be \[epoch, start, stop\]; got \[0, 5\]"),
        ([[0, 5, 5]], "positions to leave out in the state are invalid"),
        (7, "without must be a list"),
        ([["a", 1, 2]], r"without\[0\]\[0\] must be an integer"),
    ]:
        with pytest.raises(StateError, match=said):
            ds.batch(16).load_state_dict(sealed({**state, "without": wrong}))


def test_workers_and_choices_and_single_samples(ds: shoal.Dataset, data: shoal.Dataset) -> None:
    ids = ds.ids().tolist()
    assert [int(sample["__id__"]) for sample in ds.without(positions=[(5, 9)])] == [*ids[:5], *ids[9:]]
    assert len(ds.without(positions=[(5, 9)])) == 196
    chosen = data.shuffle(seed=2).skip(10).take(100).with_ids()
    gapped = chosen.batch(10).without(steps=1)
    expected = chosen.ids().tolist()
    assert flat(batches(gapped)) == [*expected[:10], *expected[20:]]
    full = data.shuffle("full", seed=2).with_ids()
    assert flat(batches(full.batch(7).without(positions=[(3, 50)]))) == [*full.ids()[:3], *full.ids()[50:]]


def test_a_certificate_tells_of_gaps(ds: shoal.Dataset) -> None:
    parts: list[dict[str, Any]] = []
    batched = ds.batch(16)
    run = iter(batched)
    for _ in range(3):
        next(run)
    parts.append(batched.certificate())
    for part in on_ranks(ds.batch(global_batch_size=20).without(positions=[(64, 96)]), 3):
        part.load_state_dict(batched.state_dict())
        list(part)
        parts.append(part.certificate())
    merged = shoal.merge_certificates(parts)
    assert merged["without"] == [[0, 64, 96]]
    assert merged["epochs"]["0"]["num_samples"] == NUM_SAMPLES - 32
    ds.check_certificate(merged)
    with pytest.raises(Exception, match="fewer"):
        ds.check_certificate({name: value for name, value in merged.items() if name != "without"})


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda ds: ds.batch(16).without(), "takes steps, or positions="),
        (lambda ds: ds.batch(16).without(3, positions=[(0, 1)]), "takes steps, or positions="),
        (lambda ds: ds.without(3), "but this dataset has none yet"),
        (lambda ds: ds.batch(16).without(13), "has steps 0 to 12"),
        (lambda ds: ds.batch(16).without([]), "given no step"),
        (lambda ds: ds.batch(16).without("3"), "must be an integer|whole number|integer"),
        (lambda ds: ds.batch(16).without(positions=[3]), "list of ranges"),
        (lambda ds: ds.batch(16).without(positions=[(9, 3)]), "is empty or impossible"),
        (lambda ds: ds.batch(16).without(positions=[(150, 201)]), "epoch 0 has 200"),
        (lambda ds: ds.batch(16).without(range(13)), "leaves none"),
        (lambda ds: ds.without(positions=[(0, 5)]).take(3), "before without"),
    ],
)
def test_what_cannot_be_left_out(ds: shoal.Dataset, call: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        call(ds)


def test_it_stands_behind_the_order(data: shoal.Dataset) -> None:
    with pytest.raises(UsageError, match=r"put shuffle\(\) before without\(\)"):
        data.without(positions=[(0, 5)]).shuffle(seed=0)


def test_torch_workers_leave_it_out_too(ds: shoal.Dataset, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import shoal.torch

    without = ds.batch(16).without([1, 5])
    expected = batches(ds.batch(16).without([1, 5]))
    loader = shoal.torch.DataLoader(without, num_workers=2)
    assert len(loader) == len(expected)
    found = []
    for number, batch in enumerate(loader):
        found.append(batch["__id__"].tolist())
        if number == 3:
            state = loader.state_dict()
    assert found == expected
    again = shoal.torch.DataLoader(ds.batch(16), num_workers=0)
    again.load_state_dict(state)
    assert [batch["__id__"].tolist() for batch in again] == expected[4:]

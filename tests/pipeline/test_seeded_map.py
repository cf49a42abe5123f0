"""Functions that get random numbers: for a sample of an epoch the same ones, whoever makes it."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.errors import UsageError
from shoal.order.seeds import generator, key
from shoal.stream.dataset import Dataset


def drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"id": sample["__id__"], "draw": rng.integers(1 << 62)}


def draws(dataset: Dataset) -> dict[int, int]:
    return {int(sample["id"]): int(sample["draw"]) for sample in dataset}


def augmented(dataset: Dataset, seed: Any = True) -> Dataset:
    return dataset.with_ids().map(drawn, seed=seed)


@settings(max_examples=20)
@given(st.integers(1, 7), st.integers(1, 50), st.integers(0, 196), st.integers(0, 2))
def test_draws_do_not_depend_on_ranks_batches_or_stops(
    tars: Dataset, world_size: int, size: int, position: int, epoch: int
) -> None:
    whole = augmented(tars.shuffle(seed=3))
    whole.set_epoch(epoch)
    expected = draws(whole)
    found: dict[int, int] = {}
    for rank in range(world_size):
        part = augmented(tars.shuffle(seed=3)).batch(size, remainder="drop").partition(rank=rank, world_size=world_size)
        part.load_state_dict(whole.state_at(position, epoch=epoch))
        for batch in part:
            found |= dict(zip(batch["id"].tolist(), batch["draw"].tolist(), strict=True))
    assert found.items() <= expected.items()
    assert len(found) == (197 - position) // (size * world_size) * size * world_size


def test_each_sample_epoch_and_seed_has_draws_of_its_own(tars: Dataset) -> None:
    shuffled = augmented(tars.shuffle(seed=3))
    found = [draws(shuffled), draws(shuffled), draws(augmented(tars.shuffle(seed=4))), draws(augmented(tars, seed=9))]
    assert len({draw for each in found for draw in each.values()}) == 4 * 197
    assert found[0] == draws(augmented(tars, seed=3))  # the seed of the order, and the same as a number


def test_each_map_has_draws_of_its_own(tars: Dataset) -> None:
    def more(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {**sample, "more": int(rng.integers(1 << 62))}

    found = list(augmented(tars.shuffle(seed=3)).map(more, seed=True).map(more, seed=9))
    assert {sample["id"]: sample["draw"] for sample in found} == draws(augmented(tars.shuffle(seed=3)))
    twice = [s["more"] for s in augmented(tars.shuffle(seed=3)).map(more, seed=True)]
    assert not {int(sample["draw"]) for sample in found} & set(twice)
    nine = draws(augmented(tars, seed=9))  # a number is a seed of its own, whatever comes before
    assert {int(sample["id"]): sample["more"] for sample in found} == nine


def test_the_generator_is_that_of_the_key(tars: Dataset) -> None:
    sample = augmented(tars.shuffle(seed=3))[17]
    assert sample["draw"] == generator(key(3, 0, "map", 17)).integers(1 << 62)
    # Philox is specified; these numbers are equal on every platform.
    assert generator(1).integers(1 << 62, size=2).tolist() == PHILOX_OF_ONE


PHILOX_OF_ONE = [1399960459453964471, 3913978274642887563]


def test_a_sample_by_id_is_that_of_the_stream(tars: Dataset) -> None:
    dataset = augmented(tars.shuffle(seed=3))
    by_id = {number: int(dataset[number]["draw"]) for number in range(197)}
    assert by_id == draws(dataset)


@pytest.mark.filterwarnings("ignore:the sources")
def test_a_source_of_a_mixture_keeps_its_draws(tars: Dataset, lines: Dataset) -> None:
    own = draws(augmented(tars.shuffle(seed=3)))
    source = augmented(tars.shuffle(seed=3))
    sources = {"lines": lines.map(lambda sample: {"id": -1, "draw": -1}), "tars": source}
    for mixed in (
        shoal.mix(sources, weights=dict.fromkeys(sources, 1), epoch_size=100),
        shoal.mix({"inner": shoal.mix(sources, weights=dict.fromkeys(sources, 1)), "more": lines}, epoch_size=100),
    ):
        found = {s["id"]: s["draw"] for s in mixed if s["__source__"].endswith("tars")}
        assert found
        assert found.items() <= own.items()


@pytest.mark.filterwarnings("ignore:the sources")
def test_maps_before_and_after_mixing_draw_other_numbers(tars: Dataset, lines: Dataset) -> None:
    sources = {"tars": augmented(tars), "lines": lines.map(lambda sample: {"id": -1, "draw": -1})}
    mixed = shoal.mix(sources, repeat=dict.fromkeys(sources, 1)).map(
        lambda sample, rng: {**sample, "more": rng.integers(1 << 62)}, seed=True
    )
    assert not [sample for sample in mixed if sample["draw"] == sample["more"]]
    outer = shoal.mix({"mixed": mixed, "lines": lines}, repeat={"mixed": 1, "lines": 1}).map(
        lambda sample, rng: {**sample, "most": rng.integers(1 << 62)}, seed=True
    )
    assert not [sample for sample in outer if sample.get("more") == sample["most"]]


def test_a_mixture_has_a_seed_of_its_own(tars: Dataset, lines: Dataset) -> None:
    sources = {"tars": tars.with_ids().columns("__id__"), "lines": lines.with_ids().columns("__id__")}
    mixed = [
        shoal.mix(sources, weights=dict.fromkeys(sources, 1), seed=seed, epoch_size=100).map(drawn, seed=True)
        for seed in (0, 0, 1)
    ]
    found = [{int(s["draw"]) for s in each} for each in mixed]
    assert found[0] == found[1]
    assert not found[0] & found[2]


def test_torch_gets_a_generator_of_its_own(tars: Dataset) -> None:
    torch = pytest.importorskip("torch")
    dataset = tars.shuffle(seed=3).map(
        lambda _, rng: torch.rand(2, generator=rng).tolist(), seed=True, generator="torch"
    )
    first = list(dataset)
    assert len({tuple(draw) for draw in first}) == 197
    dataset.set_epoch(0)
    assert list(dataset) == first


def test_the_stage_goes_to_workers(tars: Dataset) -> None:
    torch = pytest.importorskip("shoal.torch", reason="torch is not installed", exc_type=ImportError)
    dataset = augmented(tars.shuffle(seed=3)).batch(16)
    loader = torch.DataLoader(dataset, num_workers=2)
    found = {i: d for b in loader for i, d in zip(b["id"].tolist(), b["draw"].tolist(), strict=True)}
    assert found == draws(augmented(tars.shuffle(seed=3)))
    assert pickle.loads(pickle.dumps(dataset.stream.spec.stages[-1])).function is drawn


def test_what_cannot_be_seeded_is_refused(tars: Dataset) -> None:
    with pytest.raises(UsageError, match=r"map\(seed=\) works on samples, but was called after batch"):
        tars.batch(4).map(drawn, seed=True)
    with pytest.raises(UsageError, match="did you mean 'torch'"):
        tars.map(drawn, seed=1, generator="tortch")
    for seed in (None, -1, "yes"):
        with pytest.raises(UsageError, match="seed must be an integer"):
            tars.map(drawn, seed=seed)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"map\(\) takes a function"):
        tars.map(3, seed=True)  # type: ignore[arg-type]

"""Weights of a mixture as shares of tokens, where its epochs end, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import shoal
from shoal.errors import ShuffleWarning, StateError, UsageError
from shoal.stream.dataset import Dataset

TOKENS = {"short": 3, "long": 12}


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Dataset]:
    """Two datasets of 200 samples each, with 3 and 12 tokens in each sample."""
    for name, tokens in TOKENS.items():
        lines = "".join(json.dumps({"id": number, "length": tokens}) + "\n" for number in range(200))
        (tmp_path / f"{name}.jsonl").write_text(lines)
    return {name: shoal.open(tmp_path / f"{name}.jsonl", index_columns=["length"]) for name in TOKENS}


def shares_of_tokens(ds: shoal.mixing.MixedDataset, begin: int, end: int) -> list[float]:
    before, after = ds.counts(begin), ds.counts(end)
    tokens = {name: (after[name] - before[name]) * TOKENS[name] for name in TOKENS}
    return [round(tokens[name] / sum(tokens.values()), 3) for name in TOKENS]


def test_weights_are_shares_of_tokens(sources: dict[str, Dataset]) -> None:
    ds = shoal.mix(sources, weights={"short": 0.5, "long": 0.5}, unit="tokens", ends="forever")
    assert ds.weights_at(0) == {"short": 0.8, "long": 0.2}
    assert shares_of_tokens(ds, 0, 64_000) == [0.5, 0.5]


def test_changed_weights_are_shares_of_tokens_too(sources: dict[str, Dataset]) -> None:
    ds = shoal.mix(sources, weights={"short": 0.5, "long": 0.5}, unit="tokens", ends="forever")
    assert shares_of_tokens(ds.reweight(at=64, weights={"short": 0.3, "long": 0.7}), 64, 64_064) == [0.3, 0.7]
    alone = shoal.mix({"short": sources["short"]}, weights={"short": 1}, unit="tokens", ends="forever")
    added = alone.reweight(at=64, add={"long": sources["long"]}, weights={"short": 0.2, "long": 0.8})
    assert shares_of_tokens(added, 64, 64_064) == [0.2, 0.8]


def test_without_weights_sources_come_by_size_in_either_unit(sources: dict[str, Dataset]) -> None:
    parts = {"short": sources["short"], "long": sources["long"].take(50)}
    assert (
        shoal.mix(parts, unit="tokens").weights_at(0) == shoal.mix(parts).weights_at(0) == {"short": 0.8, "long": 0.2}
    )


def test_tokens_of_a_nested_mixture_are_those_of_its_weights(sources: dict[str, Dataset]) -> None:
    inner = shoal.mix(sources, weights={"short": 8, "long": 1}, ends="forever")  # 4 tokens a sample
    with pytest.warns(ShuffleWarning, match="the same data"):
        ds = shoal.mix({"inner": inner, "long": sources["long"]}, weights={"inner": 1, "long": 1}, unit="tokens")
    assert ds.weights_at(0) == {"inner": 0.75, "long": 0.25}


def test_tokens_of_a_sampled_source_are_those_of_its_copies(tmp_path: Path, sources: dict[str, Dataset]) -> None:
    lines = "".join(json.dumps({"length": tokens}) + "\n" for tokens in (1, 13))
    (tmp_path / "uneven.jsonl").write_text(lines)
    uneven = shoal.open(tmp_path / "uneven.jsonl", index_columns=["length"]).sample([3, 1], num_samples=4)
    ds = shoal.mix({"uneven": uneven, "long": sources["long"]}, weights={"uneven": 1, "long": 1}, unit="tokens")
    assert ds.weights_at(0) == {"uneven": 0.75, "long": 0.25}  # 4 tokens a sample, and 12


def test_tokens_are_no_unit_of_sizes(sources: dict[str, Dataset]) -> None:
    sizes = {"short": 1, "long": 2}
    with pytest.raises(UsageError, match="repeat= counts samples"):
        shoal.mix(sources, unit="tokens", repeat=sizes)
    with pytest.raises(UsageError, match="choose= counts samples"):
        shoal.mix(sources, unit="tokens", choose=sizes)


def test_a_name_that_is_nearly_right_is_named(sources: dict[str, Dataset]) -> None:
    with pytest.raises(UsageError, match="did you mean 'long'"):
        shoal.mix(sources, weights={"short": 1, "logn": 1})
    with pytest.raises(UsageError, match="0 leaves one out"):
        shoal.mix(sources, weights={"short": 1})
    with pytest.raises(UsageError, match="name every source"):
        shoal.mix(sources, weights={})


def test_an_epoch_has_samples(sources: dict[str, Dataset]) -> None:
    with pytest.raises(UsageError, match="epoch_size"):
        shoal.mix(sources, epoch_size=0)


@pytest.mark.parametrize("ends", ["first", "all"])
def test_batches_of_one_source_stay_so_in_later_epochs(sources: dict[str, Dataset], ends: str) -> None:
    choice = shoal.mixing.PerBatch(samples=16)
    ds = shoal.mix(sources, weights={"short": 0.7, "long": 0.3}, choice=choice, ends=ends).shuffle(seed=0).batch(16)
    assert ds.num_samples % 16 == 0
    for epoch in range(3):
        ds.set_epoch(epoch)
        assert all(len(set(batch["__source__"])) == 1 for batch in ds)


def test_a_source_smaller_than_a_batch_of_one_source_is_refused(sources: dict[str, Dataset]) -> None:
    choice = shoal.mixing.PerBatch(samples=256)
    with pytest.raises(UsageError, match='ends="first" would end the epoch'):
        shoal.mix(sources, choice=choice)
    assert shoal.mix(sources, choice=choice, ends="all").num_samples % 256 == 0


def test_a_state_brings_changes_before_its_position_along(sources: dict[str, Dataset]) -> None:
    def mixture() -> shoal.mixing.MixedDataset:
        return shoal.mix(sources, weights={"short": 1, "long": 1}, ends="forever").shuffle(seed=0).batch(16)

    changed = mixture().reweight(at=128, weights={"short": 3, "long": 1})
    resumed = mixture()
    resumed.load_state_dict(changed.state_at(640))
    for _, ours, theirs in zip(range(8), resumed, changed_from(changed, 640), strict=False):
        assert ours["__source__"] == theirs["__source__"]
        assert (ours["id"] == theirs["id"]).all()


def test_a_state_with_an_added_source_says_what_to_call(sources: dict[str, Dataset]) -> None:
    def mixture() -> shoal.mixing.MixedDataset:
        return shoal.mix({"short": sources["short"]}, ends="forever").shuffle(seed=0)

    added = mixture().reweight(at=64, add={"long": sources["long"]}, weights={"short": 1, "long": 1})
    with pytest.raises(StateError, match=r"with the source 'long'(.|\n)*add="):
        mixture().load_state_dict(added.state_at(640))


def changed_from(ds: Dataset, position: int) -> Dataset:
    ds.load_state_dict(ds.state_at(position))
    return ds


def test_all_ids_of_a_mixture_without_end_are_refused(sources: dict[str, Dataset]) -> None:
    ds = shoal.mix(sources, ends="forever")
    for endless in (ds, ds.shuffle(seed=0).skip(10)):
        with pytest.raises(UsageError, match="has no end"):
            endless.ids()
        assert len(endless.ids(0, 10**15, 10**15 + 5)) == 5


def test_a_source_whose_quality_cannot_be_measured_is_named(sources: dict[str, Dataset]) -> None:
    with pytest.raises(UsageError, match=r"the source 'short': .*'missing'"):
        shoal.mix(sources).shuffle(seed=0).quality(key="missing")


def test_repeats_beyond_those_allowed_are_refused_with_the_position(sources: dict[str, Dataset]) -> None:
    weights = {"short": 0.75, "long": 0.25}
    with pytest.raises(
        UsageError, match=r"'short' would come more often than max_repeats=1 allows: .* at position 2\d\d"
    ):
        shoal.mix(sources, weights=weights, ends="all", max_repeats=1)


@pytest.mark.parametrize(
    "call",
    [
        lambda ds: ds.split({"train": 0.9, "val": 0.1}),
        lambda ds: ds.sample("length"),
        lambda ds: ds.select(length=3),
    ],
)
def test_what_takes_stored_samples_is_referred_to_the_sources(
    sources: dict[str, Dataset], call: Callable[[Dataset], object]
) -> None:
    with pytest.raises(UsageError, match=r"on its sources, before mix\(\)"):
        call(shoal.mix(sources))

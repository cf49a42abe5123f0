"""Mixtures whose sources grow: at the borders of the mixture's epochs, and states name both datasets of each source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.stream.generations.arriving import Arriving, joined, taken

import shoal
from shoal.errors import UsageError
from shoal.mixing import Interleave
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Arriving]:
    sources = {name: Arriving(tmp_path / name) for name in ("web", "code")}
    sources["web"].arrive(["b.jsonl", "d.jsonl"], 10)
    sources["code"].arrive(["x.jsonl"], 8)
    return sources


def mixture(sources: dict[str, Arriving], *, size: int = 4, **how: Any) -> Dataset:
    opened = {
        "web": shoal.open(sources["web"].directory),
        "code": shoal.open(sources["code"].directory),
    }
    return shoal.mix(opened, **{"weights": {"web": 2, "code": 1}, **how}).shuffle(seed=2, window="64KiB").batch(size)


def loaded(ds: Dataset, state: dict[str, Any]) -> Dataset:
    ds.load_state_dict(json.loads(json.dumps(state)))
    return ds


@pytest.mark.parametrize("choice", ["even", Interleave()], ids=["endless", "epochs"])
def test_the_next_epoch_mixes_the_sources_that_are_there(
    sources: dict[str, Arriving], choice: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"choice": choice} if choice == "even" else {"choice": choice, "weights": None}
    ds = mixture(sources, **how)
    due = joined(taken(loaded(mixture(sources, **how), ds.state_dict())))
    first = joined(taken(ds, 2))
    sources["web"].arrive(["a.jsonl", "e.jsonl"], 7)
    extended = ds.extended()
    state = extended.state_dict()
    assert {"web", "code"} == state["next"]["index"].keys()
    assert state["next"]["shards"] == {"web": [2, 4], "code": 1}
    assert first + joined(taken(extended)) == due
    order = [*sources["web"].arrivals[:2], "a.jsonl", "e.jsonl"]
    grown = {
        "web": shoal.open([sources["web"].directory / name for name in order]),
        "code": shoal.open(sources["code"].directory),
    }
    weights: dict[str, Any] = {} if choice != "even" else {"weights": {"web": 2, "code": 1}}
    fresh = shoal.mix(grown, choice=choice, **weights).shuffle(seed=2, window="64KiB").batch(4)
    fresh.set_epoch(1)
    assert joined(taken(extended)) == joined(taken(fresh))
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "another"))
    resumed = loaded(mixture(sources, size=3, **how), state)
    assert joined(taken(resumed)) == due[8:]
    fresh.set_epoch(1)
    assert joined(taken(resumed)) == joined(taken(fresh))


def test_followed_sources_and_named_sources_grow_alike(sources: dict[str, Arriving]) -> None:
    whole = {"web": shoal.open(sources["web"].directory, follow=True), "code": shoal.open(sources["code"].directory)}
    followed = shoal.mix(whole).shuffle(seed=1, window="64KiB").batch(5)
    whole["web"] = shoal.open(sources["web"].directory)
    named = shoal.mix(whole).shuffle(seed=1, window="64KiB").batch(5)
    batches = [joined(taken(followed))], taken(named, 1)
    sources["web"].arrive(["a.jsonl"], 7)
    sources["code"].arrive(["y.jsonl"], 5)
    named = named.extended({"web": sources["web"].directory})
    assert batches[0][0] == batches[1][0] + joined(taken(named))
    for _ in range(2):
        assert taken(followed) == taken(named)
    assert followed.num_samples == named.num_samples
    assert followed.state_dict()["shards"] == {"web": [2, 3], "code": 1}  # this source is not followed


def test_changes_of_weights_stay_at_their_epoch(sources: dict[str, Arriving]) -> None:
    ds = shoal.mix(
        {name: shoal.open(source.directory) for name, source in sources.items()}, weights={"web": 1, "code": 1},
        epoch_size=20,
    ).shuffle(seed=1, window="64KiB").reweight(epoch=1, at=10, weights={"web": 1, "code": 0}).batch(5)  # fmt: skip
    taken(ds, 1)
    sources["web"].arrive(["a.jsonl"], 7)
    extended = ds.extended()
    taken(extended)
    sizes = [sum(name == "code" for name in batch["__source__"]) for batch in extended]
    assert sizes[:2] != [0, 0]
    assert sizes[2:] == [0, 0]


def test_what_cannot_be_mixed_again_is_refused(sources: dict[str, Arriving], tmp_path: Path) -> None:
    masked = mixture(sources)
    taken(masked, 1)
    with pytest.raises(UsageError, match="names the source 'wep'"):
        masked.extended({"wep": tmp_path})
    with pytest.raises(UsageError, match="mixture of web, code"):
        masked.extended(tmp_path)
    with pytest.raises(UsageError, match="the dataset has 2 sources, but the next one has 1"):
        masked.extended(shoal.open(sources["web"].directory))
    sources["web"].arrive(["a.jsonl"], 3)
    added = shoal.mix({"web": shoal.open(sources["web"].directory)}, ends="forever").reweight(
        at=64, weights={"web": 1, "code": 1}, add={"code": shoal.open(sources["code"].directory)}
    )
    taken(added.shuffle(seed=1, window="64KiB").batch(2), 1)
    sources["code"].arrive(["z.jsonl"], 3)
    with pytest.raises(UsageError, match=r"reweight\(add=\) added a source"):
        added.extended()

"""A state goes on with the shards that it knew, where more shards exist; or it is refused, and says what was tried."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from tests.stream.generations.arriving import Arriving, joined, order_of, shuffled, taken

import shoal
from shoal.errors import StateError
from shoal.indexing.generations.appending import append_shards
from shoal.indexing.index_files import save_index
from shoal.storage.files.local_store import LocalStore
from shoal.storage.sources.source import expand
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


@pytest.fixture
def arriving(tmp_path: Path) -> Arriving:
    return Arriving(tmp_path / "data")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes this machine another one, without the cached indexes of the machine before."""

    def move() -> None:
        monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / f"cache-{len(list(tmp_path.glob('cache*')))}"))

    return move


def begun(source: Any, num_batches: int = 2) -> tuple[dict[str, Any], list[int]]:
    """The state of a run behind some batches, and the ids that are left of its epoch."""
    ds = shuffled(source).batch(3)
    taken(ds, num_batches)
    state = ds.state_dict()
    ds.load_state_dict(state)
    return json.loads(json.dumps(state)), joined(taken(ds))


def goes_on(ds: Dataset, state: dict[str, Any], left: list[int]) -> Dataset:
    """The dataset behind the rest of the epoch, which is what is due."""
    ds.load_state_dict(state)
    assert joined(taken(ds)) == left
    return ds


@pytest.mark.parametrize("new", ["z.jsonl", "b.jsonl"], ids=["sorted last", "sorted between"])
def test_shards_that_came_later_take_no_part(
    arriving: Arriving, elsewhere: Any, new: str, caplog: pytest.LogCaptureFixture
) -> None:
    old = arriving.arrive(["a.jsonl", "c.jsonl", "d.jsonl"])
    state, left = begun(arriving.directory)
    arriving.arrive([new])
    elsewhere()
    with caplog.at_level(logging.WARNING):
        ds = goes_on(shuffled(arriving.directory).batch(5), state, left)
    assert caplog.text.count("the first 3 of 4 shards by") + caplog.text.count("3 of 4 shards in their order") == 1
    assert "as of the loaded state: the first 3 of 4 shards" in repr(ds)
    assert "the first 3 of 4 shards" in ds.stats()["recovered"]
    for epoch in (1, 2):
        assert joined(taken(ds)) == order_of(arriving, old, epoch)
    assert ds.num_samples == len(arriving.ids_in(old)) == len(ds.as_map())


def test_a_state_of_an_older_version_has_no_number_of_shards(arriving: Arriving, elsewhere: Any) -> None:
    arriving.arrive(["a.jsonl", "c.jsonl", "d.jsonl"])
    ds = shuffled(arriving.directory).batch(3)
    taken(ds, 2)
    state = older(ds.state_dict())
    left = joined(taken(goes_on_from(ds)))
    arriving.arrive(["b.jsonl", "e.jsonl"])
    elsewhere()
    goes_on(shuffled(arriving.directory).batch(4), state, left)


def goes_on_from(ds: Dataset) -> Dataset:
    ds.load_state_dict(ds.state_dict())
    return ds


def older(state: dict[str, Any]) -> dict[str, Any]:
    """The state as versions before 0.9 wrote it: without sizes, and summed without them."""
    from shoal.order.state_dict import sealed

    return sealed({name: value for name, value in state.items() if name not in ("shards", "check")})


def test_times_decide_nothing_by_themselves(arriving: Arriving, elsewhere: Any) -> None:
    """Copied shards have other times: the index of a machine knows the shards of the state, and else it is refused."""
    arriving.arrive(["c.jsonl", "d.jsonl"])
    state, left = begun(arriving.directory)
    arriving.arrive(["a.jsonl"])
    for number, name in enumerate(["a.jsonl", "c.jsonl", "d.jsonl"]):
        os.utime(arriving.directory / name, (number, number))
    ds = goes_on(shuffled(arriving.directory).batch(3), state, left)
    assert "an index in the cache of this machine" in repr(ds)
    elsewhere()
    ds = shuffled(arriving.directory).batch(3)
    with pytest.raises(
        StateError, match=r"2 shards were not found among 3 shards; tried: .* by name, and by time"
    ) as no:
        ds.load_state_dict(state)
    assert "--append" in (no.value.hint or "")
    assert (ds.epoch, ds.state_dict()["position"], ds.num_samples) == (0, 0, 21)


def test_an_index_knows_its_generations(arriving: Arriving, elsewhere: Any, tmp_path: Path) -> None:
    arriving.arrive(["c.jsonl", "d.jsonl"])
    state, left = begun(arriving.directory)
    index = shuffled(arriving.directory).stream.opened.index
    ds = shuffled(arriving.directory)
    for name in ("a.jsonl", "b.jsonl"):
        arriving.arrive([name])
        opened = ds.stream.opened
        source = expand(arriving.directory, suffixes=(".jsonl",))
        index = append_shards(index, source, store=LocalStore(), format=opened.format).index
    file = save_index(index, tmp_path / "grown.index", store=LocalStore())
    for number, name in enumerate(sorted(arriving.arrivals)):
        os.utime(arriving.directory / name, (number, number))
    elsewhere()
    ds = goes_on(shuffled(arriving.directory, index=file).batch(5), state, left)
    assert "a generation that the index records" in repr(ds)


def test_a_changed_shard_is_no_earlier_dataset(arriving: Arriving, elsewhere: Any) -> None:
    arriving.arrive(["a.jsonl", "b.jsonl"])
    state, _ = begun(arriving.directory)
    arriving.arrive(["c.jsonl"])
    path = arriving.directory / "a.jsonl"
    path.write_text(path.read_text().replace("\n", " \n", 1))
    elsewhere()
    with pytest.raises(StateError, match="the state belongs to dataset"):
        shuffled(arriving.directory).batch(3).load_state_dict(state)


def test_samples_chosen_by_column_are_chosen_again(arriving: Arriving, elsewhere: Any) -> None:
    """A choice from the index is made on the shards that the state knew; a mask of another size cannot be."""

    def chosen(columns: Any, **how: Any) -> Dataset:
        ds = shoal.open(arriving.directory, index_columns=["id"])
        return ds.select(columns, **how).skip(2).shuffle(seed=1).take(9).batch(2)

    arriving.arrive(["b.jsonl", "c.jsonl"])
    for how in ({"columns": None, "id": lambda ids: ids % 2 == 0}, {"columns": [True] * 14}):
        ds = chosen(**how)
        taken(ds, 2)
        state, left = ds.state_dict(), joined(taken(goes_on_from(ds)))
        if "id" in how:
            arriving.arrive(["a.jsonl"])
            elsewhere()
            goes_on(chosen(**how), state, left)
            (arriving.directory / "a.jsonl").unlink()
        else:
            arriving.arrive(["a1.jsonl"])
            with pytest.raises(StateError, match="the samples cannot be chosen as now"):
                chosen([True] * 21).load_state_dict(state)

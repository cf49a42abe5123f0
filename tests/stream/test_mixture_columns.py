"""Batches of a mixture gathered from columns are those that collating its samples gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pipeline.test_gathering import mds_shard, same
from tests.stream.made import write_lines

import shoal
from shoal.errors import ShoalError, UsageError
from shoal.mixing import PerBatch, PerRank
from shoal.pipeline.columns.unit_columns import Rows
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

ALIKE = ("plain", "wide", "renamed")
"""Sources of MDS with the same columns, after stages of their own and in other places of a record."""


def as_they_are(sample: Any) -> Any:
    return sample


def write_mds(directory: Path, names: dict[str, str], sizes: list[int], kind: type = np.uint16) -> None:
    """Shards of an id, tokens and something else, under these names and in this order."""
    directory.mkdir()
    random, first = np.random.default_rng(len(names)), 0
    for shard, size in enumerate(sizes):
        columns: dict[str, np.ndarray] = {
            "id": np.arange(first, first + size, dtype=np.int32)[:, None],
            "tokens": random.integers(0, 2**16, (size, 16)).astype(kind),
            "extra": random.random((size, 3)),
        }
        data = mds_shard({name: columns[what] for name, what in names.items()})
        (directory / f"{shard}.mds").write_bytes(data)
        first += size


def write_parquet(directory: Path, length: int) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    directory.mkdir()
    rows = range(60)
    columns = {
        "id": pa.array([[row] for row in rows], pa.list_(pa.int32())),
        # Some row groups of ragged lists have one length, and are arrays until others are met.
        "tokens": pa.array([[row] * (16 if row < 30 else length or row % 3) for row in rows], pa.list_(pa.uint16())),
        "number": pa.array(rows, pa.int16()),
    }
    pq.write_table(pa.table(columns), directory / "0.parquet", row_group_size=7)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("columns")
    write_mds(found / "plain", {"id": "id", "tokens": "tokens"}, [40, 33])
    write_mds(found / "wide", {"extra": "extra", "id": "id", "tokens": "tokens"}, [70])
    write_mds(found / "renamed", {"number": "id", "extra": "extra", "tokens": "tokens"}, [9, 50, 1])
    write_mds(found / "other", {"id": "id", "tokens": "tokens"}, [30], np.int64)
    write_parquet(found / "parquet", 16)
    write_parquet(found / "ragged", 0)
    write_lines(found / "lines", [20])
    return found


def sources_in(home: Path) -> dict[str, Dataset]:
    return {
        "plain": shoal.open(home / "plain"),
        "wide": shoal.open(home / "wide").columns("id", "tokens"),
        "renamed": shoal.open(home / "renamed").rename(id="id;number").columns("id", "tokens"),
        "other": shoal.open(home / "other"),
        "bare": shoal.open(home / "plain").columns("tokens"),
        "parquet": shoal.open(home / "parquet").columns("id", "tokens"),
        "ragged": shoal.open(home / "ragged").columns("id", "tokens"),
        "lines": shoal.open(home / "lines"),
    }


@pytest.fixture
def gathers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each gather."""
    sizes: list[int] = []
    gather = Rows.gather

    def counted(self: Rows, at: int, rows: Any, firsts: Any) -> None:
        sizes.append(len(rows))
        gather(self, at, rows, firsts)

    monkeypatch.setattr(Rows, "gather", counted)
    return sizes


DESCRIBED: dict[str, Callable[[Dataset], Dataset]] = {
    "as it is": lambda ds: ds,
    "ids": lambda ds: ds.with_ids(),
    "columns": lambda ds: ds.columns("tokens", "__source__"),
    "tokens": lambda ds: ds.columns("tokens"),
    "rename": lambda ds: ds.rename(origin="__source__").with_ids(),
    "tuple": lambda ds: ds.to_tuple("__source__", "tokens"),
    "take": lambda ds: ds.take(77),
    "python": lambda ds: ds.format("python"),
    "numpy": lambda ds: ds.format("numpy"),
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20)
@given(
    names=st.lists(
        st.sampled_from([*ALIKE, "other", "bare", "parquet", "ragged", "lines"]), min_size=1, max_size=5, unique=True
    ),
    weights=st.lists(st.integers(1, 9), min_size=5, max_size=5),
    choice=st.sampled_from(["even", "random", PerBatch(samples=12), PerRank(samples=4)]),
    missing=st.sampled_from(["none", {"id": 7, "tokens": 0}]),
    shuffle=st.sampled_from([{}, {"order": "full"}, {"window": "2KiB"}, {"window": "20KiB", "num_canonical_nodes": 1}]),
    described=st.sampled_from(sorted(DESCRIBED)),
    world=st.integers(1, 3),
    size=st.integers(1, 80),
    remainder=st.sampled_from(["keep", "pad", "drop"]),
    stop=st.integers(0, 9),
)
def test_batches_are_those_of_collated_samples_from_any_position(
    names: list[str],
    weights: list[int],
    choice: Any,
    missing: Any,
    shuffle: dict[str, Any],
    described: str,
    world: int,
    size: int,
    remainder: str,
    stop: int,
    home: Path,
) -> None:
    if described in ("columns", "tokens", "tuple"):
        names = [name for name in names if name != "lines"] or ["plain"]
    sources = {name: sources_in(home)[name] for name in names}
    shuffle = dict(shuffle)
    order = (shuffle.pop("order"),) if "order" in shuffle else ()

    def mixed(rank: int, *, collated: bool) -> Dataset:
        shares = dict(zip(names, weights, strict=False))
        mixture = shoal.mix(sources, weights=shares, choice=choice, missing=missing, epoch_size=150)
        ds = DESCRIBED[described](mixture.shuffle(*order, seed=2, **shuffle))
        ds = ds.map(as_they_are) if collated else ds
        return ds.batch(size, remainder=remainder).partition(rank=rank, world_size=world)

    for rank in range(world):
        gathered, collated = iter(mixed(rank, collated=False)), iter(mixed(rank, collated=True))
        for _ in range(stop):
            one, other = next(gathered, None), next(collated, None)
            assert same(one, other)
            assert gathered.state_dict() == collated.state_dict()
        state = json.loads(json.dumps(gathered.state_dict()))
        resumed = mixed(rank, collated=False)
        resumed.load_state_dict(state)
        again, rest = iter(resumed), list(collated)
        assert state["epoch"] or same([list(gathered)], [rest])
        if not state["epoch"]:
            assert same(list(again), rest)


def test_columns_that_are_alike_are_gathered_at_once_whatever_lies_beside_them(home: Path, gathers: list[int]) -> None:
    sources = sources_in(home)
    ds = shoal.mix({name: sources[name] for name in ALIKE}, epoch_size=200).shuffle(seed=1, window="1MiB")
    batches = list(ds.batch(40))
    assert gathers == [40] * 5
    assert {name for batch in batches for name in batch["__source__"]} == set(ALIKE)
    gathers.clear()
    list(ds.filter(bool).batch(40))
    list(ds.reading(memory_limit="1MiB").batch(40))
    list(shoal.mix({"lines": sources["lines"], "plain": sources["plain"]}, missing="none").batch(8))
    assert not gathers


def test_the_window_is_in_memory_once_however_a_batch_is_made(home: Path) -> None:
    sources = sources_in(home)
    ds = shoal.mix({name: sources[name] for name in ALIKE}, epoch_size=400).shuffle(seed=1, window="6KiB")
    gathered, collated = ds.batch(16), ds.map(as_they_are).batch(16)
    assert len(list(gathered)) == len(list(collated))
    assert gathered.stats()["peak_held_bytes"] <= collated.stats()["peak_held_bytes"]


def test_a_nested_mixture_is_gathered_and_has_the_names_of_its_datasets(home: Path, gathers: list[int]) -> None:
    sources = sources_in(home)
    inner = shoal.mix({"plain": sources["plain"], "wide": sources["wide"]})
    ds = shoal.mix({"inner": inner, "renamed": sources["renamed"]}).shuffle(seed=1)
    gathered = list(ds.batch(16))
    assert sum(gathers) == ds.num_samples
    assert {name for batch in gathered for name in batch["__source__"]} == {"inner/plain", "inner/wide", "renamed"}
    assert same(gathered, list(ds.map(as_they_are).batch(16)))
    # Stages of a nested mixture are applied to its samples.
    ds = shoal.mix({"inner": inner.columns("tokens", "id"), "renamed": sources["renamed"]}).shuffle(seed=1)
    assert same(list(ds.batch(16)), list(ds.map(as_they_are).batch(16)))


def test_types_that_sources_disagree_about_are_those_of_values(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name, stored, kind in (("days", pa.int32(), pa.date32()), ("moments", pa.int64(), pa.timestamp("us"))):
        pq.write_table(pa.table({"when": pa.array([1, 2, 3] * 9, stored).cast(kind)}), tmp_path / f"{name}.parquet")
    sources = {name: shoal.open(tmp_path / f"{name}.parquet") for name in ("days", "moments")}
    for form in ("numpy", "arrow", "python", None):
        ds = shoal.mix(sources, choice=PerBatch(samples=3)).shuffle(seed=0)
        ds = ds if form is None else ds.format(form)
        gathered, collated = list(ds.batch(3)), list(ds.map(as_they_are).batch(3))
        if form == "arrow":
            assert all(one.equals(other) for one, other in zip(gathered, collated, strict=True))
        else:
            assert same(gathered, collated)


def test_a_source_with_a_field_named_source_is_refused(tmp_path: Path) -> None:
    shard = mds_shard({"__source__": np.ones((9, 1), np.int32)})
    for name in ("one", "other"):
        (tmp_path / f"{name}.mds").write_bytes(shard)
    sources = {name: shoal.open(tmp_path / f"{name}.mds") for name in ("one", "other")}
    with pytest.raises(UsageError, match=r"samples of '(one|other)' have a field '__source__'"):
        list(shoal.mix(sources).batch(4))
    sources = {name: ds.rename(own="__source__") for name, ds in sources.items()}
    assert sorted(next(iter(shoal.mix(sources).batch(4)))) == ["__source__", "own"]


def test_a_field_that_a_source_lacks_is_named(home: Path) -> None:
    sources = sources_in(home)
    both = {"plain": sources["plain"].columns("id"), "wide": sources["wide"].columns("tokens").columns("id")}
    with pytest.raises(UsageError, match=r"columns\(\) needs the field 'id'; this sample has 'tokens'"):
        list(shoal.mix(both).batch(8))


def test_a_file_that_is_cut_short_is_told_at_its_batch(home: Path, tmp_path: Path) -> None:
    for name in ALIKE[:2]:
        (tmp_path / f"{name}.mds").write_bytes((home / name / "0.mds").read_bytes())
    sources = {
        "plain": shoal.open(tmp_path / "plain.mds"),
        "wide": shoal.open(tmp_path / "wide.mds").columns("id", "tokens"),
    }
    with (tmp_path / "wide.mds").open("r+b") as file:
        file.truncate((tmp_path / "wide.mds").stat().st_size - 50)
    iterator = iter(shoal.mix(sources).batch(8))
    with pytest.raises(ShoalError, match=r"wide\.mds"):
        list(iterator)
    assert iterator.state_dict()["position"] % 8 == 0

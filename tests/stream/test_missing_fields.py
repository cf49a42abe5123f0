"""Sources of a mixture with other fields: refused before anything is read where fields are known, or else filled."""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.samples import write_sample_data

import shoal
from shoal.errors import UsageError
from shoal.pipeline.missing_fields import declared_fields
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

NUM = 40
PACKED = ("parquet", "arrow", "mds", "jsonl")
DECLARING = ("parquet", "arrow", "mds", "csv", "csv.gz")
Make = Callable[..., Dataset]


def write(home: Path, kind: str, fields: tuple[str, ...]) -> Dataset:
    """A dataset of this kind, whose samples have these fields."""
    path = home / f"{'-'.join(fields)}.{kind}"
    rows = [dict.fromkeys(fields, number) for number in range(NUM)]
    if path.exists():
        return shoal.open(path)
    if kind in PACKED:
        shoal.pack.pack(rows, path, format=kind)
        return shoal.open(path)
    text = "\n".join([",".join(fields), *(",".join(map(str, row.values())) for row in rows), ""]).encode()
    path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
    return shoal.open(path)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    home = tmp_path_factory.mktemp("fields")
    return lambda kind, *fields: write(home, kind, fields)


def batches(sources: dict[str, Dataset], **arguments: Any) -> Dataset:
    return shoal.mix(sources, **arguments).shuffle(seed=0).batch(8)


@pytest.mark.parametrize("kind", DECLARING)
def test_other_fields_are_refused_before_anything_is_read(kind: str, make: Make) -> None:
    ds = batches({"a": make(kind, "x", "y"), "b": make(kind, "x", "z"), "c": make("jsonl", "w")})
    message = r"'a' has no field 'z', which 'b' has: .*\n.*\.columns\('x'\) keeps common fields; mix\(missing="
    with pytest.raises(UsageError, match=message):
        iter(ds)
    with pytest.raises(UsageError, match="'a' has no field 'z'"):
        next(iter(shoal.torch.DataLoader(ds, num_workers=0)))
    assert ds.stats()["num_requests"] == 0
    single = shoal.mix({"a": make(kind, "x", "y"), "b": make(kind, "x", "z")})
    assert {tuple(sample) for sample in single} == {("x", "y", "__source__"), ("x", "z", "__source__")}
    spec = ds.stream.iterator_spec(list)  # a collation of the user's own
    assert spec.work.pipeline.collator is list


def test_stages_make_fields_the_same(make: Make) -> None:
    a, b = make("parquet", "x", "y"), make("mds", "x", "z")
    for same in (
        shoal.mix({"a": a, "b": b}).columns("x"),
        shoal.mix({"a": a.columns("x"), "b": b.columns("x")}),
        shoal.mix({"a": a, "b": b.rename(y="z")}),
        shoal.mix({"a": a, "b": b.map(lambda sample: {"x": sample["x"], "y": 0})}),
        shoal.mix({"a": a, "b": b}).map(lambda sample: {"x": sample["x"]}),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            warnings.simplefilter("ignore", shoal.errors.ShuffleWarning)
            assert sum(len(batch["x"]) for batch in same.shuffle(seed=0).batch(8)) == same.num_samples
    with pytest.raises(UsageError, match="'b' has no field '__epoch__', which 'a' has, nor '__id__', 'y'"):
        iter(batches({"a": a.with_ids(), "b": b.columns("x")}))


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_missing_says_what_a_sample_gets(kind: str, make: Make) -> None:
    sources = {"a": make(kind, "x", "y"), "b": make(kind, "x", "z")}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", shoal.errors.ShuffleWarning)
        for batch in batches(sources, missing="none"):
            has_y = [name == "a" for name in batch["__source__"]]
            assert [value is not None for value in batch["y"]] == has_y
            assert [value is None for value in batch["z"]] == has_y
        for batch in batches(sources, missing={"y": -1, "z": -2, "x": -3}):
            is_a = np.array(batch["__source__"]) == "a"
            assert (batch["y"] == np.where(is_a, batch["x"], -1)).all()
            assert (batch["z"] == np.where(is_a, -2, batch["x"])).all()
    ds = shoal.mix(sources, missing={"y": -1, "z": -2})
    assert [ds[number]["z"] for number in (0, NUM)] == [-2, 0]
    assert (ds.sources, list(ds[NUM])) == (("a", "b"), ["x", "z", "y", "__source__"])


def test_values_for_some_fields_leave_others_to_the_rule(make: Make) -> None:
    sources = {"a": make("parquet", "x", "y"), "b": make("parquet", "x", "z")}
    with pytest.raises(UsageError, match="'a' has no field 'z'"):
        iter(batches(sources, missing={"y": 0}))


def test_nested_and_added_sources_are_filled_as_well(make: Make) -> None:
    a, b, c = (make("parquet", "x", name) for name in "yzw")
    inner = shoal.mix({"a": a, "b": b}, missing={"y": 1, "z": 2, "w": 3})
    ds = shoal.mix({"inner": inner, "c": c}, missing={"y": 4, "z": 5}).shuffle(seed=0)
    found = {sample["__source__"]: set(sample) for sample in ds}
    assert found == {name: {"x", "y", "z", "w", "__source__"} for name in ("inner/a", "inner/b", "c")}
    assert set(next(iter(ds.batch(8)))) == {"x", "y", "z", "w", "__source__"}
    grown = shoal.mix({"a": a}, missing={"z": 7}, ends="all").reweight(at=5, weights={"a": 1, "b": 1}, add={"b": b})
    assert grown[NUM] == {"x": 0, "z": 0, "__source__": "b"}
    with pytest.raises(UsageError, match="'b' has no field 'y', which 'a' has:"):
        iter(grown.batch(8))


def test_a_warning_tells_of_what_only_samples_show(make: Make) -> None:
    sources = {"a": make("jsonl", "x", "y"), "b": make("jsonl", "x")}
    ds = batches(sources)
    with pytest.warns(UserWarning, match="samples of 'b' have no field 'y', .* None there; mix") as caught:
        found = list(ds)
    assert len([each for each in caught if each.category is UserWarning]) == 1
    assert any(None in batch["y"] for batch in found)
    optional = {name: source.map(_without_odd_y) for name, source in (("a", sources["a"]), ("b", sources["a"]))}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", shoal.errors.ShuffleWarning)
        assert all(None in batch["y"] for batch in shoal.mix(optional).batch(40))  # optional in each source
        list(batches(sources, missing={"y": 0}))
        list(shoal.mix(sources).shuffle(seed=0))


def _without_odd_y(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sample.items() if name != "y" or value % 2 == 0}


@pytest.mark.parametrize(
    ("missing", "hint"),
    [("non", "did you mean 'none'"), (0, "missing="), ({3: 0}, "missing="), (True, "missing="), (["x"], "missing=")],
)
def test_what_missing_can_be(missing: Any, hint: str, make: Make) -> None:
    with pytest.raises(UsageError, match=hint):
        shoal.mix({"a": make("jsonl", "x")}, missing=missing)


def test_a_mixture_file_says_it_too(make: Make, tmp_path: Path) -> None:
    paths = [f"{{path: '{make('parquet', 'x', name).stream.opened.paths[0]}'}}" for name in "yz"]
    for text, expected in (("none", {None}), ("{y: 1, z: 2}", {2})):
        path = tmp_path / f"{len(text)}.yaml"
        path.write_text(f"sources: {{a: {paths[0]}, b: {paths[1]}}}\nmissing: {text}\nshuffle: true\n")
        rows = [row for batch in shoal.open(path).batch(8) for row in zip(batch["__source__"], batch["z"], strict=True)]
        assert {z for name, z in rows if name == "a"} == expected
    path.write_text(f"sources: {{a: {paths[0]}}}\nmissing: non\n")
    with pytest.raises(UsageError, match="line 2, column 10"):
        shoal.open(path)


@pytest.fixture(scope="module")
def stored(make: Make, tmp_path_factory: pytest.TempPathFactory) -> list[Dataset]:
    home = tmp_path_factory.mktemp("stored")
    write_sample_data(home)
    divided = tmp_path_factory.mktemp("divided")
    below = divided / "lang=en"
    shoal.pack.pack([{"x": 1, "y": 2}], below, format="parquet")
    found = [make(kind, "x", "y", "z") for kind in (*DECLARING, "jsonl")]
    return [*found, shoal.open(home / "mds"), shoal.open(home / "litdata"), shoal.open(divided, format="parquet")]


@settings(deadline=None)
@given(data=st.data())
def test_declared_fields_are_those_of_samples(data: st.DataObject, stored: list[Dataset]) -> None:
    number = data.draw(st.integers(0, len(stored) - 1))
    ds = stored[number]
    for _ in range(data.draw(st.integers(0, 4))):
        names = sorted(ds[0])
        one = data.draw(st.sampled_from(names))
        verb = data.draw(st.sampled_from(["columns", "rename", "decode", "with_ids", "filter"]))
        if verb == "columns":
            ds = ds.columns(*data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True)))
        elif verb == "rename":
            ds = ds.rename(**{data.draw(st.sampled_from(["x", "new", *names])): f"none;{one}"})
        elif verb == "decode":
            ds = ds.decode()
        elif verb == "filter":
            ds = ds.filter(bool)
        elif not {"__id__", "__epoch__"} & set(names):
            ds = ds.with_ids()
    opened, stages = ds.stream.opened, ds.stream.spec.stages
    declared = declared_fields(opened, stages)
    assert (declared is None) == (opened.format.name == "jsonl")
    assert declared in (None, set(ds[0]))
    assert declared_fields(opened, (*stages, *ds.map(dict).stream.spec.stages[-1:])) is None

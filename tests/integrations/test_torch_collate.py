"""Batches of tensors and of nested values: what torch's own rules make of them, where these do not fail."""

from __future__ import annotations

import io
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.integrations import stages
from tests.samples import write_tar
from torch.utils.data import default_collate

from shoal.pipeline.collate import collate, nested
from shoal.pipeline.tensors import tensors
from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset
from shoal.torch import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

Pair = namedtuple("Pair", "first second")  # noqa: PYI024  # as users write them


class Point(NamedTuple):
    x: Any
    y: Any


def same(ours: Any, theirs: Any) -> bool:
    """Whether two batches are equal, but that torch gives the columns of tuples as a list."""
    if isinstance(theirs, torch.Tensor):
        return isinstance(ours, torch.Tensor) and ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    if isinstance(theirs, Mapping):
        return ours.keys() == theirs.keys() and all(same(ours[name], theirs[name]) for name in theirs)
    if hasattr(theirs, "_fields") and type(ours) is not type(theirs):
        return False
    if isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return bool(ours == theirs)


def test_threads_of_torch_are_not_used_for_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait in a busy loop, which takes the cores from threads that decode."""
    samples = [torch.full((3, 4, 5), number, dtype=torch.uint8).permute(2, 0, 1) for number in range(6)]
    expected = torch.stack(samples)
    conjugated, halves = [torch.ones(2) * 1j] * 2, [torch.ones(2, dtype=torch.bfloat16)] * 2
    assert torch.equal(collate([value.conj() for value in conjugated]), torch.stack(conjugated).conj())
    assert torch.equal(collate(halves), torch.stack(halves))
    monkeypatch.setattr(torch, "stack", None)
    found = collate(samples)
    assert torch.equal(found, expected)
    assert found.is_contiguous()
    assert found.resize_(2, 2).shape == (2, 2)  # its memory is torch's own


KINDS = [torch.uint8, torch.int64, torch.float32, torch.bfloat16, torch.bool, torch.complex64]


def tensors_like(kind: torch.dtype, shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    return st.integers(0, 1).map(lambda number: torch.full(shape, number).to(kind))


def arrays_like(kind: str, shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    return st.integers(0, 100).map(lambda number: np.full(shape, number, dtype=kind))


SHAPES = st.sampled_from([(), (3,), (2, 1), (0,)])
LEAVES = st.one_of(
    st.builds(tensors_like, st.sampled_from(KINDS), SHAPES),
    st.builds(arrays_like, st.sampled_from(["i4", "f8", "u1", "?"]), SHAPES),
    st.sampled_from([
        st.integers(-(2**62), 2**62),
        st.floats(allow_nan=False),
        st.booleans(),
        st.text(max_size=3),
        st.binary(max_size=3),
        st.integers(0, 9).map(np.float32),
    ]),
)  # fmt: skip


def values_of(values: Any) -> Any:
    """Ways to hold values of these kinds: each a strategy for samples that are alike."""
    some = st.lists(values, min_size=1, max_size=3)
    return st.one_of(
        st.dictionaries(st.sampled_from("abc"), values, min_size=1, max_size=3).map(st.fixed_dictionaries),
        some.map(lambda parts: st.tuples(*parts)),
        st.tuples(values, values).map(lambda two: st.builds(Pair, *two)),
        st.tuples(values, values).map(lambda two: st.builds(Point, *two)),
        st.lists(st.builds(tensors_like, st.sampled_from(KINDS), SHAPES), min_size=1, max_size=3).map(
            lambda parts: st.tuples(*parts).map(list)
        ),
    )


SAMPLES = st.recursive(LEAVES, values_of, max_leaves=6).flatmap(lambda one: st.lists(one, min_size=1, max_size=4))


@settings(max_examples=25)
@given(SAMPLES)
def test_values_that_torch_collates_become_the_same(samples: list[Any]) -> None:
    assert same(tensors(nested(collate(samples))), default_collate(samples))
    fields = [{"x": sample, "y": 1} for sample in samples]
    assert same(tensors(nested(collate(fields))), default_collate(fields))


@pytest.mark.parametrize(
    "values",
    [
        [torch.zeros(2), torch.zeros(3)],
        [torch.zeros(2), torch.zeros(2, dtype=torch.int64)],
        [torch.zeros(2), np.zeros(2)],
        [torch.zeros(2), None],
        [torch.tensor(1), 1],
        [torch.zeros(2).to_sparse()] * 2,
        [{"a": 1}, {"b": 1}],
        [{"a": 1}, None],
        [{}, {}],
        [(1, 2), (1,)],
        [(), ()],
        [Pair(1, 2), Point(1, 2)],
        [Pair(1, 2), (1, 2)],
        [[1, 2], [3, 4]],
        [["a"], ["b"]],
        [[torch.zeros(1)], [torch.zeros(1), torch.zeros(1)]],
    ],
)
def test_what_has_no_common_shape_stays_a_list(values: list[Any]) -> None:
    got = nested(collate([{"x": value} for value in values]))["x"]
    assert [type(value) for value in got] == [type(value) for value in values]
    assert all(one is other for one, other in zip(got, values, strict=True))


def test_samples_of_other_kinds_of_dicts_and_tuples() -> None:
    assert nested(collate([OrderedDict(a="x"), OrderedDict(a="y")])) == {"a": ["x", "y"]}
    got = nested(collate([Point("x", (1, "y")), Point("z", (2, "w"))]))
    assert type(got) is Point
    assert got.x == ["x", "z"]
    assert [got.y[0].tolist(), got.y[1]] == [[1, 2], ["y", "w"]]
    shapes = nested(collate([torch.zeros(2, 3).shape, torch.zeros(4, 5).shape]))
    assert type(shapes) is tuple
    assert [column.tolist() for column in shapes] == [[2, 4], [3, 5]]


@pytest.mark.parametrize("how", ["iter", "loader", "workers", "torch"])
def test_tensors_and_nested_values_are_stacked_whoever_makes_the_batch(how: str, tars: Dataset) -> None:
    ds = tars.shuffle(seed=1).map(stages.in_torch)
    ds = ds.format("torch") if how == "torch" else ds
    ids = ds.ids().tolist()
    ds = ds.batch(50)
    batches: Any = DataLoader(ds, num_workers=2 * (how == "workers")) if how in {"loader", "workers"} else ds
    for step, batch in enumerate(batches):
        expected = ids[50 * step : 50 * step + 50]
        assert batch["image"].shape == (len(expected), 3, 2)
        assert batch["image"].dtype == torch.bfloat16
        assert batch["image"][:, 0, 0].tolist() == torch.tensor(expected).to(torch.bfloat16).tolist()
        assert batch["label"].tolist() == expected
        assert isinstance(batch["length"], list)
        assert batch["meta"]["name"] == [f"{number:05d}" for number in expected]
        numbers, boxes = batch["meta"]["box"]
        assert numbers.tolist() == boxes[:, 0].tolist() == expected
        assert isinstance(numbers, np.ndarray if how == "iter" else torch.Tensor)
        assert [view.shape for view in batch["views"]] == [(len(expected), 2), (len(expected), 1)]


def test_collation_does_not_import_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    samples = [{"x": {"y": 1}, "z": np.zeros(2), "w": object()}] * 2
    assert nested(collate(samples))["x"]["y"].tolist() == [1, 1]
    assert "torch" not in sys.modules


def test_images_decoded_to_tensors_are_stacked(tmp_path: Path) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (5, 4), (255, 0, 0)).save(picture, "PNG")
    write_tar(tmp_path / "a.tar", [{"__key__": str(i).encode(), "png": picture.getvalue()} for i in range(8)])
    ds = open_dataset(tmp_path / "a.tar").decode("torchrgb").batch(4)
    for batch in (next(iter(ds)), next(iter(DataLoader(ds)))):
        assert batch["png"].shape == (4, 3, 4, 5)
        assert batch["png"].dtype == torch.float32
        assert batch["png"][:, 0].eq(1).all()

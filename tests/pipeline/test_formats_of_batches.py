"""What `Dataset.format` hands out, from columns and from samples alike."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.errors import UsageError
from shoal.pipeline.output_format import Formatting
from shoal.pipeline.tensors import tensors

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SCHEMA = pa.schema(
    [
        ("small", pa.int16()),
        ("real", pa.float32()),
        ("yes", pa.bool_()),
        ("text", pa.string()),
        ("bytes", pa.large_binary()),
        ("digest", pa.binary(4)),
        ("gap", pa.int32()),
        ("tokens", pa.list_(pa.uint16(), 3)),
        ("equal", pa.large_list(pa.int8())),
        ("ragged", pa.list_(pa.float64())),
        ("when", pa.timestamp("ms")),
        ("deep", pa.struct([("x", pa.int64())])),
    ]
)


def row(number: int) -> dict[str, Any]:
    return {
        "small": number,
        "real": number / 4,
        "yes": number % 3 == 0,
        "text": f"row {number}",
        "bytes": bytes([number, 1]),
        "digest": number.to_bytes(4, "big"),
        "gap": None if number % 4 == 0 else number,
        "tokens": [number, number + 1, 2],
        "equal": [number, -number],
        "ragged": [0.5] * (number % 3),
        "when": dt.datetime(2026, 1, 1) + dt.timedelta(hours=number),  # noqa: DTZ001
        "deep": {"x": number},
    }


@pytest.fixture(scope="module", params=["parquet", "arrow"])
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("rows")
    for shard in range(2):
        table = pa.Table.from_pylist([row(number) for number in range(50 * shard, 50 * shard + 50)], SCHEMA)
        if request.param == "parquet":
            pq.write_table(table, directory / f"{shard}.parquet", row_group_size=10, store_schema=True)
            continue
        with pa.ipc.new_stream(directory / f"{shard}.arrow", SCHEMA) as writer:
            writer.write_table(table, max_chunksize=10)
    return directory


def shuffled(rows: Path) -> shoal.Dataset:
    return shoal.open(rows).shuffle(seed=3, window="8KiB", num_canonical_nodes=1)


def test_arrow_is_a_table_of_the_stored_types(rows: Path) -> None:
    ds = shuffled(rows)
    ids = ds.ids()
    at = 0
    for table in ds.format("arrow").batch(7):
        assert table.schema.equals(SCHEMA)
        assert table.to_pylist() == [row(int(number)) for number in ids[at : at + table.num_rows]]
        at += table.num_rows
    assert at == 100


def test_python_is_what_pyarrow_makes_of_rows(rows: Path) -> None:
    ds = shuffled(rows).batch(9)
    for batch, ids in zip(ds.format("python"), (ds.batch_ids(step) for step in range(12)), strict=True):
        assert batch == {name: [row(int(number))[name] for number in ids] for name in SCHEMA.names}


def test_numpy_keeps_the_stored_types(rows: Path) -> None:
    ds = shuffled(rows).batch(8).format("numpy")
    batch, ids = next(iter(ds)), ds.batch_ids(0)
    types = {name: batch[name].dtype for name in ("small", "real", "yes", "tokens", "equal", "when")}
    assert types == {
        "small": np.int16,
        "real": np.float32,
        "yes": np.bool_,
        "tokens": np.uint16,
        "equal": np.int8,
        "when": np.dtype("datetime64[ms]"),
    }
    assert batch["tokens"].tolist() == [row(int(number))["tokens"] for number in ids]
    assert batch["gap"] == [row(int(number))["gap"] for number in ids]
    assert batch["digest"] == [row(int(number))["digest"] for number in ids]
    assert [value.tolist() for value in batch["ragged"]] == [row(int(number))["ragged"] for number in ids]
    assert all(type(value) is str for value in batch["text"])
    assert batch["small"].flags.owndata


def test_torch_has_tensors_in_the_stored_types(rows: Path) -> None:
    torch = pytest.importorskip("torch")
    batch = next(iter(shuffled(rows).columns("small", "real", "tokens", "text", "ragged").batch(8).format("torch")))
    types = {name: batch[name].dtype for name in ("small", "real", "tokens")}
    assert types == {"small": torch.int16, "real": torch.float32, "tokens": torch.uint16}
    assert all(isinstance(value, torch.Tensor) for value in batch["ragged"])
    assert type(batch["text"]) is list


def test_samples_alone(rows: Path) -> None:
    ds = shuffled(rows)
    sample = ds.format("python")[5]
    assert sample == row(5)
    assert type(sample["tokens"]) is list
    assert ds.format("numpy")[5]["tokens"].dtype == np.uint16
    assert next(iter(ds.format("arrow").columns("text"))).to_pylist()[0]["text"].startswith("row")


@pytest.mark.parametrize("name", ["python", "numpy", "arrow", "torch"])
def test_other_formats_and_stages_give_the_same(rows: Path, name: str) -> None:
    if name == "torch":
        pytest.importorskip("torch")
    chosen = ("tokens", "text", "__id__", "ragged")
    ds = shuffled(rows).with_ids().columns(*chosen).format(name)
    for one, other in zip(ds.batch(6), ds.map(lambda sample: sample).batch(6), strict=True):
        if name == "arrow":
            one, other = one.to_pydict(), other.to_pydict()  # noqa: PLW2901
        assert list(one) == list(other) == list(chosen)
        assert all(type(one[field]) is type(other[field]) for field in chosen)
        assert all(str(one[field]) == str(other[field]) for field in chosen)


def test_repeats_are_marked_in_tables_too(rows: Path) -> None:
    *_, last = shuffled(rows).batch(64, remainder="pad").format("arrow")
    assert last.column("__pad__").to_pylist().count(True) == 28


def test_functions_of_batches_get_the_format(rows: Path) -> None:
    seen = [type(batch) for batch in shuffled(rows).batch(50).format("arrow").map(lambda table: table.column("text"))]
    assert seen == [pa.ChunkedArray, pa.ChunkedArray]


def test_what_cannot_be_is_refused(rows: Path) -> None:
    with pytest.raises(UsageError, match="must be one of 'python', 'numpy', 'arrow', 'torch'; got 'pandas'"):
        shoal.open(rows).format("pandas")
    with pytest.raises(UsageError, match="needs batches with names; got tuple"):
        next(iter(shoal.open(rows).to_tuple("text").batch(4).format("arrow")))
    with pytest.raises(UsageError, match="has no type for the column 'x'"):
        next(iter(shoal.open(rows).map(lambda sample: {"x": object()}).batch(4).format("arrow")))


@pytest.mark.parametrize("kind", ["int64", "uint16", "float32", "bool"])
def test_what_lies_in_a_tensor_stays_of_its_storage(kind: str) -> None:
    """torch knows by its storage what is copied from pinned memory; as shared memory it is told from another's."""
    torch = pytest.importorskip("torch")
    owner = torch.arange(24).reshape(4, 6).to(getattr(torch, kind)).share_memory_()
    for part in (np.s_[:], np.s_[1:3], np.s_[:, ::2], np.s_[2, 1:4], np.s_[4:]):
        array = owner.numpy()[part]
        made = tensors({"x": array})["x"]
        assert made.is_shared()
        assert made.dtype == owner.dtype
        assert made.numpy().tolist() == array.tolist()
        assert not array.size or made.data_ptr() == array.ctypes.data
    assert not tensors(np.zeros(3)).is_shared()


VALUES = st.one_of(
    st.integers(-(2**65), 2**65),
    st.integers(-5, 5),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.just(np.arange(3)),
    st.just(np.int16(4)),
    st.just(np.float64(0.5)),
    st.lists(st.integers(0, 3), max_size=2),
    st.dictionaries(st.just("a"), st.integers(0, 3), max_size=1),
    st.tuples(st.integers(0, 3)),
)


@given(
    columns=st.lists(st.lists(VALUES, min_size=3, max_size=3) | st.lists(st.integers(), min_size=3, max_size=3)),
    name=st.sampled_from(["numpy", "python", None]),
    lacks=st.booleans(),
)
def test_samples_together_are_those_of_each_alone(columns: list[list[Any]], name: str | None, lacks: bool) -> None:
    samples: list[Any] = [{str(n): column[row] for n, column in enumerate(columns)} for row in range(3)]
    if lacks and columns:
        samples[1].pop("0")
    formatting = Formatting(name)
    alone, together = [formatting.sample(sample) for sample in samples], formatting.samples(samples)
    assert repr(together) == repr(alone)
    for one, other in zip(alone, together, strict=True):
        assert [type(value) for value in one.values()] == [type(value) for value in other.values()]

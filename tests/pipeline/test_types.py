"""The types of a batch follow from the schema, whichever way its bytes were read and its samples were made."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats import writers

import shoal
from shoal.formats.tables.arrow_values import python_values
from shoal.pipeline.collate import collate, nested

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

NUM_ROWS = 12
NUMBERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
FORMATS = [None, "numpy", "arrow", "python", "torch"]
Way = Callable[[shoal.Dataset], shoal.Dataset]

SAME_ORDER: dict[str, Way] = {
    "columns": lambda ds: ds,
    "skipping": lambda ds: ds.reading(on_error="skip"),
    "limited": lambda ds: ds.reading(memory_limit="64MiB"),
    "views": lambda ds: ds.reading(copy=False),
    "identity": lambda ds: ds.map(lambda sample: sample),
    "kept": lambda ds: ds.filter(lambda sample: True),
    "renamed": lambda ds: ds.map(dict).rename(other="x;int8").rename(x="other").map(lambda sample: sample),
}
SHUFFLED: dict[str, Way] = {
    "window": lambda ds: ds.shuffle(seed=1),
    "full": lambda ds: ds.shuffle("full", seed=1),
    "limited": lambda ds: ds.shuffle(seed=1).reading(memory_limit="64MiB"),
    "spilled": lambda ds: ds.shuffle(seed=1, window="64KiB", chunk="8KiB").reading(memory_limit="32KiB"),
}


DEEP = pa.struct([("x", pa.int8()), ("y", pa.string()), ("z", pa.list_(pa.uint16()))])
GUIDES = Path(__file__).parent.parent / "guides"


def typed_table(*, num_rows: int = NUM_ROWS) -> Any:
    """A column of each type, the largest and the smallest value of numbers among them, and the same with gaps."""
    times = [dt.datetime(2026, 1, 1) + dt.timedelta(hours=row) for row in range(NUM_ROWS)]  # noqa: DTZ001
    rows = range(NUM_ROWS)
    columns: dict[str, Any] = {}
    for name in NUMBERS:
        dtype = np.dtype(name)
        ends = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
        values = np.arange(NUM_ROWS).astype(dtype)
        values[1], values[5] = ends.max, ends.min
        columns[name] = pa.array(values)
    columns |= {
        "yes": pa.array([row % 3 == 0 for row in rows]),
        "text": pa.array([f"row {row}" for row in rows]),
        "large": pa.array([f"row {row}" for row in rows], pa.large_string()),
        "bytes": pa.array([bytes([row]) * (row % 3) for row in rows]),
        "digest": pa.array([struct.pack("<I", row) for row in rows], pa.binary(4)),
        "price": pa.array([Decimal(row) / 4 for row in rows], pa.decimal128(10, 2)),
        "moment": pa.array(times, pa.timestamp("ms")),
        "zoned": pa.array(times, pa.timestamp("us", "Europe/Berlin")),
        "fine": pa.array([10**9 + row for row in rows], pa.int64()).cast(pa.timestamp("ns")),
        "day": pa.array([time.date() for time in times], pa.date32()),
        "clock": pa.array([time.time() for time in times], pa.time32("ms")),
        "lasts": pa.array([dt.timedelta(seconds=row) for row in rows], pa.duration("ms")),
        "tokens": pa.array([[row, row + 1] for row in rows], pa.list_(pa.uint16())),
        "ragged": pa.array([[row] * (row % 3) for row in rows], pa.list_(pa.int8())),
        "none": pa.array([[]] * NUM_ROWS, pa.list_(pa.int8())),
        "holes": pa.array([[row, None] for row in rows], pa.list_(pa.int8())),
        "nested": pa.array([[[row]] for row in rows], pa.list_(pa.list_(pa.float32()))),
        "pairs": pa.array([[("a", row), ("b", None)] for row in rows], pa.map_(pa.string(), pa.int8())),
        "deep": pa.array([{"x": row, "y": str(row), "z": [row]} for row in rows], DEEP),
        "class": pa.array(["cat", "dog"] * (NUM_ROWS // 2)).dictionary_encode(),
    }
    gaps = [row % 4 == 2 for row in rows]
    for name in list(columns):
        kept = pa.array([None if gap else row for row, gap in zip(rows, gaps, strict=True)], pa.int64())
        columns[f"{name} or none"] = columns[name].take(kept)
    return pa.table(columns).slice(0, num_rows)


@pytest.fixture(scope="module", params=["parquet", "arrow"])
def shards(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory, table = tmp_path_factory.mktemp("types"), typed_table()
    for shard in range(2):
        part = table.slice(shard * NUM_ROWS // 2, NUM_ROWS // 2)
        if request.param == "parquet":
            pq.write_table(part, directory / f"{shard}.parquet", row_group_size=3)
            continue
        with pa.ipc.new_file(directory / f"{shard}.arrow", part.schema) as writer:
            writer.write_table(part, max_chunksize=3)
    return directory


def told(value: Any) -> Any:
    """A value with the types of all that is in it, to be compared."""
    if isinstance(value, pa.Table):
        # Parquet's maps have a name of their own, which is gone once they were in another process.
        return {
            name: (str(values.type).replace(f" ('{name}')", ""), told(python_values(values.combine_chunks())))
            for name, values in zip(value.column_names, value.columns, strict=True)
        }
    if isinstance(value, dict):
        return {name: told(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(told, value)]
    if hasattr(value, "dtype"):
        return type(value).__name__, str(value.dtype), np.asarray(value).shape, np.asarray(value).tolist()
    return type(value).__name__, value


def formatted(shards: Path, name: str | None) -> shoal.Dataset:
    if name == "torch":
        pytest.importorskip("torch")
    ds = shoal.open(shards)
    return ds if name is None else ds.format(name)


def in_order(batch: Any, ids: Any) -> Any:
    """The rows of a batch in another order."""
    if isinstance(batch, pa.Table):
        return batch.take(ids)
    if isinstance(batch, dict):
        return {name: in_order(values, ids) for name, values in batch.items()}
    return [batch[row] for row in ids] if isinstance(batch, list) else batch[ids]


def first_of(batch: Any) -> Any:
    return {name: first_of(values) for name, values in batch.items()} if isinstance(batch, dict) else batch[0]


@pytest.mark.parametrize("name", FORMATS)
def test_batches_have_the_types_of_the_schema_whichever_way_they_are_made(shards: Path, name: str | None) -> None:
    ds = formatted(shards, name)
    expected = list(map(told, ds.batch(3)))
    assert len(expected) == 4
    for way, read in SAME_ORDER.items():
        for number, batch in enumerate(read(ds).batch(3)):
            for field, found in told(batch).items():
                assert found == expected[number]["int8" if field == "x" else field], (way, field)


@pytest.mark.parametrize("name", FORMATS)
def test_shuffled_batches_have_the_same_types_as_others(shards: Path, name: str | None) -> None:
    ds = formatted(shards, name)
    (whole,) = ds.batch(NUM_ROWS)
    for way, read in SHUFFLED.items():
        shuffled = read(ds).batch(NUM_ROWS)
        expected = told(in_order(whole, shuffled.batch_ids(0)))
        (batch,) = shuffled
        for field, found in told(batch).items():
            assert found == expected[field], (way, field)


def test_numbers_come_in_the_type_of_their_column(shards: Path) -> None:
    for name in (None, "numpy"):
        for batch in formatted(shards, name).batch(3):
            assert {column: str(batch[column].dtype) for column in NUMBERS} == dict(zip(NUMBERS, NUMBERS, strict=True))
    (table,) = formatted(shards, "arrow").batch(NUM_ROWS)
    stored = typed_table().schema
    for field in stored:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        assert told(table)[field.name][0].replace("element", "item") == str(kind)


def test_numbers_in_structs_have_their_types_too(shards: Path) -> None:
    batch = next(iter(formatted(shards, None).map(lambda sample: sample).batch(3)))
    assert batch["deep"]["x"].dtype == np.int8
    assert type(formatted(shards, None)[0]["deep"]["x"]) is np.int8
    assert type(formatted(shards, "python")[0]["deep"]["x"]) is int


def test_a_sample_is_a_batch_of_one_however_it_is_asked_for(shards: Path) -> None:
    for name in ("numpy", "arrow", "torch"):
        ds = formatted(shards, name)
        mapped = ds.map(dict)
        for number, (batch, sample) in enumerate(zip(ds.batch(1), ds, strict=True)):
            assert told(sample) == told(ds[number]) == told(mapped[number])
            expected = batch if name == "arrow" else first_of(batch)
            for field, found in told(sample).items():
                nested = name != "arrow" and field.split(" ")[0] in ("pairs", "nested", "holes")
                assert found == told(expected)[field] or nested, (name, field)


def test_samples_make_the_batch_that_columns_make(shards: Path) -> None:
    ds = formatted(shards, None)
    (batch,) = ds.batch(NUM_ROWS)
    assert told(nested(collate(list(ds)))) == told(nested(collate([ds[row] for row in range(NUM_ROWS)]))) == told(batch)


@pytest.mark.parametrize("name", ["torch", "arrow"])
def test_workers_make_batches_of_the_same_types(shards: Path, name: str) -> None:
    pytest.importorskip("torch")
    ds = formatted(shards, name).map(lambda sample: sample).batch(6)
    loader = shoal.torch.DataLoader(ds, num_workers=1, multiprocessing_context="fork")
    for batch, expected in zip(loader, formatted(shards, name).batch(6), strict=True):
        for field, found in told(batch).items():
            assert found == told(expected)[field], field


@pytest.mark.parametrize("name", FORMATS)
def test_a_dataset_of_one_row_has_the_types_of_its_schema(tmp_path: Path, name: str | None) -> None:
    pq.write_table(typed_table(num_rows=1), tmp_path / "one.parquet")
    pq.write_table(typed_table(num_rows=2), tmp_path / "two.parquet")
    one, two = formatted(tmp_path / "one.parquet", name), formatted(tmp_path / "two.parquet", name)
    (batch,), first = one.batch(1), next(iter(two.batch(1)))
    assert told(batch) == told(first)
    assert told(one[0]) == told(two[0])


def test_what_a_function_makes_of_a_field_is_not_bent_to_its_type(shards: Path) -> None:
    ds = formatted(shards, "arrow").map(
        lambda sample: {"price": str(sample["price"]), "day": sample["moment"], "x": 0.5}
    )
    table = next(iter(ds.batch(3)))
    assert [str(kind) for kind in table.schema.types] == ["string", "timestamp[us]", "double"]
    cents = formatted(shards, "arrow").map(lambda sample: {"price": sample["price"] / 1000})
    assert next(iter(cents.batch(2)))["price"].to_pylist() == [Decimal(0), Decimal("0.00025")]


def mds(path: Path) -> dict[str, str]:
    """MDS shards whose columns all have a fixed size, and the types of their columns."""
    numbers = {name: name for name in NUMBERS if name != "float64"} | {"int": "int64"}
    columns = {name: (name, np.dtype(kind).itemsize) for name, kind in numbers.items()} | {"a": ("ndarray:uint8:3", 3)}
    samples = [
        [*(np.array(row, kind).tobytes() for kind in numbers.values()), bytes([row] * 3)] for row in range(NUM_ROWS)
    ]
    (path / "rows.mds").write_bytes(writers.mds_of(columns, samples))
    return numbers | {"a": "uint8"}


def mds_with_text(path: Path) -> dict[str, str]:
    samples = [[np.int8(row).tobytes(), f"row {row}".encode()] for row in range(NUM_ROWS)]
    (path / "rows.mds").write_bytes(writers.mds_of({"x": ("int8", 1), "text": ("str", None)}, samples))
    return {"x": "int8"}


def tfrecord(path: Path) -> dict[str, str]:
    rows = [{"n": np.array([row]), "x": np.array([row / 2], np.float32)} for row in range(NUM_ROWS)]
    (path / "rows.tfrecord").write_bytes(b"".join(writers.framed(writers.example(row)) for row in rows))
    return {"n": "int64", "x": "float32"}


def litdata(path: Path) -> dict[str, str]:
    shutil.copytree(GUIDES / "litdata", path, dirs_exist_ok=True)
    return {}


def jsonl(path: Path) -> dict[str, str]:
    lines = ({"n": row, "x": row / 2, "yes": row > 3, "wide": 2**63 + row} for row in range(NUM_ROWS))
    (path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"n": "int64", "x": "float64", "yes": "bool", "wide": "uint64"}


@pytest.mark.parametrize("made", [mds, mds_with_text, tfrecord, litdata, jsonl])
@pytest.mark.parametrize("name", [None, "numpy", "arrow", "torch"])
def test_other_formats_have_one_type_whichever_way_they_are_read(
    tmp_path: Path, made: Callable[[Path], dict[str, str]], name: str | None
) -> None:
    expected = made(tmp_path)
    ds = formatted(tmp_path, name).take(NUM_ROWS)
    batches = list(map(told, ds.batch(5)))
    if name in (None, "numpy"):
        assert {field: value[1] for field, value in batches[0].items() if field in expected} == expected
    for way, read in SAME_ORDER.items():
        if way != "renamed":
            assert list(map(told, read(ds).batch(5))) == batches, way
    (whole,) = ds.batch(NUM_ROWS)
    for way, read in SHUFFLED.items():
        if way != "spilled":
            shuffled = read(ds).batch(NUM_ROWS)
            ids = shuffled.batch_ids(0)
            assert told(next(iter(shuffled))) == told(in_order(whole, ids)), way
    if name is None:
        assert told(nested(collate([ds[row] for row in range(NUM_ROWS)]))) == told(whole)

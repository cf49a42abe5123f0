"""Other libraries take batches without a copy, and keep them as long as they like."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack

import shoal
import shoal.pack
from shoal.torch import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")
NUM_SAMPLES, WIDTH, SIZE = 256, 16 << 10, 32
BATCH_BYTES = SIZE * WIDTH * 4  # 2 MiB: memory of this size is reused
TAKERS: dict[str, Callable[[Any], Any]] = {"numpy": np.from_dlpack, "torch": from_dlpack}


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Sample i is an array of i."""
    directory = tmp_path_factory.mktemp("mds")
    columns = {"x": f"ndarray:float32:{WIDTH}", "n": "int"}
    with shoal.pack.Writer(directory, format="mds", options={"columns": columns}) as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"x": np.full(WIDTH, number, np.float32), "n": number})
    return shoal.open(directory).shuffle(seed=0)


def gathered(ds: Any) -> Any:
    return ds.batch(SIZE).format("numpy")


def collated(ds: Any) -> Any:
    return ds.map(dict).batch(SIZE).format("numpy")


def of_threads(ds: Any) -> Any:
    return DataLoader(ds.map(dict).batch(SIZE))


def of_workers(ds: Any) -> Any:
    return DataLoader(ds.batch(SIZE), num_workers=1, multiprocessing_context="forkserver")


WAYS = [gathered, collated, of_threads, of_workers]


def address_of(value: Any) -> int:
    return int(value.data_ptr() if isinstance(value, torch.Tensor) else value.ctypes.data)


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("way", WAYS)
def test_dlpack_takes_numbers_without_a_copy_and_may_write(way: Callable[[Any], Any], taker: str, ds: Any) -> None:
    batch = next(iter(way(ds)))
    view = TAKERS[taker](batch["x"])
    assert address_of(view) == address_of(batch["x"])
    view[0, 0] = -1
    assert float(batch["x"][0, 0]) == -1


def views_of(batches: Iterator[Any], take: Callable[[Any], Any]) -> Iterator[tuple[Any, list[int]]]:
    for batch in batches:
        yield take(batch["x"]), batch["n"].tolist()
        del batch  # only the view is left


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("way", WAYS)
def test_memory_that_a_view_refers_to_is_never_reused(way: Callable[[Any], Any], taker: str, ds: Any) -> None:
    kept = list(views_of(iter(way(ds)), TAKERS[taker]))
    gc.collect()
    assert len({address_of(view) for view, _ in kept}) == NUM_SAMPLES // SIZE
    for view, numbers in kept:
        assert view.shape == (SIZE, WIDTH)
        assert (np.asarray(view) == np.array(numbers)[:, None]).all()


@pytest.mark.parametrize("way", [collated, of_threads, of_workers])
def test_without_a_view_memory_is_reused(way: Callable[[Any], Any], ds: Any) -> None:
    addresses = []
    for batch in way(ds):
        addresses.append(address_of(batch["x"]))
        del batch
    assert len(set(addresses)) < len(addresses)


def test_samples_are_taken_like_batches(ds: Any) -> None:
    for one in (ds[3], next(iter(ds)), next(iter(ds.reading(copy=False).format("numpy")))):
        view = np.from_dlpack(one["x"])
        assert address_of(view) == address_of(one["x"])
        assert view.flags.writeable


@pytest.mark.parametrize("num_workers", [0, 1])
def test_arrow_tables_are_taken_and_kept_like_arrays(num_workers: int, ds: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    kept = []
    for batch in DataLoader(ds.batch(SIZE).format("arrow"), num_workers=num_workers):
        table = pa.RecordBatchReader.from_stream(batch).read_all()  # what another library takes: a PyCapsule
        assert buffer_of(table).address == buffer_of(batch).address
        kept.append((table, batch["n"].to_pylist()))
        del batch
    gc.collect()
    assert len({buffer_of(table).address for table, _ in kept}) == NUM_SAMPLES // SIZE
    for table, numbers in kept:
        assert table.schema.equals(pa.schema({"x": pa.list_(pa.float32(), WIDTH), "n": pa.int64()}))
        rows = table["x"].chunk(0).flatten().to_numpy().reshape(SIZE, WIDTH)
        assert (rows == np.array(numbers)[:, None]).all()


@pytest.fixture
def rows(tmp_path: Path) -> Any:
    """240 rows with a list of 0 to 3 numbers, a dictionary, and a text in one row of the last shard alone."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for shard in range(3):
        numbers = range(80 * shard, 80 * (shard + 1))
        columns = {
            "list": pa.array([list(range(number % 4)) for number in numbers]),
            "kind": pa.array([f"kind {number % (shard + 2)}" for number in numbers]).dictionary_encode(),
            "note": pa.array(["here" if number == 239 else None for number in numbers], pa.string()),
            "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((80, 2, 3), np.float32)),
        }
        pq.write_table(pa.table(columns), tmp_path / f"{shard}.parquet", row_group_size=20)
    return shoal.open(tmp_path / "*.parquet").batch(20).format("arrow")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_tables_have_one_schema_with_gaps_dictionaries_and_tensors(num_workers: int, rows: Any) -> None:
    import pyarrow as pa

    expected = pa.schema(
        {
            "list": pa.list_(pa.int64()),
            "kind": pa.string(),
            "note": pa.string(),
            "tensor": pa.list_(pa.list_(pa.float32(), 3), 2),
        }
    )
    tables = [*DataLoader(rows, num_workers=num_workers), *rows]
    assert len(tables) == 24
    assert all(table.schema.equals(expected) for table in tables)
    assert [table["note"].null_count for table in tables[:12]] == [20] * 11 + [19]


def test_arrays_of_several_lengths_may_be_written(rows: Any) -> None:
    batch = next(iter(rows.format("numpy")))
    for values in batch["list"]:
        view = np.from_dlpack(values)
        assert view.size == 0 or address_of(view) == address_of(values)
        view[:] = -1
        assert (values == -1).all()


def buffer_of(table: Any) -> Any:
    return table["x"].chunk(0).buffers()[-1]

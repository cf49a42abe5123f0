"""Batches gathered from columns are those that collating samples gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import UsageError
from shoal.formats.field_columns import Columns, Kind
from shoal.pipeline.columns.unit_columns import Rows, Table
from shoal.storage.files.local_store import LocalReader

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


def mds_shard(columns: dict[str, np.ndarray]) -> bytes:
    """A shard of columns of fixed size, written after the description of the format."""
    encodings = {name: f"ndarray:{array.dtype.name}:{array.shape[1]}" for name, array in columns.items()}
    sizes = [array[0].nbytes for array in columns.values()]
    about = {"column_names": list(columns), "column_encodings": list(encodings.values()), "column_sizes": sizes}
    config = json.dumps(about).encode()
    num_samples = len(next(iter(columns.values())))
    starts = 4 * (num_samples + 2) + len(config) + sum(sizes) * np.arange(num_samples + 1)
    samples = b"".join(b"".join(array[row].tobytes() for array in columns.values()) for row in range(num_samples))
    return num_samples.to_bytes(4, "little") + starts.astype("<u4").tobytes() + config + samples


@pytest.fixture(scope="module")
def mds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mds")
    random = np.random.default_rng(0)
    for shard in range(4):
        tokens = random.integers(0, 2**16, (300 + shard, 256)).astype(np.uint16)
        ids = np.arange(len(tokens), dtype=np.int32)[:, None] + 1000 * shard
        (directory / f"shard.{shard:05d}.mds").write_bytes(mds_shard({"id": ids, "tokens": tokens}))
    return directory


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    directory = tmp_path_factory.mktemp("parquet")
    for shard in range(3):
        count = 200
        columns = {
            "id": pa.array(np.arange(count, dtype=np.int16) + 200 * shard),
            "x": pa.array(np.arange(count) / 7, pa.float32()),
            # The last shard has other lengths: its batches are collated, and so are those it is mixed with.
            "list": pa.array([[row] * (1 + (shard == 2 and row % 2)) for row in range(count)], pa.list_(pa.int32())),
        }
        pq.write_table(pa.table(columns), directory / f"{shard}.parquet", row_group_size=20)
    return directory


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Columns of everything: gaps in some shards, lengths that differ, a shard with another schema, directories."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    directory = tmp_path_factory.mktemp("mixed")
    for shard in range(4):
        rows = range(100)
        columns = {
            "id": pa.array(rows, pa.int32()),
            "gap": pa.array([None if shard == 1 and row % 7 == 0 else row for row in rows], pa.int64()),
            "text": pa.array([f"{shard}-{row}" * (row % 3) for row in rows]),
            "bytes": pa.array([bytes([row, shard]) for row in rows], pa.binary()),
            "large": pa.array([bytes(row) for row in rows], pa.large_binary()),
            "lists": pa.array([[row] * (row % (1 + shard)) for row in rows], pa.list_(pa.float32())),
            "holes": pa.array([[row, None] if row % 5 == 0 else [row] for row in rows], pa.list_(pa.int16())),
            "yes": pa.array([row % 2 == 0 for row in rows]),
            "when": pa.array([row * 10**6 for row in rows], pa.timestamp("us")),
            "kind": pa.array(["a", "b"] * 50).dictionary_encode(),
            "deep": pa.array([{"x": row, "y": ["z"] * (row % 2)} for row in rows]),
            "wide": pa.array([2**63 + row if row % 2 else row for row in rows], pa.uint64()),
        }
        if shard == 3:
            del columns["when"], columns["kind"]
        place = directory / f"part={shard // 2}"
        place.mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), place / f"{shard}.parquet", row_group_size=10)
    return directory


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bytes and text of which those of some shards are large, so that their batches are made of samples."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    directory = tmp_path_factory.mktemp("large")
    for shard, size in enumerate((10, 40_000, 20_000)):
        columns = {
            "id": pa.array(range(8), pa.int32()),
            "bytes": pa.array([bytes([row]) * size for row in range(8)], pa.binary()),
            "text": pa.array([str(row) * (size + row) for row in range(8)]),
        }
        pq.write_table(pa.table(columns), directory / f"{shard}.parquet", row_group_size=2)
    return directory


@pytest.mark.parametrize("name", [None, "python", "numpy", "arrow"])
def test_large_values_are_the_same_in_all_formats(large: Path, name: str | None) -> None:
    ds = shoal.open(large).shuffle(seed=1, window="512KiB", num_canonical_nodes=1)
    gathered, collated = both(ds if name is None else ds.format(name), 5)
    assert len(gathered) == 5
    for one, other in zip(gathered, collated, strict=True):
        assert one.to_pydict() == other.to_pydict() if name == "arrow" else same(one, other)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return (
            isinstance(other, dict) and list(one) == list(other) and all(same(one[name], other[name]) for name in one)
        )
    return bool(type(one) is type(other) and one == other)


def both(ds: shoal.Dataset, n: int, **batch: Any) -> tuple[list[Any], list[Any]]:
    """The batches of a dataset made of columns, and made of samples."""
    return list(ds.batch(n, **batch)), list(ds.map(lambda sample: sample).batch(n, **batch))


@pytest.mark.parametrize("source", ["mds", "parquet", "mixed"])
@pytest.mark.parametrize("batch", [{"n": 1}, {"n": 7}, {"n": 64, "remainder": "pad"}, {"n": 2000}])
def test_batches_are_those_of_collated_samples(
    source: str, batch: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    ds = shoal.open(request.getfixturevalue(source)).shuffle(seed=1, window="128KiB", num_canonical_nodes=1)
    gathered, collated = both(ds, **batch)
    assert len(gathered) == len(collated)
    for one, other in zip(gathered, collated, strict=True):
        assert list(one) == list(other)
        assert [name for name in one if not same(one[name], other[name])] == []


@pytest.mark.parametrize(
    "described",
    [
        lambda ds: ds.columns("text", "id"),
        lambda ds: ds.columns("part", "lists"),
        lambda ds: ds.rename(x="bytes", y="text;id").with_ids(),
        lambda ds: ds.with_ids().columns("__id__", "gap"),
        lambda ds: ds.to_tuple("nowhere;gap", "wide"),
        lambda ds: ds.partition(rank=1, world_size=3),
        lambda ds: ds.take(77),
    ],
    ids=["columns", "with a directory", "rename", "ids", "tuple", "rank", "take"],
)
def test_what_is_done_to_columns_is_what_is_done_to_samples(mixed: Path, described: Any) -> None:
    ds = described(shoal.open(mixed).shuffle(seed=1, window="16KiB", num_canonical_nodes=1))
    gathered, collated = both(ds, 16)
    assert len(gathered) == len(collated) > 4
    assert all(map(same, gathered, collated))


def test_columns_that_are_not_there_are_named_with_those_that_are(mixed: Path) -> None:
    with pytest.raises(UsageError, match="needs the field 'nothing'; this sample has 'id', 'gap', 'text'"):
        next(iter(shoal.open(mixed).columns("id", "nothing").batch(4)))


@pytest.mark.parametrize("sizes", [[5] * 40, [3, 9, 1, 14, 2, 2, 30, 1]])
def test_a_table_keeps_rows_apart_whatever_comes_and_goes(sizes: list[int]) -> None:
    random, table = np.random.default_rng(0), Table((("x", Kind("number", np.dtype(np.int64))),), num_rows=8)
    held: dict[int, tuple[int, int]] = {}
    for turn in range(400):
        size = sizes[turn % len(sizes)]
        values = np.arange(size) + 1000 * turn
        held[turn] = table.put(Columns(table.kinds, (values,)), size), size
        while sum(size for _, size in held.values()) > 60:
            table.drop(*held.pop(int(random.choice(list(held)))))
        for number, (first, size) in held.items():
            rows = table.rows(size)
            rows.gather(0, first + np.arange(size), np.full(size, first))
            assert rows.arrays()[0].tolist() == [1000 * number + place for place in range(size)]
    assert len(table.arrays[0]) < 60 + 2 * max(sizes) + 64


@pytest.mark.parametrize("shards", [[{"a": 4, "b": 4}, {"b": 4, "a": 4}], [{"b": 4, "a": 4}, {"wide": 8, "a": 4}]])
def test_shards_with_a_column_in_other_places_share_a_batch(shards: list[dict[str, int]], tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for number, sizes in enumerate(shards):
        columns = {name: random.integers(0, 99, (64, size)).astype(np.uint16) for name, size in sizes.items()}
        (tmp_path / f"{number}.mds").write_bytes(mds_shard(columns))
    ds = shoal.open(tmp_path).shuffle(seed=0, window="1MiB", num_canonical_nodes=1).columns("a")
    assert all(same(one, other) for one, other in zip(*both(ds, 16), strict=True))


def test_what_is_gathered_owns_its_bytes(mds: Path) -> None:
    batch = next(iter(shoal.open(mds).shuffle(seed=1).batch(8)))
    assert batch["tokens"].shape == (8, 256)
    assert batch["tokens"].flags.owndata
    assert batch["tokens"].flags.writeable


def test_columns_are_gathered_where_samples_are_not_touched(mds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    gather = Rows.gather

    def counted(self: Rows, at: int, rows: Any, firsts: Any) -> None:
        sizes.append(len(rows))
        gather(self, at, rows, firsts)

    monkeypatch.setattr(Rows, "gather", counted)
    ds = shoal.open(mds).shuffle(seed=1)
    assert sum(len(batch["id"]) for batch in ds.batch(64)) == sum(sizes) == ds.num_samples
    sizes.clear()
    next(iter(ds))
    list(ds.filter(lambda sample: True).batch(64))
    list(ds.reading(copy=False).batch(64))
    list(ds.reading(memory_limit="2MiB").batch(64))
    assert not sizes


def test_a_resumed_run_goes_on_with_the_same_batches(mds: Path) -> None:
    ds = shoal.open(mds).shuffle(seed=1, window="256KiB", num_canonical_nodes=1).batch(32)
    iterator = iter(ds)
    for _ in range(5):
        next(iterator)
    state = iterator.state_dict()
    rest = list(iterator)
    ds.load_state_dict(state)
    assert all(same(one["tokens"], other["tokens"]) for one, other in zip(rest, ds, strict=True))


def test_records_are_read_to_where_they_lie(mds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    num_filled = 0
    fill = LocalReader.fill

    def counted(self: LocalReader, first_byte: int, buffer: memoryview) -> None:
        nonlocal num_filled
        num_filled += 1
        fill(self, first_byte, buffer)

    ds = shoal.open(mds).shuffle(seed=1, window="1MiB", num_canonical_nodes=1)
    plain = list(ds.map(lambda sample: sample).batch(64))
    monkeypatch.setattr(LocalReader, "fill", counted)
    for described in (ds, ds.reading(verify="always"), ds.columns("tokens"), ds.columns("id")):
        gathered = list(described.batch(64))
        assert all(same(got[name], batch[name]) for got, batch in zip(gathered, plain, strict=True) for name in got)
    assert num_filled == 3 * len(ds.resolved.chunks)  # what is verified is looked at first


def test_a_file_that_is_cut_short_is_told_at_its_batch(mds: Path, tmp_path: Path) -> None:
    for path in mds.glob("*.mds"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    iterator = iter(shoal.open(tmp_path).batch(32))
    next(iterator)
    last = max(tmp_path.glob("*.mds"))
    with last.open("r+b") as file:
        file.truncate(last.stat().st_size - 100)
    with pytest.raises(shoal.errors.ShoalError, match=last.name):
        list(iterator)

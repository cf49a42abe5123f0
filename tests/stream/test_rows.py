"""Batches gathered from columns are those that collating samples gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.stream import rows

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


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return bool(type(one) is type(other) and one == other)


@pytest.mark.parametrize("source", ["mds", "parquet"])
@pytest.mark.parametrize("batch", [{"n": 1}, {"n": 7}, {"n": 64, "remainder": "pad"}, {"n": 2000}])
def test_batches_are_those_of_collated_samples(
    source: str, batch: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    ds = shoal.open(request.getfixturevalue(source)).shuffle(seed=1, window="128KiB", num_canonical_nodes=1)
    batch = dict(batch)
    n = batch.pop("n")
    gathered, collated = list(ds.batch(n, **batch)), list(ds.map(lambda sample: sample).batch(n, **batch))
    assert len(gathered) == len(collated)
    for one, other in zip(gathered, collated, strict=True):
        assert list(one) == list(other)
        assert all(same(one[name], other[name]) for name in one), (one, other)


def test_what_is_gathered_owns_its_bytes(mds: Path) -> None:
    batch = next(iter(shoal.open(mds).shuffle(seed=1).batch(8)))
    assert batch["tokens"].shape == (8, 256)
    assert batch["tokens"].flags.owndata
    assert batch["tokens"].flags.writeable


def test_only_plain_batches_are_gathered(mds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(given: Any) -> Any:
        sizes.append(len(given))
        return rows.collate_rows(given)

    monkeypatch.setattr("shoal.stream.iteration.collate_rows", counted)
    ds = shoal.open(mds).shuffle(seed=1)
    assert sum(len(batch["id"]) for batch in ds.batch(64)) == sum(sizes) == ds.num_samples
    sizes.clear()
    next(iter(ds))
    list(ds.with_ids().batch(64))
    list(ds.reading(copy=False).batch(64))
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

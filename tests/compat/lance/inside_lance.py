"""Lance tables as pylance writes and reads them; run.py runs this where pylance is installed."""

from __future__ import annotations

import itertools
import json
import pickle
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import lance
import numpy as np
import pyarrow as pa
import pytest
import torch.utils.data
from moto.server import ThreadedMotoServer

import shoal
import shoal.torch
from shoal.errors import ShardError, SourceError, StorageError, UsageError

pytestmark = [
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork"),
    pytest.mark.filterwarnings("ignore:a window of"),
]
_START = 500


def rows(first: int, count: int) -> pa.Table:
    """Rows of many types; ``id`` numbers them."""
    ids = np.arange(first, first + count)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array((ids[:, None] + np.arange(8)).ravel(), pa.float32()), 8)
    return pa.table(
        {
            "id": pa.array(ids),
            "text": pa.array([None if i % 11 == 5 else f"text {i} " * (i % 7) for i in ids.tolist()]),
            "data": pa.array([bytes([i % 256]) * (i % 900) for i in ids.tolist()]),
            "vector": vectors,
            "tags": pa.array([[f"t{i % 3}"] * (i % 4) for i in ids.tolist()]),
            "place": pa.array([{"x": i, "y": None if i % 5 == 0 else -i} for i in ids.tolist()]),
            "when": pa.array([datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=i) for i in ids.tolist()]),
        }
    )


def written(path: Path | str) -> Any:
    """A table of five fragments, 500 rows."""
    return lance.write_dataset(rows(0, _START), str(path), max_rows_per_file=100)


def plain(value: Any) -> Any:
    """A value without numpy."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value


def read(source: Any, **how: Any) -> list[dict[str, Any]]:
    return [plain(sample) for sample in shoal.open(source, **how)]


def by_lance(path: Path | str, version: Any = None) -> list[dict[str, Any]]:
    ds = lance.dataset(str(path))
    return list((ds if version is None else ds.checkout_version(version)).to_table().to_pylist())


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.lance"


def _merged(ds: Any) -> None:
    new = pa.concat_tables([rows(40, 20), rows(900, 30)])
    ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(new)


def _added(ds: Any) -> None:
    ds.add_columns({"twice": "id * 2"})


CHANGES: dict[str, Callable[[Any], Any]] = {
    "append": lambda ds: ds.insert(rows(_START, 130)),
    "delete": lambda ds: ds.delete("id % 7 = 3"),
    "delete a fragment": lambda ds: ds.delete("id >= 100 and id < 200"),
    "delete most": lambda ds: ds.delete("id != 251"),
    "delete many in a row": lambda ds: ds.delete("id > 20 and id < 90"),
    "update": lambda ds: ds.update({"text": "'changed'"}, where="id % 10 = 1"),
    "merge": _merged,
    "add columns": _added,
    "add a column of nulls": lambda ds: ds.add_columns(pa.field("empty", pa.int32())),
    "drop columns": lambda ds: ds.drop_columns(["data", "tags"]),
    "rename": lambda ds: ds.alter_columns({"path": "text", "name": "words"}),
    "other type": lambda ds: ds.alter_columns({"path": "id", "data_type": pa.int32()}),
    "compact": lambda ds: ds.optimize.compact_files(target_rows_per_fragment=300),
    "overwrite": lambda ds: lance.write_dataset(rows(7, 44), ds.uri, mode="overwrite"),
    "restore": lambda ds: ds.checkout_version(1).restore(),
}


@pytest.mark.parametrize("names", [*((name,) for name in CHANGES), *list(itertools.permutations(CHANGES, 2))[::5]])
def test_every_version_has_the_rows_that_lance_reads(names: tuple[str, ...], path: Path) -> None:
    written(path)
    for name in names:
        try:
            CHANGES[name](lance.dataset(str(path)))
        except (OSError, ValueError, RuntimeError, KeyError):  # such as dropping a dropped column
            if len(names) == 1:
                raise
    versions = [each["version"] for each in lance.dataset(str(path)).versions()]
    for version in (*versions, None):
        expected = by_lance(path, version)
        if not expected:
            with pytest.raises((SourceError, UsageError)):
                shoal.open(path, version=version).shuffle(seed=1)
            continue
        ds = shoal.open(path, version=version)
        assert [plain(sample) for sample in ds] == expected
        assert sorted(str(plain(sample)) for sample in ds.shuffle(seed=1)) == sorted(map(str, expected))
        batches = [plain(batch) for batch in ds.columns("vector").batch(50)]
        assert [row for batch in batches for row in batch["vector"]] == [row["vector"] for row in expected]


def test_a_version_is_named(path: Path) -> None:
    ds = written(path)
    ds.tags.create("good", 1)
    ds.delete("id < 10")
    branch = ds.create_branch("trial")
    branch.insert(rows(_START, 25))
    assert len(read(path)) == _START - 10
    assert len(read(path, version="good")) == len(read(path, version=1)) == len(read(path, version="1")) == _START
    assert len(read(f"lance://{path}", version="trial")) == _START + 15
    opened = shoal.open(path, version="trial").stream.spec.opened.one("a test")
    assert opened.index.metadata["snapshot"] == {"lance": branch.version, "branch": "trial"}
    assert len(read(path, version=f"trial:{branch.version}")) == _START + 15
    for version in (77, "77", "trail", "trial:1234", "trial:x"):
        with pytest.raises(SourceError, match=rf"{version}"):
            shoal.open(path, version=version)
    with pytest.raises(SourceError, match="did you mean 'trial'"):
        shoal.open(path, version="trail")
    with pytest.raises(SourceError, match="predicate"):
        shoal.open(path, predicate=[("id", "<", 3)])
    with pytest.raises(SourceError, match="no Lance table"):
        shoal.open(path.with_name("other.lance"))


def test_a_time_names_the_version_of_then(path: Path) -> None:
    written(path)
    time.sleep(0.05)
    between = datetime.now(UTC)
    time.sleep(0.05)
    lance.dataset(str(path)).delete("id < 10")
    assert len(read(path, timestamp=between.isoformat())) == _START
    assert len(read(path, timestamp=between.replace(tzinfo=None).isoformat())) == _START
    assert len(read(path, timestamp="2100-01-01T00:00:00Z")) == _START - 10
    assert lance.dataset(str(path), asof=between.astimezone().replace(tzinfo=None)).version == 1
    with pytest.raises(SourceError, match="no version at 2001"):
        shoal.open(path, timestamp="2001-01-01")
    with pytest.raises(UsageError, match="ISO 8601"):
        shoal.open(path, timestamp="yesterday")


def test_ids_stay_when_rows_are_deleted(path: Path) -> None:
    written(path)
    before = [(sample["__id__"], sample["id"]) for sample in shoal.open(path).with_ids()]
    lance.dataset(str(path)).delete("id % 3 = 0")
    after = [(sample["__id__"], sample["id"]) for sample in shoal.open(path).with_ids()]
    assert after == [pair for pair in before if pair[1] % 3]


@pytest.mark.parametrize("stop", [0, 1, 37, 99])
def test_a_run_goes_on_with_the_version_of_its_state(stop: int, path: Path) -> None:
    written(path)
    lance.dataset(str(path)).delete("id % 9 = 2")

    def opened() -> shoal.Dataset:
        return shoal.open(path, version=2).columns("id", "vector").shuffle(seed=5, window="128KiB").batch(4)

    whole = [batch["id"].tolist() for batch in opened()]
    run = opened()
    iterator = iter(run)
    begun = [next(iterator)["id"].tolist() for _ in range(stop)]
    state = json.loads(json.dumps(run.state_dict()))
    lance.dataset(str(path)).insert(rows(_START, 100))
    lance.dataset(str(path)).optimize.compact_files(target_rows_per_fragment=1000)
    again = opened()
    again.load_state_dict(state)
    assert begun + [batch["id"].tolist() for batch in again] == whole
    newest = shoal.open(path).columns("id", "vector").shuffle(seed=5, window="128KiB").batch(4)
    newest.load_state_dict(state)
    assert begun + [batch["id"].tolist() for batch in newest] == whole


@pytest.mark.parametrize("context", ["forkserver", "fork"])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_of_torch_read_the_same_batches(context: str, num_workers: int, path: Path) -> None:
    written(path)
    ds = shoal.open(path).columns("id", "vector").shuffle(seed=2)
    alone = [batch["id"].tolist() for batch in ds.batch(16)]
    ds[3]  # this process has used Lance before it forks
    samples = shoal.open(path).columns("id", "vector").shuffle(seed=2).batch(16)
    loader = torch.utils.data.DataLoader(
        shoal.torch.IterableDataset(samples), batch_size=None, num_workers=num_workers, multiprocessing_context=context,
    )  # fmt: skip
    assert [batch["id"].tolist() for batch in loader] == alone


def test_shoals_own_loader_reads_the_same(path: Path) -> None:
    written(path)
    ds = shoal.open(path).columns("id", "vector").shuffle(seed=2).batch(16)
    alone = [batch["id"].tolist() for batch in shoal.open(path).columns("id", "vector").shuffle(seed=2).batch(16)]
    assert [batch["id"].tolist() for batch in shoal.torch.DataLoader(ds, num_workers=2)] == alone


def test_single_rows_are_read(path: Path) -> None:
    ds = written(path)
    ds.delete("id = 17")
    opened = shoal.open(path)
    assert plain(opened[250]) == by_lance(path, 1)[250]
    assert opened[17]["id"] == 17  # deleted rows stay in the files, as in other tables
    full = shoal.open(path).shuffle(shoal.orders.Full(), seed=1)
    assert sorted(sample["id"] for sample in full) == [number for number in range(_START) if number != 17]
    assert full.stats()["num_reads"] == _START - 1


def test_columns_of_the_index_have_every_row(path: Path) -> None:
    written(path).delete("id > 120 and id < 390")
    ds = shoal.open(path, index_columns=["id"])
    assert ds.select(id=[5, 120, 390]).num_samples == 3
    assert [sample["id"] for sample in ds.select(id=[5, 120, 390])] == [5, 120, 390]


@pytest.mark.parametrize("kind", ["1", "2"])
def test_blobs_are_bytes(kind: str, path: Path) -> None:
    values = [bytes([i]) * (i * 1000) for i in range(60)]
    if kind == "1":
        field = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
        column: Any = pa.array(values, pa.large_binary())
    else:
        field, column = lance.blob_field("blob"), lance.blob_array(values)
    table = pa.table([pa.array(range(60)), column], schema=pa.schema([pa.field("id", pa.int64()), field]))
    more = {"data_storage_version": "2.1"} if kind == "1" else {}
    ds = lance.write_dataset(table, str(path), max_rows_per_file=25, **more)
    ds.delete("id % 4 = 1")
    samples = {sample["id"]: sample["blob"] for sample in shoal.open(path).shuffle(seed=0)}
    assert samples == {number: value for number, value in enumerate(values) if number % 4 != 1}


def test_a_version_that_was_cleaned_up_is_named(path: Path) -> None:
    written(path)
    old = shoal.open(path, version=1)
    lance.dataset(str(path)).delete("id < 300")
    lance.dataset(str(path)).optimize.compact_files(target_rows_per_fragment=1000)
    lance.dataset(str(path)).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    with pytest.raises((StorageError, ShardError), match=r"data/.*lance|version 1"):
        list(old)
    with pytest.raises(SourceError, match="has no version 1"):
        shoal.open(path, version=1)


def test_a_dataset_is_pickled_without_the_table(path: Path) -> None:
    written(path)
    ds = shoal.open(path).shuffle(seed=1)
    ds[0]
    again = pickle.loads(pickle.dumps(ds))
    assert [sample["id"] for sample in again] == [sample["id"] for sample in ds]


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    server = ThreadedMotoServer(port=0)
    server.start()
    _, port = server.get_host_and_port()
    options = {
        "endpoint": f"http://127.0.0.1:{port}", "access_key_id": "a", "secret_access_key": "b", "region": "us-east-1",
    }  # fmt: skip
    client = boto3.client(
        "s3",
        endpoint_url=options["endpoint"],
        aws_access_key_id="a",
        aws_secret_access_key="b",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="lake")
    yield options
    server.stop()


def test_a_remote_table_is_read_in_place(bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    options = {f"aws_{name}": value for name, value in bucket.items()} | {"allow_http": "true"}
    url = "s3://lake/t.lance"
    ds = lance.write_dataset(rows(0, _START), url, max_rows_per_file=100, storage_options=options)
    ds.delete("id % 7 = 3")
    expected = lance.dataset(url, storage_options=options).to_table().to_pylist()
    assert read(url, storage_options=bucket) == expected
    opened = shoal.open(f"lance://{url}", version=1, storage_options=bucket).columns("id").shuffle(seed=1)
    assert sorted(sample["id"] for sample in opened) == list(range(_START))
    assert opened.stats()["num_requests"] > 0
    with pytest.raises(SourceError, match="no Lance table"):
        shoal.open("s3://lake/other.lance", storage_options=bucket)

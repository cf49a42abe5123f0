"""A run with a version of a table, while the table moves on."""

from __future__ import annotations

import json
import logging
import multiprocessing
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.storage.servers import moto, s3_client, s3_options
from tests.tables.handmade_delta import HandmadeDelta, field

import shoal
from shoal.errors import StateError, UsageError

deltalake = pytest.importorskip("deltalake")


def numbers(first: int, stop: int) -> pa.Table:
    return pa.table({"n": pa.array(range(first, stop), pa.int64())})


@pytest.fixture
def root(tmp_path: Path) -> str:
    path = str(tmp_path / "t")
    deltalake.write_deltalake(path, numbers(0, 24))
    return path


def batches(ds: shoal.Dataset) -> list[list[int]]:
    return [batch["n"].tolist() for batch in ds]


def numbers_of(ds: shoal.Dataset) -> list[int]:
    return [number for batch in batches(ds) for number in batch]


def test_a_resumed_run_goes_on_with_the_version_of_its_state(root: str, caplog: pytest.LogCaptureFixture) -> None:
    ds = shoal.open(root).shuffle(seed=1).batch(4)
    iterator = iter(ds)
    for _ in range(2):
        next(iterator)
    state = json.loads(json.dumps(iterator.state_dict()))
    rest = [batch["n"].tolist() for batch in iterator]
    assert state["snapshot"] == '{"delta": 0}'
    deltalake.write_deltalake(root, numbers(100, 120), mode="append")
    deltalake.DeltaTable(root).delete("n < 12")
    later = shoal.open(root).shuffle(seed=1).batch(4)
    assert 100 in numbers_of(later)
    later = shoal.open(root).shuffle(seed=1).batch(4)
    later.load_state_dict(state)
    assert batches(later) == rest
    assert "version delta 0 of the table, which is delta 2 as opened" in caplog.text
    assert sorted(numbers_of(later)) == list(range(24))  # and the next epoch too


def test_a_state_of_a_lost_version_is_refused_with_both_versions(root: str) -> None:
    ds = shoal.open(root).shuffle(seed=1).batch(4)
    next(iter(ds))
    state = ds.state_dict()
    deltalake.DeltaTable(root).delete("n < 12")
    deltalake.DeltaTable(root).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    later = shoal.open(root).shuffle(seed=1).batch(4)
    with pytest.raises(StateError, match=r"the version delta 0 of the table, which is delta 3 now.*does not exist"):
        later.load_state_dict(state)


def test_versions_with_the_same_files_are_different_datasets(tmp_path: Path) -> None:
    table = HandmadeDelta(tmp_path / "t", "deletionVectors")
    added = table.file("a.parquet", pa.table({"n": pa.array(range(20), pa.int64()), "m": pa.array(range(20))}))
    table.commit(table.schema(field("n", "long")), added)
    table.commit(table.schema(field("n", "long"), field("m", "long")))
    first, second = table.inline_vector([3]), table.inline_vector([5])
    table.commit(table.remove("a.parquet"), table.add("a.parquet", 20, vector=first))
    table.commit(table.remove("a.parquet", first), table.add("a.parquet", 20, vector=second))
    opened = [shoal.open(table.root, version=version).shuffle(seed=0).batch(5) for version in range(4)]
    for version, ds in enumerate(opened):
        assert sorted(numbers_of(ds)) == [n for n in range(20) if n != {2: 3, 3: 5}.get(version)]
    states = [ds.state_dict() for ds in opened]
    assert len({state["index"] for state in states}) == 4
    opened[3].load_state_dict(states[2])
    assert 5 in numbers_of(opened[3])
    certificates = [shoal.open(table.root, version=version).shuffle(seed=0) for version in (0, 1)]
    names = {ds.certificate()["index"] for ds in certificates if list(ds)}
    assert len(names) == 2


def test_choices_by_columns_of_the_index_go_on_with_the_version(root: str) -> None:
    def chosen() -> shoal.Dataset:
        return shoal.open(root, index_columns=["n"]).select(n=range(12)).shuffle(seed=4).batch(3)

    ds = chosen()
    iterator = iter(ds)
    next(iterator)
    state, rest = iterator.state_dict(), [batch["n"].tolist() for batch in iterator]
    deltalake.DeltaTable(root).delete("n < 6")
    later = chosen()
    later.load_state_dict(state)
    assert batches(later) == rest


def test_the_version_is_in_the_index_the_state_and_the_certificate(root: str) -> None:
    ds = shoal.open(root).shuffle(seed=4).batch(3)
    list(ds)
    certificate = ds.certificate()
    assert certificate["snapshot"] == ds.state_dict()["snapshot"] == '{"delta": 0}'
    assert ds.stream.spec.opened.one("this test").index.metadata["snapshot"] == {"delta": 0}
    assert "epoch 0: all of 24 samples" in ds.check_certificate(certificate)
    deltalake.write_deltalake(root, numbers(100, 120), mode="append")
    with pytest.raises(StateError):
        shoal.open(root).shuffle(seed=4).batch(3).check_certificate(certificate)
    with pytest.raises(StateError):
        again = shoal.open(root).shuffle(seed=4).batch(3)
        list(again)
        shoal.merge_certificates([certificate, again.certificate()])


def test_a_mixture_goes_on_with_the_versions_of_its_tables(root: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    deltalake.write_deltalake(other, numbers(100, 110))

    def mixed() -> shoal.Dataset:
        sources = {"a": shoal.open(root), "b": shoal.open(other)}
        return shoal.mix(sources, weights={"a": 2, "b": 1}, epoch_size=30).shuffle(seed=1).batch(5)

    ds = mixed()
    iterator = iter(ds)
    next(iterator)
    state, rest = iterator.state_dict(), [batch["n"].tolist() for batch in iterator]
    assert state["snapshot"] == {"a": '{"delta": 0}', "b": '{"delta": 0}'}
    deltalake.DeltaTable(other).delete("n = 105")
    later = mixed()
    later.load_state_dict(state)
    assert batches(later) == rest


def test_a_worker_gets_a_version_and_no_connection(root: str) -> None:
    ds = shoal.open(root).shuffle(seed=1).batch(4)
    opened = pickle.loads(pickle.dumps(ds.stream.spec)).opened.one("this test")
    assert opened.latest.look_again(opened) is opened
    deltalake.write_deltalake(root, numbers(24, 30), mode="append")
    assert opened.latest.look_again(opened).index.num_samples == 30


def test_a_followed_table_changes_between_epochs_alone(root: str) -> None:
    ds = shoal.open(root, follow=True).shuffle(seed=2).batch(4)
    iterator = iter(ds)
    first = next(iterator)["n"].tolist()
    deltalake.write_deltalake(root, numbers(24, 30), mode="append")
    first += [number for batch in iterator for number in batch["n"].tolist()]
    assert sorted(first) == list(range(24))
    assert sorted(numbers_of(ds)) == list(range(30))


def test_files_keep_their_places_when_others_are_appended(root: str) -> None:
    for first in range(24, 60, 12):
        before = [sample["n"] for sample in shoal.open(root)]
        deltalake.write_deltalake(root, numbers(first, first + 12), mode="append")
        assert [sample["n"] for sample in shoal.open(root)][: len(before)] == before


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto() as url:
        s3_client(url).create_bucket(Bucket="tables")
        yield url


def test_tables_in_an_object_store_have_the_options_of_the_store(
    endpoint: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = s3_options(endpoint)
    theirs = {f"aws_{name}": value for name, value in options.items()} | {"aws_allow_http": "true"}
    data = numbers(0, 8).append_column("a b", pa.array(["x/y", "z%20"] * 4))
    deltalake.write_deltalake("s3://tables/a b/t", data, storage_options=theirs, partition_by=["a b"])
    deltalake.DeltaTable("s3://tables/a b/t", storage_options=theirs).delete("n = 3")
    caplog.set_level(logging.DEBUG)
    for source in ("s3://tables/a b/t", "delta://s3://tables/a b/t"):
        ds = shoal.open(source, storage_options=options)
        assert sorted(sample["n"] for sample in ds) == [0, 1, 2, 4, 5, 6, 7]
    assert options["secret_access_key"] not in caplog.text
    with pytest.raises(shoal.errors.SourceError) as caught:
        shoal.open("delta://s3://tables/nowhere", storage_options=options)
    assert options["secret_access_key"] not in str(caught.value)


def test_iceberg_in_an_object_store_is_read_by_the_store(endpoint: str, tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    from pyiceberg.catalog.sql import SqlCatalog

    options = s3_options(endpoint)
    named = {"s3.endpoint": endpoint, "s3.access-key-id": options["access_key_id"], "s3.region": "us-east-1"}
    secret = {"s3.secret-access-key": options["secret_access_key"]}
    database = f"sqlite:///{tmp_path}/c.db"
    catalog = SqlCatalog("c", uri=database, warehouse="s3://tables/warehouse", **named, **secret)
    catalog.create_namespace("ns")
    table: Any = catalog.create_table("ns.t", schema=numbers(0, 1).schema)
    table.append(numbers(0, 8))
    for source in (table.location(), table.metadata_location):
        assert [sample["n"] for sample in shoal.open(source, storage_options=options)] == list(range(8))
    by_catalog = {**options, "catalog": {"uri": database, **named, **secret}}
    ds = shoal.open("iceberg://c/ns.t", storage_options=by_catalog).shuffle(seed=1).batch(3)
    next(iter(ds))
    state = ds.state_dict()
    table.append(numbers(8, 10))
    later = shoal.open("iceberg://c/ns.t", storage_options=by_catalog).shuffle(seed=1).batch(3)
    later.load_state_dict(state)
    assert len(numbers_of(later)) == 5
    assert sorted(numbers_of(later)) == list(range(8))


def test_a_run_is_extended_by_the_name_of_its_table(root: str) -> None:
    ds = shoal.open(root, version=0).shuffle(seed=1).batch(4)
    iterator = iter(ds)
    next(iterator)
    deltalake.write_deltalake(root, numbers(100, 120), mode="append")
    more = ds.extended(root)
    assert sum(map(len, batches(more))) == 20  # what is left of the running epoch
    assert sorted(numbers_of(more)) == [*range(24), *range(100, 120)]


@pytest.mark.parametrize("form", ["nothing", "directory", "scheme", "dataset"])
def test_a_table_is_extended_by_a_later_version(root: str, form: str) -> None:
    ds = shoal.open(root, index_columns=["n"]).shuffle(seed=1).batch(4)
    next(iter(ds))
    deltalake.write_deltalake(root, numbers(100, 120), mode="append")
    source = {"nothing": None, "directory": root, "scheme": f"delta://{root}", "dataset": shoal.open(root)}[form]
    extended = ds.extended(source)
    assert extended.state_dict()["next"]["snapshot"] == '{"delta": 1}'
    assert len(numbers_of(extended)) == 20
    assert sorted(numbers_of(extended)) == [*range(24), *range(100, 120)]


def test_a_table_of_a_mixture_is_extended_by_name(root: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    deltalake.write_deltalake(other, numbers(1000, 1024))
    sources = {"a": shoal.open(root), "b": shoal.open(other)}
    mixed = shoal.mix(sources, weights={"a": 1, "b": 1}).shuffle(seed=1).batch(4)
    deltalake.write_deltalake(root, numbers(100, 120), mode="append")
    extended = mixed.extended({"a": root})
    assert extended.state_dict()["snapshot"] == {"a": '{"delta": 1}', "b": '{"delta": 0}'}
    assert {*numbers_of(extended)} & {*range(100, 120)}


def _in_fork(root: str, errors: Any) -> None:
    try:
        shoal.open(root)
    except BaseException as error:  # noqa: BLE001
        errors.put(f"{type(error).__name__}: {error}")


def test_a_forked_process_cannot_read_the_log_and_says_so(root: str) -> None:
    context = multiprocessing.get_context("fork")
    errors = context.Queue()
    process = context.Process(target=_in_fork, args=(root, errors))
    process.start()
    text = errors.get(timeout=60)
    process.join()
    assert text.startswith("SourceError")
    assert "forkserver" in text


# ---- ranks


def test_ranks_of_a_job_open_the_version_of_the_first(
    root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    got: list[int] = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        got += numbers_of(shoal.open(root).shuffle(seed=1).batch(2))
        deltalake.write_deltalake(root, numbers(100 + 20 * rank, 120 + 20 * rank), mode="append")
    assert sorted(got) == list(range(24))
    assert "version delta 0 is opened" in caplog.text
    assert "the table is delta 1 now" in caplog.text
    assert shoal.open(root, version=2).num_samples == 64
    assert shoal.open(root, timestamp="2100-01-01").num_samples == 64  # another question, another decision


def test_ranks_that_cannot_reach_each_other_are_warned(
    root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    shoal.open(root, version=0)
    assert not caplog.text
    shoal.open(root)
    assert "each of the 2 ranks opens the current version by itself, and this rank opens version delta 0" in caplog.text


@pytest.mark.parametrize("wanted", [{"version": 0}, {"timestamp": "2030-01-01T00:00:00Z"}])
def test_a_version_is_not_followed(root: str, wanted: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="newest version"):
        shoal.open(root, follow=True, **wanted)

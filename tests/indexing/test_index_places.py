"""An index that opening publishes beside remote shards spares other machines the work, and never stands in the way."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from tests.storage.servers import Place, moto, place_of_kind
from tests.storage.test_http import answering, send
from tests.stream.made import ids_of, write_tars

from shoal.errors import IndexFileError, StorageError
from shoal.indexing import index_making
from shoal.indexing.build import build_index
from shoal.indexing.index_files import load_index, save_index, was_left_by_opening
from shoal.storage.files.local_store import LocalStore
from shoal.storage.memory_store import MemoryStore
from shoal.storage.store_protocol import ObjectInfo, Store
from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset as open_unpublished
from shoal.testing import RangeServer

_numbers = itertools.count()
open_dataset = partial(open_unpublished, publish_index=True)


@pytest.fixture
def shards(tmp_path: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(write_tars(tmp_path / "local", [20, 30, 10]).iterdir())]


@pytest.fixture
def root(shards: list[bytes]) -> str:
    """Two shards in memory."""
    where = f"memory://places-{next(_numbers)}/d"
    for number in range(2):
        MemoryStore().put(f"{where}/s-{number}.tar", shards[number])
    return where


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each step is another machine, with a cache of its own."""

    def steps() -> Iterator[None]:
        for number in itertools.count():
            monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / f"machine-{number}"))
            yield

    return steps()


def where_from(dataset: Dataset) -> str:
    return str(dataset.stream.opened.index_path)


def test_other_machines_find_it(root: str, machines: Iterator[None], monkeypatch: pytest.MonkeyPatch) -> None:
    next(machines)
    first = open_dataset(root)
    assert where_from(first) == f"{root}/shoal.index"
    next(machines)
    monkeypatch.setattr(index_making, "build_index", pytest.fail)
    second = open_dataset(root)
    assert where_from(second) == where_from(first)
    assert second.stream.opened.index.fingerprint == first.stream.opened.index.fingerprint
    assert ids_of(second) == list(range(50))
    some = open_dataset(f"{root}/s-{{1..1}}.tar")
    assert (where_from(some), some.num_samples) == (where_from(first), 30)


@pytest.mark.parametrize("change", ["more", "fewer", "other"])
def test_it_is_made_again_when_shards_changed(
    change: str, root: str, shards: list[bytes], machines: Iterator[None], caplog: pytest.LogCaptureFixture
) -> None:
    next(machines)
    before = open_dataset(root).stream.opened.index
    if change == "more":
        MemoryStore().put(f"{root}/s-2.tar", shards[2])
    elif change == "other":
        MemoryStore().put(f"{root}/s-1.tar", shards[2])
    else:
        before_some = open_dataset(f"{root}/s-0.tar")
        assert where_from(before_some) == f"{root}/shoal.index"
        _forget(f"{root}/s-0.tar")
    with caplog.at_level(logging.INFO, logger="shoal"):
        again = open_dataset(root)
    assert "made again" in caplog.text
    assert again.num_samples == {"more": 60, "other": 30, "fewer": 30}[change]
    assert again.stream.opened.index.fingerprint != before.fingerprint
    next(machines)
    assert open_dataset(root).stream.opened.index.fingerprint == again.stream.opened.index.fingerprint
    assert where_from(again) == f"{root}/shoal.index"


def _forget(path: str) -> None:
    from shoal.storage.memory_store import _objects

    del _objects[path]


def test_an_index_that_was_asked_for_is_believed(root: str, shards: list[bytes]) -> None:
    index = open_dataset(f"{root}/s-{{0..1}}.tar").stream.opened.index
    save_index(index, f"{root}/", store=MemoryStore())
    MemoryStore().put(f"{root}/s-2.tar", shards[2])
    with pytest.raises(IndexFileError, match="does not know 1 of 3 shards"):
        open_dataset(root)
    assert load_index(f"{root}/shoal.index", store=MemoryStore()).fingerprint == index.fingerprint


def test_a_place_that_may_not_be_written_is_left_alone(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: MemoryStore, path: str, data: object) -> None:
        del self, data
        msg = f"could not write {path}: 403 Forbidden"
        raise StorageError(msg)

    monkeypatch.setattr(MemoryStore, "put", refuse)
    with caplog.at_level(logging.INFO, logger="shoal"):
        dataset = open_dataset(root)
    assert where_from(dataset).startswith(str(tmp_path))
    assert "not published beside the shards: could not write" in caplog.text
    assert "WARNING" in {record.levelname for record in caplog.records}  # it was asked for
    monkeypatch.setattr(index_making, "build_index", pytest.fail)
    assert where_from(open_dataset(root)) == where_from(dataset)


def test_only_whole_directories_of_object_stores_get_one(
    root: str, tmp_path: Path, shards: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in (f"{root}/*.tar", f"{root}/s-{{0..1}}.tar", f"{root}/s-0.tar"):
        assert where_from(open_dataset(source)).startswith(str(tmp_path / "cache"))
    assert where_from(open_dataset(tmp_path / "local")).startswith(str(tmp_path / "cache"))
    with monkeypatch.context() as patch:
        patch.setattr("shoal.indexing.index_files._PLAIN_STORES", ("s3",))  # others may be more than stores
        assert where_from(open_dataset(root)).startswith(str(tmp_path / "cache"))
    with RangeServer({"d/s-0.tar": shards[0]}) as server:
        assert where_from(open_dataset(f"{server.url}/d/s-0.tar")).startswith(str(tmp_path / "cache"))
        assert server.num_requests(method="PUT") == 0


def test_a_shard_that_changes_after_the_listing_is_noticed(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_dataset(root)
    seen: list[ObjectInfo] = []
    found = MemoryStore.list

    def listed(self: MemoryStore, prefix: str) -> Iterator[ObjectInfo]:
        for info in found(self, prefix):
            seen.append(info)
            yield info

    monkeypatch.setattr(MemoryStore, "list", listed)
    dataset = open_dataset(root)
    assert {info.path for info in seen} >= set(dataset.stream.opened.paths)
    MemoryStore().put(f"{root}/s-0.tar", b"other")
    with pytest.raises(StorageError, match="changed while it was being read"):
        next(iter(dataset))


def test_a_machine_keeps_few_indexes(
    root: str, tmp_path: Path, shards: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that it copied from a remote store."""
    monkeypatch.setattr("shoal.indexing.index_files._CACHE_FILES", 2)
    kept = tmp_path / "cache" / "indexes"
    for number, data in enumerate(shards):
        (tmp_path / f"{number}.tar").write_bytes(data)
    first, second = (where_from(open_dataset(tmp_path / f"{number}.tar")) for number in range(2))
    assert where_from(open_dataset(tmp_path / "0.tar")) == first
    save_index(open_dataset(f"{root}/*.tar").stream.opened.index, f"{root}/", store=MemoryStore())
    assert {Path(first).exists(), Path(second).exists()} == {True, False}
    dataset = open_dataset(root)
    assert where_from(dataset) == f"{root}/shoal.index"
    assert [path.suffix for path in kept.iterdir() if path.suffix == ".copy"] == [".copy"]
    assert len([path for path in kept.iterdir() if path.suffix != ".lock"]) == 2
    assert ids_of(dataset) == list(range(50))


def test_a_machine_keeps_few_notes_on_shards(
    tmp_path: Path, shards: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.indexing.index_files._CACHE_NOTES", 1)
    for number, data in enumerate(shards):
        (tmp_path / f"{number}.tar").write_bytes(data)
        index = open_dataset(tmp_path / f"{number}.tar").stream.opened.index
        kept = save_index(index, tmp_path / f"{number}.kept.index", store=LocalStore())
        os.utime(tmp_path / f"{number}.tar", ns=(1, 1))
        list(open_dataset(tmp_path / f"{number}.tar", index=kept))
        # One that was left by the step before, at most, and that of this step.
        assert 1 <= len(list((tmp_path / "cache" / "accepted").iterdir())) <= 2


# ---- two machines at the same moment


@pytest.fixture(params=["memory", "s3"])
def both(request: pytest.FixtureRequest, shards: list[bytes]) -> Iterator[tuple[str, Place]]:
    """Two shards in a place that can compare before it writes."""
    endpoint = request.getfixturevalue("s3_endpoint") if request.param == "s3" else ""
    with place_of_kind(request.param, f"both-{next(_numbers)}", endpoint) as place:
        for number in range(2):
            place.put(f"d/s-{number}.tar", shards[number])
        yield f"{place.root}/d", place


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    with moto() as endpoint:
        yield endpoint


@pytest.mark.parametrize("is_stale", [False, True])
def test_what_another_machine_left_meanwhile_stays(
    both: tuple[str, Place],
    shards: list[bytes],
    is_stale: bool,
    machines: Iterator[None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    where, place = both
    next(machines)
    if is_stale:
        place.put("d/s-2.tar", shards[0])
        open_dataset(where, storage_options=place.options)
        place.put("d/s-2.tar", shards[1])
    build = build_index
    others: list[Dataset] = []

    def slowly(found: Any, **more: Any) -> Any:
        """While this machine indexes what it has listed, a shard comes, and another machine indexes all."""
        made = build(found, **more)
        if not others:
            others.append(None)  # type: ignore[arg-type]
            place.put("d/s-3.tar", shards[2])
            next(machines)
            others[0] = open_dataset(where, storage_options=place.options)
        return made

    next(machines)
    monkeypatch.setattr(index_making, "build_index", slowly)
    with caplog.at_level(logging.INFO, logger="shoal"):
        slow = open_dataset(where, storage_options=place.options)
    assert "another machine has published an index" in caplog.text
    assert slow.num_samples == others[0].num_samples - len(range(10))
    assert not where_from(slow).startswith(where)
    assert len(ids_of(slow)) == slow.num_samples
    next(machines)
    monkeypatch.setattr(index_making, "build_index", pytest.fail)
    third = open_dataset(where, storage_options=place.options)
    assert third.stream.opened.index.fingerprint == others[0].stream.opened.index.fingerprint
    assert where_from(third) == f"{where}/shoal.index"


def test_a_store_that_cannot_compare_is_told_to_write(
    root: str, machines: Iterator[None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(MemoryStore, "put_if", Store.put_if)
    next(machines)
    with caplog.at_level(logging.INFO, logger="shoal"):
        first = open_dataset(root)
    assert "written without a condition" in caplog.text
    assert where_from(first) == f"{root}/shoal.index"


def test_an_index_that_somebody_asked_for_meanwhile_stays(
    root: str, machines: Iterator[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    build = build_index

    def meanwhile(found: Any, **more: Any) -> Any:
        made = build(found, **more)
        save_index(made, f"{root}/", store=MemoryStore())
        return made

    next(machines)
    monkeypatch.setattr(index_making, "build_index", meanwhile)
    open_dataset(root)
    assert not was_left_by_opening(load_index(f"{root}/shoal.index", store=MemoryStore()))


def test_shards_of_which_nobody_says_a_version_are_named(
    shards: list[bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An index that is kept from an earlier opening may be of others of the same size, which is not known here."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        data = objects.get(handler.path)
        if data is None:
            return send(handler, 404)
        first, last = map(int, handler.headers["Range"].removeprefix("bytes=").split("-"))
        body = data[first : last + 1]
        dated = {} if handler.path == "/d/a.tar" else {"ETag": '"1"'}
        return send(handler, 206, body, Content_Range=f"bytes {first}-{first + len(body) - 1}/{len(data)}", **dated)

    objects = {"/d/a.tar": shards[0], "/d/b.tar": shards[1]}
    with answering(answer) as (url, _):
        both, one = f"{url}/d/{{a,b}}.tar", f"{url}/d/b.tar"
        for source in (both, one, one):
            open_dataset(source)
        assert "no etag" not in caplog.text  # of what was made now, or has a version, there is nothing to say
        open_dataset(both)
        assert f"1 of 2 shards have no etag and no date (the first is {url}/d/a.tar)" in caplog.text
        caplog.clear()
        kept = tmp_path / "kept.index"
        save_index(open_dataset(both).stream.opened.index, str(kept), store=LocalStore())
        caplog.clear()
        open_dataset(both, index=kept)
        assert caplog.text.count("1 of 2 shards have no etag") == 1


def test_nothing_is_written_beside_shards_unasked(
    root: str, machines: Iterator[None], caplog: pytest.LogCaptureFixture
) -> None:
    next(machines)
    with caplog.at_level(logging.INFO, logger="shoal"):
        first = open_unpublished(root)
    assert "publish_index=True" in caplog.text
    assert MemoryStore().find(f"{root}/shoal.index") is None
    assert not where_from(first).startswith(root)
    # What this machine made before is published when somebody asks for it.
    assert where_from(open_dataset(root)) == f"{root}/shoal.index"
    assert MemoryStore().find(f"{root}/shoal.index") is not None

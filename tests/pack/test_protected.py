"""Engines run units twice and without a lock, so only into stores that can refuse to replace an object."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.pack.files import make_files
from tests.samples import write_jsonl

import shoal
from shoal.errors import StorageError, UsageError
from shoal.pack import clean, pack, plan, plan_repack, repack
from shoal.storage.memory_store import MemoryStore


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_files(tmp_path / "in")


def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)


def cannot_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: MemoryStore, path: str, *_: object, **__: object) -> bool:
        msg = f"could not write {path}: the server does not know conditions"
        error = StorageError(msg)
        error.errno = errno.ENOTSUP
        raise error

    monkeypatch.setattr(MemoryStore, "put_if", refused)


def ignores_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    def written(self: MemoryStore, path: str, data: Any, **_: object) -> bool:
        self.put(path, data)
        return True

    monkeypatch.setattr(MemoryStore, "put_if", written)


def of_fsspec(_: pytest.MonkeyPatch) -> None:
    pass


@pytest.fixture(
    params=[
        (no_links, "this file system has no hard links"),
        (cannot_compare, "the server does not know conditions"),
        (ignores_conditions, "this store wrote an object over an existing object, which the request forbade"),
        (of_fsspec, "this kind of store cannot compare"),
    ],
    ids=lambda param: param[0].__name__,
)
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A destination that cannot protect what is there, options of its store, and what is said of it."""
    break_it: Callable[[pytest.MonkeyPatch], None]
    break_it, said = request.param
    break_it(monkeypatch)
    if break_it is no_links:
        yield str(tmp_path / "out"), {}, said
    elif break_it is of_fsspec:
        fsspec = pytest.importorskip("fsspec")
        filesystem = fsspec.filesystem("memory", skip_instance_cache=True)
        yield "memory:///unprotected/out", {"filesystem": filesystem}, said
        filesystem.rm("/unprotected", recursive=True)
    else:
        yield "memory://unprotected/out", {}, said
        for info in MemoryStore().list("memory://unprotected"):
            MemoryStore().delete(info.path)


def lines_for(tmp_path: Path, options: dict[str, Any]) -> str:
    """A source; a filesystem in the options is that of both sides."""
    path = write_jsonl(tmp_path / "a.jsonl", num_docs=100)
    if "filesystem" not in options:
        return str(path)
    options["filesystem"].pipe_file("/unprotected/a.jsonl", path.read_bytes())
    return "memory:///unprotected/a.jsonl"


def test_a_store_that_cannot_refuse_is_refused(tmp_path: Path, source: Path, place: tuple[str, Any, str]) -> None:
    url, options, said = place
    lines = lines_for(tmp_path, options)
    for make in (
        lambda: plan(source, url, shard_bytes=30_000, storage_options=options),
        lambda: plan_repack(lines, url, shard_bytes=2_000, storage_options=options),
    ):
        with pytest.raises(UsageError, match=said) as refused:
            make()
        assert "could replace each other's shards" in refused.value.message
        assert "S3, GCS, Azure or a file system with hard links" in refused.value.hint
        # Nothing was begun: one machine may pack here.
        assert clean(url, grace_seconds=0, storage_options=options).removed == ()
    made = pack(source, url, shard_bytes=30_000, num_workers=1, storage_options=options)
    assert made.digest == pack(source, tmp_path / "calm", shard_bytes=30_000, num_workers=1).digest
    assert shoal.open(url, storage_options=options).num_samples == 95
    # What is finished is read, whatever the store can do.
    assert plan(source, url, shard_bytes=30_000, storage_options=options).finish().digest == made.digest


def test_a_lost_answer_is_no_reason_to_refuse(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_if, requests = MemoryStore.put_if, count()

    def lost_at_first(self: MemoryStore, path: str, data: Any, *, replaces: Any) -> bool:
        done = put_if(self, path, data, replaces=replaces)
        if next(requests) % 2 == 0:
            error = StorageError("the connection was closed")
            error.transient = True
            raise error
        return done

    monkeypatch.setattr(MemoryStore, "put_if", lost_at_first)
    url = "memory://lost/out"
    job = plan(source, url, shard_bytes=30_000)
    for number in job.missing():
        job.run(number)
    assert job.finish().num_samples == 95
    assert clean(url, grace_seconds=0).removed == ()
    for info in MemoryStore().list(url):
        MemoryStore().delete(info.path)


def test_nor_is_another_machine_that_finishes_just_then(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_if, url = MemoryStore.put_if, "memory://lost/meanwhile"
    notes: list[str] = []

    def removed_at_first(self: MemoryStore, path: str, data: Any, *, replaces: Any) -> bool:
        if path.endswith(".note"):
            if len(notes) < 2:
                self.delete(path)
            notes.append(path)
        return put_if(self, path, data, replaces=replaces)

    monkeypatch.setattr(MemoryStore, "put_if", removed_at_first)
    assert plan(source, url, shard_bytes=30_000).missing()
    assert notes
    assert clean(url, grace_seconds=0).removed == (".shoal-pack/plan.json",)


def test_one_machine_repacks_there_too(tmp_path: Path, place: tuple[str, Any, str]) -> None:
    url, options, _ = place
    lines = lines_for(tmp_path, options)
    made = repack(lines, url, shard_bytes=2_000, num_workers=1, storage_options=options).summary
    assert (
        made.digest == repack(tmp_path / "a.jsonl", tmp_path / "calm", shard_bytes=2_000, num_workers=1).summary.digest
    )


def test_what_one_machine_began_is_not_given_to_engines(source: Path, place: tuple[str, Any, str]) -> None:
    url, options, said = place
    (source / "dog" / "000.txt").write_bytes(b"\xff\xfe")
    arguments: dict[str, Any] = {"shard_bytes": 3_000, "format": "jsonl", "storage_options": options}
    with pytest.raises(UsageError, match="000"):
        pack(source, url, num_workers=1, **arguments)
    with pytest.raises(UsageError, match=said):
        plan(source, url, **arguments)
    # Its shards are still there for it.
    made = pack(source, url, num_workers=1, on_error="skip", **arguments)
    assert made.shards[0].done_before
    assert made.num_samples == 94

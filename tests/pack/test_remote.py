"""Packing into an object store, by processes of their own: nothing stray, no secret, taken up again."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.pack.contents import contents_of
from tests.pack.files import make_files
from tests.samples import write_jsonl
from tests.storage.servers import KEY, SECRET, moto, s3_client, s3_options

import shoal
from shoal.cli.main import main
from shoal.errors import StorageError, UsageError
from shoal.index.table import Index
from shoal.indexing.index_files import load_index, save_index
from shoal.pack import Output, pack, repack
from shoal.storage.files.local_store import LocalStore
from shoal.storage.memory_store import MemoryStore


def test_files_into_s3_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    source = make_files(tmp_path / "in")
    here = pack(source, tmp_path / "here", shard_bytes=40_000, shuffle=True, num_workers=1)
    with moto() as endpoint:
        client, options = s3_client(endpoint), s3_options(endpoint)
        client.create_bucket(Bucket="packed")
        there = pack(
            source,
            "s3://packed/a/b",
            shard_bytes=40_000,
            shuffle=True,
            num_workers=2,
            storage_options=options,
        )
        assert there.digest == here.digest
        assert there.fingerprint == here.fingerprint
        listed = client.list_objects_v2(Bucket="packed")["Contents"]
        assert sorted(entry["Key"] for entry in listed) == sorted(
            f"a/b/{name}" for name in contents_of(tmp_path / "here")
        )
        dataset = shoal.open("s3://packed/a/b", storage_options=options)
        assert dataset[17] == shoal.open(tmp_path / "here")[17]
        for entry in listed:
            data = client.get_object(Bucket="packed", Key=entry["Key"])["Body"].read()
            assert KEY.encode() not in data
            assert SECRET.encode() not in data
        with pytest.raises(UsageError, match="a dataset already"):
            pack(source, "s3://packed/a/b", shard_bytes=50_000, num_workers=1, storage_options=options)


def test_files_in_s3_are_packed_by_repack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    with moto() as endpoint:
        client, options = s3_client(endpoint), s3_options(endpoint)
        client.create_bucket(Bucket="photos")
        for number in range(8):
            client.put_object(Bucket="photos", Key=f"all/{'cat' if number < 5 else 'dog'}/{number}.jpg", Body=b"jpg")
        words = [word for name, value in options.items() for word in ("--storage-option", f"{name}={value}")]
        assert main(["pack", "s3://photos/all", str(tmp_path / "out"), *words]) == 2
        assert "`shoal repack URL DST --format folder` packs files that lie elsewhere" in capsys.readouterr().err
        assert main(["repack", "s3://photos/all", str(tmp_path / "out"), "--format", "folder", *words]) == 0
    dataset = shoal.open(tmp_path / "out")
    assert dataset[5] == {"__key__": "dog/5", "jpg": b"jpg", "cls": b"1"}
    assert dataset.classes == ("cat", "dog")
    assert dataset.select(cls="dog").num_samples == 3
    (tmp_path / "list.csv").write_text("path\ns3://user:secret@photos/all/cat/0.jpg\n")
    with pytest.raises(
        UsageError, match=r"row 0 names s3://photos/all/cat/0\.jpg, but a manifest names files of this machine"
    ):
        pack(tmp_path / "list.csv", tmp_path / "none")


@pytest.mark.parametrize(
    "options",
    [
        {"format": "mds", "num_workers": 1},
        pytest.param({"format": "mds", "num_workers": 2}, marks=pytest.mark.drill),
        {"mix": True, "memory": "160KiB", "seed": 3},
    ],
)
def test_shards_into_s3_and_back_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    bucket = (
        f"repacked-{'mixed' if options.get('mix') else 'by'}-{options.get('num_workers', 0)}"  # outlives its server
    )
    source = write_jsonl(tmp_path / "a.jsonl", num_docs=600)
    here = repack(source, tmp_path / "here", shard_bytes=20_000, **options).summary
    with moto() as endpoint:
        client, storage = s3_client(endpoint), s3_options(endpoint)
        client.create_bucket(Bucket=bucket)
        there = repack(source, f"s3://{bucket}/a", shard_bytes=20_000, storage_options=storage, **options).summary
        assert (there.digest, there.fingerprint) == (here.digest, here.fingerprint)
        listed = [entry["Key"] for entry in client.list_objects_v2(Bucket=bucket)["Contents"]]
        assert sorted(listed) == sorted(f"a/{name}" for name in contents_of(tmp_path / "here"))
        again = repack(f"s3://{bucket}/a", tmp_path / "back", format="jsonl", storage_options=storage)
        assert again.summary.num_samples == 600
        texts = [sample["text"] for sample in shoal.open(tmp_path / "back").partition(rank=0, world_size=1)]
        assert texts == [sample["text"] for sample in shoal.open(tmp_path / "here").partition(rank=0, world_size=1)]


def test_an_index_that_somebody_else_has_written_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, url = make_files(tmp_path / "in"), "memory://raced/a"
    store = MemoryStore()
    pack(source, tmp_path / "other", num_workers=1, shard_bytes=20_000)
    foreign = load_index(str(tmp_path / "other" / "shoal.index"), store=LocalStore())
    left = replace(foreign, metadata={"left_by_opening": True})
    versions = Output.versions

    def with_index(index: Index) -> Any:
        def appears(self: Output, sizes: Mapping[str, int]) -> list[str]:
            save_index(index, f"{url}/shoal.index", store=store)
            return versions(self, sizes)

        return appears

    monkeypatch.setattr(Output, "versions", with_index(foreign))
    with pytest.raises(UsageError, match="another packing has written this file during this packing"):
        pack(source, url, num_workers=1)
    monkeypatch.setattr(Output, "versions", with_index(left))
    store.delete(f"{url}/shoal.index")
    made = pack(source, url, num_workers=1)
    assert load_index(f"{url}/shoal.index", store=store).fingerprint == made.fingerprint
    assert not [info.path for info in store.list(url) if ".shoal-pack" in info.path]


def test_large_shards_wait_in_a_file_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    monkeypatch.setattr("shoal.storage.files.atomic_writes._HELD_BYTES", 5_000)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    source = make_files(tmp_path / "in")
    here = pack(source, tmp_path / "here", shard_bytes=40_000, num_workers=1)
    with moto() as endpoint:
        client, options = s3_client(endpoint), s3_options(endpoint)
        client.create_bucket(Bucket="packed")
        there = pack(source, "s3://packed/b", shard_bytes=40_000, num_workers=1, storage_options=options)
        assert there.digest == here.digest
        body = client.get_object(Bucket="packed", Key="b/shard-000001.tar")["Body"].read()
        assert body == (tmp_path / "here" / "shard-000001.tar").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "in"]


def test_no_room_for_what_waits_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> Any:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr("shoal.storage.files.atomic_writes._HELD_BYTES", 5_000)
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    source = make_files(tmp_path / "in")
    with pytest.raises(StorageError, match=r"could not keep the bytes of memory://no-room/a/shard-000000.tar in /"):
        pack(source, "memory://no-room/a", num_workers=1)


def test_a_bucket_that_is_not_there_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    source = make_files(tmp_path / "in", classes={"a": 2})
    with moto() as endpoint, pytest.raises(StorageError, match="absent"):
        pack(source, "s3://absent/a", num_workers=1, storage_options=s3_options(endpoint))


def test_nothing_is_packed_over_http(tmp_path: Path) -> None:
    """Refused before anybody is asked, and with what can be done instead."""
    files, lines = make_files(tmp_path / "in"), write_jsonl(tmp_path / "in.jsonl")
    for make in (partial(pack, files), partial(repack, lines)):
        with pytest.raises(UsageError, match="cannot be written over http") as refused:
            make("http://127.0.0.1:1/out?token=x")
        assert "s3://" in refused.value.hint
        assert "token" not in str(refused.value)

"""Packing into an object store, by processes of their own: nothing stray, no secret, taken up again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.pack.contents import contents_of
from tests.pack.files import make_files
from tests.storage.servers import KEY, SECRET, moto, s3_client, s3_options

import shoal
from shoal.errors import StorageError, UsageError
from shoal.pack import pack


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


def test_a_bucket_that_is_not_there_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    source = make_files(tmp_path / "in", classes={"a": 2})
    with moto() as endpoint, pytest.raises(StorageError, match="absent"):
        pack(source, "s3://absent/a", num_workers=1, storage_options=s3_options(endpoint))

"""Files that macOS leaves beside others (``._NAME``, ``.DS_Store``) are no part of a sample, wherever they are."""

from __future__ import annotations

import logging
import tarfile
from pathlib import Path

import pytest
from tests.formats.tar_reference import parse_all, scan
from tests.formats.test_histories import TWINS, fresh_process, samples_of, tar_of

import shoal
from shoal.errors import UsageError
from shoal.formats.rows.tar.reader import Tar
from shoal.formats.rows.tar.writer import TarEncoder
from shoal.pack import pack
from shoal.storage.sources.shard_selection import warn_of_hidden

MEMBERS = ["._0.jpg", "train/._0.jpg", "train/0.jpg", "train/._0.cls", "train/0.cls", "train/.DS_Store", "train/0.txt"]


def tar_with(names: list[str]) -> bytes:
    return tar_of((name, tarfile.REGTYPE, 0) for name in names)


@pytest.mark.parametrize("twin", TWINS)
def test_they_split_no_sample_of_a_tar(twin: str) -> None:
    data = tar_with([*MEMBERS, "train/._1.jpg", "train/1.jpg", "__MACOSX/train/._1.jpg"])
    found = scan(data)
    expected = [
        {"__key__": "train/0", **{name: f"train/0.{name}".encode() for name in ("jpg", "cls", "txt")}},
        {"__key__": "train/1", "jpg": b"train/1.jpg"},
    ]
    with fresh_process(twin):
        for samples in samples_of(Tar(), tar_with(["x._0.jpg"]), scan(tar_with(["x._0.jpg"])), shard="s").values():
            assert samples == [
                {"__key__": "x", "_0.jpg": b"x._0.jpg"}
            ]  # such a suffix is one, and is known from now on
        for way, samples in samples_of(Tar(), data, found, shard="s").items():
            assert samples == expected, way
    assert parse_all(data, found, with_starts=False) == expected
    assert found.notes == {"macos_members": 6}


def test_their_number_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from shoal.cli.main import main

    (tmp_path / "train.tar").write_bytes(tar_with(MEMBERS))
    assert shoal.open(tmp_path / "train.tar").num_samples == 1
    assert main(["info", str(tmp_path / "train.tar")]) == 0
    assert "macos members 4" in capsys.readouterr().out


def test_no_sample_is_written_that_would_not_be_read() -> None:
    with pytest.raises(UsageError, match="would be read as no sample"):
        TarEncoder().record({"__key__": "train/", "_0.jpg": b"x"})


def test_they_are_no_files_of_a_folder_and_no_shards(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("cat/0.jpg", "cat/._0.jpg", "dog/1.jpg", "__MACOSX/cat/._0.jpg", "dog/.DS_Store"):
        (tmp_path / "m" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "m" / name).write_bytes(b"x")
    with caplog.at_level(logging.INFO, logger="shoal"):
        images = shoal.open(tmp_path / "m", format="folder")
    assert [sample["__key__"] for sample in images] == ["cat/0", "dog/1"]
    assert images.classes == ("cat", "dog")
    assert "files left out, since their names begin with _ or . as in unfinished work: 2" in caplog.text

    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "0.tar").write_bytes(tar_with(["0.x"]))
    (tmp_path / "t" / "._0.tar").write_bytes(b"\0\x05\x16\x07")
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="shoal"):
        assert shoal.open(tmp_path / "t").num_samples == 1
        assert shoal.open(str(tmp_path / "t" / "*.tar")).num_samples == 1
    assert "as in unfinished work: 1" in caplog.text


@pytest.mark.parametrize("num_workers", [1, 2])
def test_they_are_packed_into_no_shard(
    num_workers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pack` tells of the same files as `open`, in the same words."""
    monkeypatch.setattr("shoal.pack.inputs.listing._ALONE_FILES", 1)
    names = ["cat/0.jpg", "cat/._0.jpg", "dog/1.jpg", ".git/x.jpg", "dog/.DS_Store", "__MACOSX/cat/._0.jpg"]
    for name in [*names, "__MACOSX/2.jpg", "__MACOSX/._cat"]:
        (tmp_path / "m" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "m" / name).write_bytes(b"x")
    said = []
    for action in (
        lambda: shoal.open(tmp_path / "m", format="folder"),
        lambda: pack(tmp_path / "m", tmp_path / "out", num_workers=num_workers),
    ):
        warn_of_hidden.cache_clear()
        caplog.clear()
        action()
        said.append([record.getMessage() for record in caplog.records if "left out" in record.getMessage()])
    assert said[0] == said[1]
    assert "as in unfinished work: 3, the first is" in said[0][0]
    assert said[0][0].endswith("m/__MACOSX/2.jpg")
    assert [sample["__key__"] for sample in shoal.open(tmp_path / "out")] == ["cat/0", "dog/1"]
    assert [sample["__key__"] for sample in shoal.open(tmp_path / "m", format="folder")] == ["cat/0", "dog/1"]

"""Inputs that nobody expects: names that copies take, links in a circle, pipes, files larger than the memory."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.pack.files import make_files

from shoal.errors import StorageError, UsageError
from shoal.pack import PackSummary, pack
from shoal.shards.writing.encoder import Record
from shoal.shards.writing.jsonl import JsonLinesEncoder


def packed(source: Any, out: Path, **options: Any) -> PackSummary:
    return pack(source, out, **{"num_workers": 1, **options})


@pytest.mark.parametrize("grouped", [False, True])
def test_a_copy_does_not_get_the_name_of_another_sample(tmp_path: Path, grouped: bool) -> None:
    make_files(tmp_path / "in", classes={"a": 3, "b": 1})
    (tmp_path / "in" / "b" / "000~2.txt").write_text("another")
    packed(tmp_path / "in", tmp_path / "once", grouped=grouped)
    with pytest.raises(UsageError, match="'b/000' is packed 2 times, and a copy would be 'b/000~2', which there is"):
        packed(tmp_path / "in", tmp_path / "twice", oversample={"b": 2}, grouped=grouped)
    assert not (tmp_path / "twice").exists()


def test_what_cannot_be_looked_at_is_told_when_it_is_read(tmp_path: Path) -> None:
    files = make_files(tmp_path / "in", classes={"a": 3})
    (files / "a" / "circle.txt").symlink_to("circle.txt")
    (files / "a" / "nowhere.txt").symlink_to("none")
    os.mkfifo(files / "a" / "pipe.txt")
    os.utime(files / "a" / "000.txt", ns=(0, (1 << 63) + 1))  # of the year 2262: more nanoseconds than 63 bits hold
    for source in (files, f"{files}/a/*.txt", f"{files}/**"):
        with pytest.raises(StorageError, match=r"circle\.txt: Too many levels of symbolic links"):
            packed(source, tmp_path / "none")
        shutil.rmtree(tmp_path / "none")
        out = tmp_path / "out"
        summary = packed(source, out, on_error="skip")
        assert [name.rpartition("/")[2] for name, _ in summary.skipped] == ["circle.txt", "nowhere.txt", "pipe.txt"]
        assert (summary.num_samples, packed(source, out, on_error="skip").digest) == (3, summary.digest)
        shutil.rmtree(out)


def _with_little_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of memory are not kept elsewhere")
@pytest.mark.parametrize("name", ["tar", "jsonl"])
def test_a_file_larger_than_the_memory_is_told_or_left_out(tmp_path: Path, name: str) -> None:
    files = make_files(tmp_path / "in", classes={"a": 3})
    with (files / "a" / "huge.txt").open("wb") as file:
        file.truncate(2 << 30)  # of which no byte is on the disk
    words = [sys.executable, "-m", "shoal", "pack", files, tmp_path / "out", "--format", name, "--workers", "1"]
    for on_error in ("raise", "skip"):
        done = subprocess.run(
            [*map(str, words), "--on-error", on_error, "--json"],
            preexec_fn=_with_little_memory,  # there is one thread
            capture_output=True,
            text=True,
            check=False,
        )
        if on_error == "raise":
            assert done.returncode == 2
            assert "huge.txt: there is no memory for its 2147483648 bytes" in done.stderr
            assert "Traceback" not in done.stderr
        else:
            assert [entry["name"] for entry in json.loads(done.stdout)["skipped"]] == ["a/huge.txt"]


def test_a_sample_for_which_there_is_no_memory_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(self: JsonLinesEncoder, sample: dict[str, Any]) -> Record:
        if sample["key"] == "a/001":
            raise MemoryError
        return usual(self, sample)

    usual = JsonLinesEncoder.record
    monkeypatch.setattr(JsonLinesEncoder, "record", record)
    make_files(tmp_path / "in", classes={"a": 3})
    with pytest.raises(UsageError, match="there is no memory for the sample 'a/001'"):
        packed(tmp_path / "in", tmp_path / "none", format="jsonl")
    summary = packed(tmp_path / "in", tmp_path / "out", format="jsonl", on_error="skip")
    assert summary.skipped == (("a/001", "there is no memory for the sample 'a/001'"),)


def test_what_is_finished_is_found_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_files(tmp_path / "in", classes={"a": 3})
    first = packed(tmp_path / "in", tmp_path / "out")

    def refused(*_: Any, **__: Any) -> Any:
        msg = "could not lock: Read-only file system"
        raise StorageError(msg)

    monkeypatch.setattr("shoal.pack.output.Lock", refused)
    assert packed(tmp_path / "in", tmp_path / "out").digest == first.digest
    with pytest.raises(UsageError, match="there is a dataset already"):
        packed(tmp_path / "in", tmp_path / "out", shuffle=True)
    with pytest.raises(StorageError, match="Read-only"):
        packed(tmp_path / "in", tmp_path / "new")

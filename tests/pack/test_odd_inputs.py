"""Inputs that nobody expects: names that copies take, links in a circle, pipes, files larger than the memory."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.pack.files import make_files

import shoal
from shoal.cli.main import main
from shoal.errors import StorageError, UsageError
from shoal.formats.rows.lines.writer import JsonLinesEncoder
from shoal.formats.writing.encoder import EncodedRecord
from shoal.pack import PackSummary, pack
from shoal.pack.from_shards.repacking import repack
from shoal.pack.inputs.input_sources import inputs_of
from shoal.pack.packing import pack_inputs
from shoal.pack.requests import PackRequest
from shoal.storage.files.small_files import read_small


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
        with pytest.raises(
            StorageError, match=r"circle\.txt: it is a link to circle\.txt, and the links lead in a circle"
        ):
            packed(source, tmp_path / "none")
        shutil.rmtree(tmp_path / "none")
        out = tmp_path / "out"
        summary = packed(source, out, on_error="skip")
        assert [name.rpartition("/")[2] for name, _ in summary.skipped] == ["circle.txt", "nowhere.txt", "pipe.txt"]
        assert (summary.num_samples, packed(source, out, on_error="skip").digest) == (3, summary.digest)
        shutil.rmtree(out)


def test_a_link_in_the_place_of_a_directory_that_a_glob_names_is_told(tmp_path: Path) -> None:
    files = make_files(tmp_path / "in", classes={"a": 3})
    (files / "b").symlink_to("nowhere")
    for source in (f"{files}/*/*.txt", f"{files}/**/*.txt"):
        with pytest.raises(StorageError, match=r"in/b: it is a link to nowhere, which does not exist"):
            packed(source, tmp_path / "none")
        summary = packed(source, tmp_path / "out", on_error="skip")
        assert ([name for name, _ in summary.skipped], summary.num_samples) == (["b"], 3)
        shutil.rmtree(tmp_path / "out")


# Runs a command of the shell with little memory for each list of words, and writes down what it returns.
WITH_LITTLE_MEMORY = """
import json, resource, sys
from shoal.cli.main import main
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
sys.stderr.write(json.dumps([main(words) for words in json.loads(sys.argv[1])]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of memory are not kept elsewhere")
def test_a_file_larger_than_the_memory_is_told_or_left_out(tmp_path: Path) -> None:
    files = make_files(tmp_path / "in", classes={"a": 3})
    with (files / "a" / "huge.txt").open("wb") as file:
        file.truncate(2 << 30)  # of which no byte is on the disk
    runs = [
        ["pack", str(files), str(tmp_path / name), "--format", name, "--workers", "1", "--on-error", on_error, "--json"]
        for name in ("tar", "jsonl")
        for on_error in ("raise", "skip")
    ]
    done = subprocess.run(
        [sys.executable, "-c", WITH_LITTLE_MEMORY, json.dumps(runs)], capture_output=True, text=True, check=True
    )
    assert done.stderr.endswith("[2, 0, 2, 0]")
    assert done.stderr.count("huge.txt: there is not enough memory for its 2147483648 bytes") == 2
    assert "Traceback" not in done.stderr
    skipped = [json.loads(line)["skipped"] for line in done.stdout.splitlines()]
    assert [[entry["name"] for entry in entries] for entries in skipped] == [["a/huge.txt"]] * 2


def test_a_sample_for_which_there_is_no_memory_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(self: JsonLinesEncoder, sample: dict[str, Any]) -> EncodedRecord:
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

    monkeypatch.setattr("shoal.pack.output.destination.InheritedLock", refused)
    assert packed(tmp_path / "in", tmp_path / "out").digest == first.digest
    with pytest.raises(UsageError, match="there is a dataset already"):
        packed(tmp_path / "in", tmp_path / "out", shuffle=True)
    with pytest.raises(StorageError, match="Read-only"):
        packed(tmp_path / "in", tmp_path / "new")


@pytest.mark.parametrize("name", ["tar", "jsonl"])
def test_too_many_open_files_are_the_fault_of_no_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    make_files(tmp_path / "in", classes={"a": 3})
    files = inputs_of(tmp_path / "in", PackRequest(name))
    usual = os.open

    def refused(path: Any, *rest: Any, **options: Any) -> int:
        if b"001.txt" in os.fsencode(path):
            raise OSError(errno.EMFILE, "Too many open files")
        return usual(path, *rest, **options)

    monkeypatch.setattr("os.open", refused)
    with pytest.raises(StorageError, match="Too many open files"):
        pack_inputs(files, tmp_path / "out", PackRequest(name, 1 << 20, on_error="skip", num_workers=1))


def test_a_manifest_with_a_nul_in_a_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"path\na\0.txt\n")
    with pytest.raises(UsageError, match=r"row 0 has 'a\\x00.txt' where a path should be"):
        packed(tmp_path / "rows.csv", tmp_path / "out")


@pytest.mark.parametrize(
    "script",
    [
        'mkdir gone; cd gone; rmdir ../gone; exec "$@" >&-',
        pytest.param('exec "$@" >&-', marks=pytest.mark.drill),
        pytest.param('mkdir gone; cd gone; rmdir ../gone; exec "$@"', marks=pytest.mark.drill),
    ],
)
def test_neither_a_stdout_nor_a_directory_is_needed(tmp_path: Path, script: str) -> None:
    make_files(tmp_path / "in", classes={"a": 3})
    words = [sys.executable, "-m", "shoal", "pack", str(tmp_path / "in"), str(tmp_path / "out")]
    done = subprocess.run(
        ["/bin/sh", "-c", script, "sh", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_relative_path_needs_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_files(tmp_path / "in", classes={"a": 3})
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["pack", str(tmp_path / "in"), "relative"]) == 2
    assert capsys.readouterr().err.startswith("shoal: error: the working directory was removed\n")


@pytest.mark.parametrize("name", ["mds", "tfrecord", "jsonl"])
def test_the_sample_that_a_format_cannot_hold_is_named(tmp_path: Path, name: str) -> None:
    rows: list[dict[str, Any]] = [{"path": f"{i}.txt", "value": "\ud800" if i == 3 else "text"} for i in range(5)]
    for row in rows:
        (tmp_path / row["path"]).write_text("text")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UsageError, match=r"'3'.*surrogates not allowed") as refused:
        packed(tmp_path / "rows.jsonl", tmp_path / "out", format=name)
    assert refused.value.message.count("'3'") == 1
    for row in rows:
        del row["path"]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UsageError, match=rf"^sample 3 of shard-000000\.{name}: .*surrogates not allowed"):
        repack(tmp_path / "lines.jsonl", tmp_path / "again", format=name, num_workers=1)


def files_of(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "options", "refused"),
    [
        ({"a/0.cls": "7"}, {}, "'a/0.cls' would be the field 'cls' of its sample, but its class has this name"),
        ({"a/0.CLS": "7", "a/0.txt": "x"}, {"grouped": True}, "'a/0.CLS' would be the field 'cls'"),
        ({"a/0.cls": "7", "a/0.txt": "x"}, {"grouped": True, "format": "parquet"}, "'cls'.*its class"),
        ({"a/0.key": "7", "a/0.txt": "x"}, {"grouped": True, "format": "jsonl"}, "'key'.*its key"),
        ({"0.json": "{}", "m.csv": "path,a\n0.json,1\n"}, {}, "'json' of its sample, but the row of the manifest has"),
    ],
)
def test_a_file_whose_place_something_else_would_take_is_refused(
    tmp_path: Path, files: dict[str, str], options: dict[str, Any], refused: str
) -> None:
    root = files_of(tmp_path / "in", files)
    source = root / "m.csv" if "m.csv" in files else root
    with pytest.raises(UsageError, match=refused):
        pack(source, tmp_path / "out", num_workers=1, **options)
    assert not (tmp_path / "out").exists()


def test_a_file_keeps_its_place_where_nothing_else_wants_it(tmp_path: Path) -> None:
    root = files_of(tmp_path / "in", {"a/0.cls": "7", "a/0.json": "{}"})
    pack(root, tmp_path / "a", grouped=True, labelled=False, num_workers=1)
    assert shoal.open(tmp_path / "a")[0] == {"__key__": "a/0", "cls": b"7", "json": b"{}"}
    pack(root, tmp_path / "b", grouped=True, labelled=False, format="jsonl", num_workers=1)
    assert shoal.open(tmp_path / "b")[0] == {"key": "a/0", "cls": "7", "json": "{}"}


def test_a_link_to_a_device_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zero.txt").symlink_to("/dev/zero")
    asked = []

    def read(descriptor: int, num_bytes: int) -> bytes:
        asked.append(num_bytes)
        return b""

    monkeypatch.setattr(os, "read", read)
    with pytest.raises(StorageError, match="it is a directory, a pipe, a socket or a device, not a file"):
        read_small(str(tmp_path / "zero.txt"), -1, 0)
    assert asked == []


def test_a_column_named_data_does_not_replace_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("what the file says")
    (tmp_path / "rows.csv").write_text("path,data\na.txt,what the row says\n")
    packed(tmp_path / "rows.csv", tmp_path / "out", format="jsonl")
    sample = shoal.open(tmp_path / "out")[0]
    assert (sample["text"], sample["data"]) == ("what the file says", "what the row says")

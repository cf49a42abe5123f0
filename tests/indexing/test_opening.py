from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.forks import Meeting, results

from shoal.errors import IndexFileError, ShardError, SourceError, StorageError
from shoal.formats.format_registry import format_named
from shoal.indexing import index_making
from shoal.indexing.build import build_index
from shoal.indexing.index_files import load_index, save_index
from shoal.indexing.open_source import choose_format, known_suffixes, open_source
from shoal.indexing.opened_dataset import Opened
from shoal.storage.files.local_store import LocalStore
from shoal.storage.sources.source import expand

PACKAGE_HOME = Path(__file__).parents[2] / "src"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in ("train/000", "train/001", "train/002 ü", "web/000"):
        path = tmp_path / "data" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f'{{"id": "{name}-{number}"}}\n' for number in range(100)))
    return tmp_path / "data"


def make_index(directory: Path, to: Path | None = None) -> str:
    found = expand(directory, suffixes=(".jsonl",))
    index = build_index(found, store=LocalStore(), format=format_named("jsonl"))
    return save_index(index, to or directory, store=LocalStore())


def names(opened: Opened) -> list[str]:
    assert [Path(path).name for path in opened.paths] == [Path(name).name for name in opened.index.shard_names]
    return list(opened.index.shard_names)


def test_made_once_and_cached(data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_source(data)
    assert names(first) == ["train/000.jsonl", "train/001.jsonl", "train/002 ü.jsonl", "web/000.jsonl"]
    assert first.index_path is not None
    assert Path(first.index_path).parent == cache / "indexes"
    assert first.format is format_named("jsonl")
    monkeypatch.setattr(index_making, "build_index", pytest.fail)
    again = open_source(str(data))
    assert again.index_path == first.index_path
    assert again.index.fingerprint == first.index.fingerprint
    assert again.store.read_range(again.paths[3], 0, 18) == b'{"id": "web/000-0"'


def test_a_changed_shard_is_another_cache_entry(data: Path) -> None:
    first = open_source(data)
    with (data / "web/000.jsonl").open("a") as file:
        file.write('{"id": "new"}\n')
    second = open_source(data)
    assert second.index_path != first.index_path
    assert int(second.index.extent_num_samples.sum()) == 401


def test_a_damaged_cache_is_made_again(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = open_source(data)
    assert first.index_path is not None
    Path(first.index_path).unlink()
    Path(first.index_path).write_bytes(b"nonsense")
    assert open_source(data).index.fingerprint == first.index.fingerprint
    assert "made again" in caplog.text
    assert load_index(first.index_path, store=LocalStore()).fingerprint == first.index.fingerprint


@pytest.mark.parametrize("variables", [{"XDG_CACHE_HOME": "x"}, {"HOME": "h"}])
def test_where_the_cache_lies(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    monkeypatch.delenv("SHOAL_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for name, value in variables.items():
        (tmp_path / value).mkdir()
        monkeypatch.setenv(name, str(tmp_path / value))
    where = {"XDG_CACHE_HOME": tmp_path / "x/shoal", "HOME": tmp_path / "h/.cache/shoal"}[next(iter(variables))]
    made = open_source(data)
    assert str(made.index_path).startswith(f"{where}/indexes/")
    given = open_source(data, cache_dir=tmp_path / "given")
    assert str(given.index_path).startswith(f"{tmp_path}/given/indexes/")


def test_an_unwritable_cache_is_a_warning(data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    opened = open_source(data, cache_dir=tmp_path / "file")
    assert opened.index_path is None
    assert len(opened.paths) == 4
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a directory that even root cannot write")
def test_a_read_only_cache_is_a_warning(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert open_source(data, cache_dir="/proc/self/shoal").index_path is None
    assert "cannot be kept" in caplog.text


def test_index_beside_the_shards(data: Path, cache: Path) -> None:
    path = make_index(data)
    assert path == str(data / "shoal.index")
    opened = open_source(data)
    assert opened.index_path == path
    assert not cache.exists()
    some = open_source(f"{data}/{{web,train}}/000.jsonl")
    assert some.index_path == path
    assert names(some) == ["web/000.jsonl", "train/000.jsonl"]
    assert some.index.fingerprint != opened.index.fingerprint
    assert open_source(f"{data}/**/*.jsonl").index.fingerprint == opened.index.fingerprint


def test_the_index_as_source(data: Path) -> None:
    path = make_index(data)
    opened = open_source(path)
    assert names(opened)[0] == "train/000.jsonl"
    (data / "web/000.jsonl").unlink()
    (data / "train/000.jsonl").unlink()
    with pytest.raises(StorageError, match=r"2 of its 4 shards are not beside it; the first is .*train/000\.jsonl"):
        open_source(path)
    with pytest.raises(SourceError, match="is another"):
        open_source(path, index=path)


def test_a_directory_with_more_or_fewer_shards_than_its_index(data: Path) -> None:
    make_index(data)
    shutil.copy(data / "web/000.jsonl", data / "web/001 new.jsonl")
    with pytest.raises(IndexFileError, match=r"does not know 1 of 5 shards, first .*001 new\.jsonl") as caught:
        open_source(data)
    assert f"`shoal index {data} --append`" in caught.value.hint
    # Named shards that the index does not know are indexed on their own.
    assert names(open_source(f"{data}/web/*.jsonl")) == ["000.jsonl", "001 new.jsonl"]
    assert names(open_source([data / "train/000.jsonl", data / "web/001 new.jsonl"]))[0] == "train/000.jsonl"
    (data / "web/001 new.jsonl").unlink()
    (data / "train/001.jsonl").unlink()
    with pytest.raises(IndexFileError, match=r"lacks 1 of the 4 shards that the index .* first train/001\.jsonl"):
        open_source(data)


def test_index_given(data: Path, tmp_path: Path) -> None:
    path = make_index(data, tmp_path / "elsewhere" / "my.index")
    whole = open_source(data, index=path)
    assert whole.index_path == path
    moved = shutil.copytree(data / "train", tmp_path / "moved")
    by_base_name = open_source(f"{moved}/00[12]*.jsonl", index=path)
    assert names(by_base_name) == ["train/001.jsonl", "train/002 ü.jsonl"]
    assert by_base_name.paths[0] == str(moved / "001.jsonl")
    with pytest.raises(IndexFileError, match=r"could be either of train/000\.jsonl and web/000\.jsonl"):
        open_source(moved / "000.jsonl", index=path)
    with pytest.raises(IndexFileError, match="lacks 1 of the 4 shards"):
        shutil.rmtree(data / "web")
        open_source(data, index=path)
    (data / "train" / "x.jsonl").write_text("{}\n")
    with pytest.raises(IndexFileError, match=r"does not know 1 of 4 shards, first .*x\.jsonl"):
        open_source(data, index=path)
    with pytest.raises(StorageError, match="No such file"):
        open_source(data, index=tmp_path / "none.index")


def test_two_shards_with_the_name_of_one(data: Path, tmp_path: Path) -> None:
    path = make_index(data / "web", tmp_path / "my.index")
    with pytest.raises(IndexFileError, match=r"two shards have the name 000\.jsonl"):
        open_source(f"{data}/*/000.jsonl", index=path)


def test_a_damaged_index_is_named(data: Path) -> None:
    (data / "shoal.index").write_bytes(b"x" * 100)
    with pytest.raises(IndexFileError, match=r"shoal\.index: ") as caught:
        open_source(data)
    assert caught.value.hint


def test_formats(data: Path, tmp_path: Path) -> None:
    make_index(data)
    with pytest.raises(IndexFileError, match=r"was given, but the index .* is of 'jsonl'"):
        open_source(f"{data}/web/000.jsonl", format="tar", index=data / "shoal.index")
    (tmp_path / "mixed").mkdir()
    for name in ("a.jsonl", "b.tar"):
        (tmp_path / "mixed" / name).write_bytes(b"")
    with pytest.raises(SourceError, match=r"two formats: .*a\.jsonl \(jsonl\) and .*b\.tar \(tar\)"):
        open_source(tmp_path / "mixed")
    assert names(open_source(tmp_path / "mixed", format="jsonl")) == ["a.jsonl"]
    (tmp_path / "plain").write_text('{"a": 1}\n')
    with pytest.raises(SourceError, match=r"does not say which format.*, each alone or followed by \.gz, "):
        open_source(tmp_path / "plain")
    own = format_named("jsonl")
    assert open_source(tmp_path / "plain", format=own).format is own
    with pytest.raises(SourceError, match="no shard format 'zip'"):
        open_source(data, format="zip")
    assert choose_format(expand(data, suffixes=known_suffixes())).name == "jsonl"


def test_a_copied_dataset_is_the_same_dataset(data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_index(data)
    before = open_source(data)
    copy = shutil.copytree(data, tmp_path / "copy", copy_function=shutil.copyfile)
    with caplog.at_level(logging.INFO, logger="shoal"):
        after = open_source(copy)
    assert after.index.fingerprint == before.index.fingerprint
    assert "4 of 4 shards differ in size or time" in caplog.text
    for shard in range(4):
        after.check.check(shard)
    text = (copy / "train/001.jsonl").read_text()
    (copy / "train/001.jsonl").write_text(text.replace("001-7", "001-8"))
    with pytest.raises(ShardError, match=r"train/001\.jsonl, byte 0"):
        open_source(copy).check.check(1)


def test_linked_shards(data: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "a.jsonl").symlink_to(data / "train/000.jsonl")
    (linked / "sub").symlink_to(data / "web")
    opened = open_source(linked)
    assert names(opened) == ["a.jsonl", "sub/000.jsonl"]
    opened.check.check(0)
    opened.check.check(1)
    (linked / "b.jsonl").symlink_to(data / "nowhere")
    with pytest.raises(StorageError, match=r"it is a link to .*nowhere, which does not exist"):
        open_source(linked)


def test_an_index_survives_the_file(data: Path) -> None:
    path = make_index(data)
    original = load_index(path, store=LocalStore())
    again = save_index(original, data / "copy.index", store=LocalStore())
    loaded = load_index(again, store=LocalStore())
    assert loaded.fingerprint == original.fingerprint
    assert np.array_equal(loaded.extent_layout_crc, original.extent_layout_crc)
    assert save_index(original, f"{data}/new/", store=LocalStore()) == f"{data}/new/shoal.index"


def run_script(tmp_path: Path, text: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    script = tmp_path / "train script.py"
    if not script.exists():  # a file written anew is empty for a moment, and another process may be reading it
        script.write_text(text)
    environment = os.environ | {"PYTHONPATH": str(PACKAGE_HOME), **variables}
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_script_without_main_guard_runs_once(data: Path, tmp_path: Path) -> None:
    text = """
import sys
print("top level")
from shoal.indexing.open_source import open_source
opened = open_source(sys.argv[1])
print(int(opened.index.extent_num_samples.sum()))
"""
    with run_script(tmp_path, text, str(data), SHOAL_INDEX_WORKERS="2") as script:
        output, errors = script.communicate()
    assert output.splitlines() == ["top level", "400"], errors
    assert not errors


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_that_open_at_once_index_once(data: Path, tmp_path: Path) -> None:
    all_ready = Meeting(tmp_path / "ready", 4)

    def open_now() -> tuple[bool, str]:
        calls = []

        def progress(*numbers: int) -> None:
            calls.append(numbers)
            time.sleep(0.05)

        all_ready.wait()
        fingerprint = open_source(data, progress=progress).index.fingerprint
        return bool(calls), fingerprint

    openings = results(*[open_now] * 4)
    assert sorted(is_made for is_made, _ in openings) == [False, False, False, True]
    assert len({fingerprint for _, fingerprint in openings}) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_children_read_what_the_parent_opened(data: Path) -> None:
    opened = open_source(data)
    opened.check.check(0)
    opened.store.read_range(opened.paths[0], 0, 10)
    pids = []
    for child in range(4):
        pid = os.fork()
        if pid == 0:
            opened.check.check(child)
            end = int(opened.index.shard_bytes[child])
            same = opened.store.read_range(opened.paths[child], 0, end) == Path(opened.paths[child]).read_bytes()
            os._exit(0 if same else 1)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4

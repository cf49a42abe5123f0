"""Files in blocks: the same shards as one by one, whatever they are called; and the same things said."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pack.contents import contents_of
from tests.pack.files import make_files

from shoal.errors import ShoalError, StorageError
from shoal.formats.writing.encoder import RecordBlock
from shoal.pack import Shard, pack
from shoal.pack.inputs import tree_inputs
from shoal.pack.inputs.input_sources import inputs_of
from shoal.pack.inputs.listing import files_below
from shoal.pack.inputs.tree_inputs import TreeSamples
from shoal.pack.jobs.process_jobs import useful_workers
from shoal.pack.packing import _seconds_of
from shoal.pack.requests import PackRequest
from shoal.pack.shards.shard_plan import plan_shards

PARTS = st.text(st.sampled_from("abZ_.-é\u00a0\udc80 ~"), min_size=1, max_size=6).filter(lambda name: name[0] != ".")
FILES = st.dictionaries(
    st.one_of(
        st.sampled_from(["x.txt", "__key__.txt", "a.__url__", "a.cls", "a.CLS", "b.length", "no", "many.dots.png"]),
        st.lists(PARTS, min_size=1, max_size=3).map("/".join),
        st.just("long" * 30 + ".txt"),
    ),
    st.binary(max_size=1200),
    min_size=1,
    max_size=8,
)
OPTIONS = st.sampled_from([{}, {"labelled": False}, {"columns": ["length"]}, {"columns": ["length"], "shuffle": True}])


def written(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / "in" / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except (FileExistsError, IsADirectoryError, NotADirectoryError):
            continue  # a file where another wants its directory
    return root / "in"


def outcome(source: Path, out: Path, options: dict[str, Any]) -> Any:
    """What is made, or said."""
    try:
        pack(source, out, shard_bytes=5000, num_workers=1, **options)
    except ShoalError as error:
        return type(error), str(error)
    return contents_of(out)


@given(FILES, OPTIONS)
@settings(max_examples=20, deadline=None)
def test_blocks_are_what_one_by_one_gives(files: dict[str, bytes], options: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:
        source = written(Path(home), files)
        found = outcome(source, Path(home, "blocks"), options)
        patch.setattr(TreeSamples, "blocks", lambda self, _: iter(self))
        assert found == outcome(source, Path(home, "single"), options)


def items_of(source: Path) -> list[Any]:
    inputs = inputs_of(str(source), PackRequest("tar"))
    samples: Any = inputs.samples(np.arange(len(inputs)), np.zeros(len(inputs), dtype=np.int64))
    return list(samples.blocks(Shard("a.tar", "tar")))


def test_usual_files_do_come_in_blocks(tmp_path: Path) -> None:
    (found,) = items_of(make_files(tmp_path / "in"))
    assert isinstance(found, RecordBlock)
    assert found.num_records == 95
    (tmp_path / "in" / "dog" / "000.txt").write_bytes(bytes(3 << 20))
    assert [item.num_records for item in items_of(tmp_path / "in")] == [31, 64]  # one that is large ends its block


@pytest.mark.parametrize("columns", [[], ["length"]])
def test_a_file_that_changes_after_it_was_listed_is_an_error(
    tmp_path: Path, columns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_files(tmp_path / "in")
    victim = source / "dog" / "030.txt"
    listed = tree_inputs.tree_inputs

    def listed_and_touched(*arguments: Any, **options: Any) -> Any:
        found = listed(*arguments, **options)
        os.utime(victim, ns=(0, victim.stat().st_mtime_ns + 1))
        return found

    monkeypatch.setattr("shoal.pack.inputs.input_sources.tree_inputs", listed_and_touched)
    with pytest.raises(StorageError, match=r"030.txt: this file changed while it was being packed"):
        pack(source, tmp_path / "out", num_workers=1, columns=columns)
    summary = pack(source, tmp_path / "skipping", num_workers=1, columns=columns, on_error="skip")
    ((name, reason),) = summary.skipped
    assert name == "dog/030.txt"
    assert "it was written to" in reason
    assert str(tmp_path) not in reason
    assert summary.num_samples == 94


def make_tree(root: Path) -> Path:
    for name in ("b.txt", "b/x.txt", "b-c/x.txt", "b/m/x.txt", "b/z.txt", "a/x", "c.d/e.f", ".hidden/x", "a/.hidden"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "b" / "loop").symlink_to(root)
    (root / "b" / "link.txt").symlink_to(root / "b.txt")
    (root / "b" / "nowhere").symlink_to(root / "nothing")
    (root / "empty").mkdir()
    return root


def names_below(root: str) -> Iterator[str]:
    for directory, directories, files in os.walk(root):
        directories[:] = [name for name in directories if name[0] != "."]
        for name in files:
            if name[0] != ".":
                yield str((Path(directory) / name).relative_to(root))


@pytest.mark.parametrize("num_workers", [1, 3])
def test_files_are_listed_by_whole_names(tmp_path: Path, num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.pack.inputs.listing._ALONE_FILES", 0)
    root = make_tree(tmp_path)
    found = files_below(str(root), num_workers=num_workers)
    assert found.names() == sorted(names_below(str(root)))
    sizes = dict(zip(found.names(), found.num_bytes.tolist(), strict=True))
    assert sizes["b/link.txt"] == len("b.txt")
    assert sizes["b/nowhere"] == -1
    assert found.modified_ns[0] == (root / found.names()[0]).stat().st_mtime_ns


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_directory_that_cannot_be_listed_is_an_error_that_names_it(
    tmp_path: Path, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.pack.inputs.listing._ALONE_FILES", 0)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("deep" * 40, dir_fd=descriptor)
        inner = os.open("deep" * 40, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    with pytest.raises(StorageError, match=r"could not list .*deep"):  # its path is longer than the system takes
        files_below(str(tmp_path), num_workers=num_workers)


def test_parts_of_a_tree(tmp_path: Path) -> None:
    tree = files_below(str(make_tree(tmp_path)))
    names = tree.names()
    for start in range(len(names) + 1):
        for stop in range(start, len(names) + 1):
            part = tree.part(start, stop)
            assert part.names() == names[start:stop]
            assert part.take(np.arange(len(part))).names() == part.names()
    for numbers in ([3, 0, 0, 5], [1, 3], [len(names) - 1], []):
        taken = tree.take(np.array(numbers, dtype=np.int64))
        assert taken.names() == [names[number] for number in numbers]
        assert taken.num_bytes.tolist() == tree.num_bytes[numbers].tolist()
        assert len(taken.last_parts()) == len(numbers)


def test_processes_are_started_where_they_have_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.pack.jobs.process_jobs.usable_processors", lambda: 8)

    def workers(num_files: int, num_bytes: int) -> int:
        return useful_workers(_seconds_of(plan_shards(np.full(num_files, num_bytes), shard_bytes=64 << 20)))

    assert [workers(1_000, 1000), workers(100_000, 1000), workers(300_000, 1000), workers(1_000_000, 1000)] == [
        1,
        1,
        3,
        8,
    ]
    assert workers(1_000, 2_000_000) == 4  # few, and large

"""Directories whose log or names say which of their files count, on this machine and in a store."""

from __future__ import annotations

from pathlib import Path

import pytest

import shoal
from shoal.errors import SourceError
from shoal.storage.memory_store import MemoryStore
from shoal.storage.sources.source import Source, expand

TABLES = {
    "_delta_log/00000000000000000000.json": "a Delta Lake table",
    "metadata/00001-abc.metadata.json": "an Iceberg table",
    ".hoodie/hoodie.properties": "a Hudi table",
    ".hoodie/20240101.commit": "a Hudi table",
    "_spark_metadata/0": "streaming query",
    "_temporary/0/task_1/part-0.parquet": "not finished",
    "k=v/.hoodie_partition_metadata": "a Hudi table",
}


def directory(tmp_path: Path, names: list[str], *, remote: bool) -> tuple[str, MemoryStore | None]:
    """Make a directory of these files here, or a store; return its name."""
    if remote:
        root, store = f"memory://{tmp_path.name}/table", MemoryStore()
        for name in names:
            store.put(f"{root}/{name}", b"x")
        return root, store
    for name in names:
        path = tmp_path / "table" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return str(tmp_path / "table"), None


def named(tmp_path: Path, names: list[str], pattern: str = "", *, remote: bool) -> Source:
    root, store = directory(tmp_path, names, remote=remote)
    return expand(root + pattern, suffixes=[".parquet"], store=store)


both = pytest.mark.parametrize("remote", [False, True], ids=["here", "remote"])


@both
@pytest.mark.parametrize("log", TABLES)
def test_a_table_that_keeps_a_log_is_refused(log: str, remote: bool, tmp_path: Path) -> None:
    for below in ("", "deep/"):
        with pytest.raises(SourceError, match=TABLES[log]) as caught:
            named(tmp_path, [f"{below}{log}", f"{below}a.parquet"], remote=remote)
        assert "by a glob" not in caught.value.hint


@both
@pytest.mark.parametrize("log", TABLES)
@pytest.mark.parametrize("below", ["", "deep/", "deep/er/"])
def test_a_glob_over_a_table_that_keeps_a_log_is_refused(log: str, below: str, remote: bool, tmp_path: Path) -> None:
    names = [f"{below}{log}", f"{below}a.parquet", f"{below}k=v/b.parquet", "other/c.parquet"]
    for pattern in ("/**/*.parquet", f"/{below}*.parquet", "/{deep,other}/**/*.parquet"):
        if ("{" in pattern and not below) or ("**" not in pattern and "k=v" in log):
            continue
        with pytest.raises(SourceError, match=TABLES[log]):
            named(tmp_path, names, pattern, remote=remote)
    assert named(tmp_path, names, "/other/*.parquet", remote=remote).names == ("c.parquet",)
    if below:
        assert named(tmp_path, names, "/o*/*.parquet", remote=remote).names == ("other/c.parquet",)


@both
def test_names_that_writers_hide_are_left_out(remote: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = [
        "a.parquet",
        "k=_v/b.parquet",
        ".c.parquet",
        "_tmp/a.parquet",
        "_a.parquet",
        "_SUCCESS",
        "x/_old/y/c.parquet",
    ]
    caplog.set_level("WARNING", "shoal")
    assert named(tmp_path, names, remote=remote).names == ("a.parquet", "k=_v/b.parquet")
    (record,) = caplog.records
    assert "begin with _ or . as in unfinished work: 4, the first is" in record.getMessage()


@both
def test_a_glob_leaves_out_hidden_names_but_those_it_names(
    remote: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["a.parquet", "_tmp/b.parquet", "_c.parquet", "k=_v/d.parquet", "_year=2024/e.parquet", "x/_old/f.parquet"]
    caplog.set_level("WARNING", "shoal")
    expected = ("_year=2024/e.parquet", "a.parquet", "k=_v/d.parquet")
    assert named(tmp_path, names, "/**/*.parquet", remote=remote).names == expected
    (record,) = caplog.records
    assert "begin with _ or . as in unfinished work: 3, the first is" in record.getMessage()
    for pattern, found in {
        "/_*.parquet": ("_c.parquet",),
        "/_tmp/*.parquet": ("b.parquet",),
        "/*/_old/*.parquet": ("x/_old/f.parquet",),
        "/**/_old/*.parquet": ("x/_old/f.parquet",),
        "/_*/*.parquet": ("_tmp/b.parquet", "_year=2024/e.parquet"),
    }.items():
        assert named(tmp_path, names, pattern, remote=remote).names == found, pattern
    with pytest.raises(SourceError, match=r"matches nothing but 1 .* begin with _ or \."):
        named(tmp_path, names, "/*/*/*.parquet", remote=remote)


@both
def test_files_that_are_samples_may_begin_with_an_underscore_in_a_glob_too(remote: bool, tmp_path: Path) -> None:
    root, store = directory(tmp_path, ["_background_noise_/a.jpg", "yes/_b.jpg"], remote=remote)
    found = expand(root + "/*/*.jpg", suffixes=[".jpg", "metadata.csv"], store=store)
    assert found.names == ("_background_noise_/a.jpg", "yes/_b.jpg")


@both
def test_a_directory_that_begins_with_an_underscore_can_be_opened_itself(remote: bool, tmp_path: Path) -> None:
    names = ["_tmp/a.parquet", "_year=2024/b.parquet"]
    assert named(tmp_path, names, "/_tmp", remote=remote).names == ("a.parquet",)
    assert named(tmp_path, names, remote=remote).names == ("_year=2024/b.parquet",)


@both
def test_a_directory_of_hidden_names_alone_says_so(remote: bool, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"found no files, and 1 whose names begin with _ or \."):
        named(tmp_path, ["_tmp/a.parquet"], remote=remote)


def test_a_class_may_begin_with_an_underscore(tmp_path: Path) -> None:
    root, _ = directory(tmp_path, ["_background_noise_/a.jpg", "yes/b.jpg", ".thumbnails/c.jpg"], remote=False)
    assert shoal.open(root, format="folder").classes == ("_background_noise_", "yes")

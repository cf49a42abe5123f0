from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from shoal.storage.cache_directory import keep_within, mark_used


def write(directory: Path, number: int, *, num_bytes: int = 100, suffix: str = ".index") -> Path:
    """A file last used ``number`` seconds after 1970."""
    path = directory / f"{number:032x}{suffix}"
    path.write_bytes(bytes(num_bytes))
    os.utime(path, (number, number))
    return path


def names(directory: Path) -> list[int]:
    return sorted(int(path.name[:32], 16) for path in directory.iterdir() if not path.name.endswith(".lock"))


@pytest.mark.parametrize(("limit_bytes", "limit_files", "left"), [(350, 99, [3, 4, 5]), (10_000, 2, [4, 5])])
def test_what_was_used_least_recently_goes(tmp_path: Path, limit_bytes: int, limit_files: int, left: list[int]) -> None:
    for number in range(6):
        write(tmp_path, number)
        (tmp_path / f"{number:032x}.index.lock").touch()
    removed = keep_within(str(tmp_path), suffixes=[".index"], limit_bytes=limit_bytes, limit_files=limit_files)
    assert removed == 6 - len(left)
    assert names(tmp_path) == left
    assert len(list(tmp_path.glob("*.lock"))) == len(left)
    assert keep_within(str(tmp_path), suffixes=[".index"], limit_bytes=limit_bytes, limit_files=limit_files) == 0


def test_use_counts_and_changes_nothing_else(tmp_path: Path) -> None:
    paths = [write(tmp_path, number) for number in range(4)]
    before = paths[0].stat().st_mtime_ns
    mark_used(str(paths[0]))
    assert paths[0].stat().st_mtime_ns == before
    keep_within(str(tmp_path), suffixes=[".index"], limit_bytes=200, limit_files=9)
    assert names(tmp_path) == [0, 3]
    mark_used(str(tmp_path / "absent"))


def test_a_small_one_stays_where_a_large_one_goes(tmp_path: Path) -> None:
    for number, num_bytes in enumerate([50, 500, 50, 50]):
        write(tmp_path, number, num_bytes=num_bytes)
    keep_within(str(tmp_path), suffixes=[".index"], limit_bytes=160, limit_files=9)
    assert names(tmp_path) == [0, 2, 3]


def test_the_newest_stays_whatever_its_size(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2, num_bytes=5000)
    keep_within(str(tmp_path), suffixes=[".index", ".copy"], limit_bytes=1000, limit_files=9)
    assert names(tmp_path) == [2]


def test_only_what_shoal_named_is_removed(tmp_path: Path) -> None:
    others = ["mine.index", f"{7:032x}.index.txt", f"{7:031x}.index", f"{7:032x}.other"]
    for name in others:
        (tmp_path / name).write_bytes(bytes(9000))
    (tmp_path / f"{8:032x}.index").mkdir()
    (tmp_path / f"{9:032x}.index").symlink_to(tmp_path / "mine.index")
    write(tmp_path, 1)
    write(tmp_path, 2)
    assert keep_within(str(tmp_path), suffixes=[".index"], limit_bytes=0, limit_files=0) == 1
    assert {path.name for path in tmp_path.iterdir()} == {*others, *(f"{number:032x}.index" for number in (2, 8, 9))}
    assert keep_within(str(tmp_path / "none"), suffixes=[".index"], limit_bytes=0, limit_files=0) == 0


def test_what_is_mapped_stays_readable(tmp_path: Path) -> None:
    path, other = write(tmp_path, 1), write(tmp_path, 2)
    with path.open("rb") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    mark_used(str(other))
    keep_within(str(tmp_path), suffixes=[".index"], limit_bytes=0, limit_files=0)
    assert not path.exists()
    assert bytes(mapped) == bytes(100)

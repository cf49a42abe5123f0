"""Many small files, read into one buffer: all of them as they were listed, or none, and no descriptor is left open."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from shoal.storage.files.small_files import FileTree, glob_files, read_tree_into


def tree_of_files(root: Path, count: int) -> tuple[FileTree, bytearray, list[int]]:
    for number in range(count):
        directory = root / ("many" if number % 10 else f"few{number:04d}")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{number:04d}.txt").write_bytes(b"%d," % number * (number % 7 + 1))
    files = glob_files(f"{root}/*/*.txt", root=str(root))
    ends = np.cumsum(files.num_bytes)
    return files, bytearray(int(ends[-1])), (ends - files.num_bytes).tolist()


@pytest.mark.parametrize("count", [1, 63, 64, 65, 300])
def test_each_file_comes_to_its_place(tmp_path: Path, count: int) -> None:
    files, buffer, offsets = tree_of_files(tmp_path, count)
    assert len(files) == count
    assert read_tree_into(files, memoryview(buffer), offsets)
    assert bytes(buffer) == b"".join(Path(files.root, name).read_bytes() for name in files.names())


@pytest.mark.parametrize("place", [0, 100, 299])
@pytest.mark.parametrize("how", ["gone", "longer", "shorter", "touched"])
def test_a_file_that_is_not_as_listed_is_noticed(tmp_path: Path, place: int, how: str) -> None:
    files, buffer, offsets = tree_of_files(tmp_path, 300)
    path = tmp_path / files.names()[place]
    if how == "gone":
        path.unlink()
    elif how == "touched":
        os.utime(path, ns=(1, 1))
    else:
        path.write_bytes(b"" if how == "shorter" else b"x" * 1000)
        os.utime(path, ns=(1, int(files.modified_ns[place])))
    gc.collect()  # what other tests left open is closed now, and not in the middle of a count
    before = len(list(Path("/dev/fd").iterdir()))
    assert not read_tree_into(files, memoryview(buffer), offsets)
    assert len(list(Path("/dev/fd").iterdir())) == before

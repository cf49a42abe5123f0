"""A source archive has equal bytes for equal files, and a release has the files it must have."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from tests.release.archives import differences, names_in, normalise_sdist, unpack_sdist
from tests.release.contents import COMPILED, problems_of_sdist, problems_of_wheel

FILES = {"shoal-1/b.py": b"b\n", "shoal-1/.ci/run": b"#!/bin/sh\n", "shoal-1/a/c.py": b"c\n"}


def write_archive(path: Path, *, names: list[str], seconds: int, owner: str, mode: int) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname, member.uid = len(FILES[name]), seconds, owner, 1000 + seconds
            member.mode = mode | (0o111 if name.endswith("run") else 0)
            archive.addfile(member, io.BytesIO(FILES[name]))
    return path


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two archives of the same files, from two machines."""
    names = list(FILES)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = write_archive(tmp_path / "one" / "shoal-1.tar.gz", names=names, seconds=5, owner="ann", mode=0o644)
    two = write_archive(tmp_path / "two" / "shoal-1.tar.gz", names=names[::-1], seconds=9, owner="bob", mode=0o664)
    return one, two


def test_archives_of_two_machines_become_equal(pair: tuple[Path, Path]) -> None:
    assert differences(*pair) == ["only in the records of the archive: times, modes or order"]
    for archive in pair:
        normalise_sdist(archive, seconds=1_700_000_000)
    assert differences(*pair) == []
    with tarfile.open(pair[0]) as opened:
        records = [(one.name, one.mtime, one.uid, one.gid, one.uname, one.gname, oct(one.mode)) for one in opened]
    assert records == [
        (name, 1_700_000_000, 0, 0, "", "", mode)
        for name, mode in (("shoal-1/.ci/run", "0o755"), ("shoal-1/a/c.py", "0o644"), ("shoal-1/b.py", "0o644"))
    ]
    with pair[0].open("rb") as raw:
        assert int.from_bytes(raw.read(8)[4:], "little") == 1_700_000_000  # gzip records a time, too


def test_the_files_stay_as_they_are(pair: tuple[Path, Path], tmp_path: Path) -> None:
    normalise_sdist(pair[0], seconds=7)
    folder = unpack_sdist(pair[0], tmp_path / "unpacked")
    assert folder.name == "shoal-1"
    assert {
        f"shoal-1/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()
    } == FILES
    assert os.access(folder / ".ci" / "run", os.X_OK)
    assert names_in(pair[0]) == [".ci/run", "a/c.py", "b.py"]


def test_a_link_in_a_source_archive_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        link = tarfile.TarInfo("shoal-1/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(ValueError, match="shoal-1/link, which is neither a file nor a folder"):
        normalise_sdist(tmp_path / "a.tar.gz", seconds=0)


def test_a_file_that_differs_is_named(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FILES, "shoal-1/b.py", b"x\n")
    write_archive(pair[1], names=list(FILES), seconds=5, owner="ann", mode=0o644)
    assert differences(*pair) == ["shoal-1/b.py"]


TRACKED = [".ci/run", "src/conftest.py", "src/shoal/__init__.py", "src/shoal/py.typed", "src/shoal/formats/_cutting.c"]
INFO = [f"shoal-1.dist-info/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt")]
WHEEL = ["shoal/__init__.py", "shoal/py.typed", *INFO, "shoal-1.dist-info/licenses/LICENSE"]


def test_a_wheel_has_the_package_its_types_and_its_licence() -> None:
    assert problems_of_wheel(WHEEL, TRACKED, "1", is_pure=True) == []
    assert problems_of_wheel([*WHEEL, *COMPILED], TRACKED, "1", is_pure=False) == []
    assert problems_of_wheel(WHEEL, TRACKED, "1", is_pure=False) == [f"{name} is not in the wheel" for name in COMPILED]
    assert problems_of_wheel(
        [*WHEEL[1:], "shoal/formats/_cutting.c", "tests/test_a.py"], TRACKED, "1", is_pure=True
    ) == [
        "shoal/__init__.py is not in the wheel",
        "shoal/formats/_cutting.c is in the wheel, but not in the package",
        "tests/test_a.py is in the wheel, but not in the package",
    ]


def test_a_source_archive_has_all_files_of_the_repository() -> None:
    names = ["PKG-INFO", "setup.cfg", "src/shoal.egg-info/SOURCES.txt", *TRACKED[1:]]
    assert problems_of_sdist(names, TRACKED) == []
    assert problems_of_sdist([*names[:-1], "notes.txt"], TRACKED) == [
        "src/shoal/formats/_cutting.c is not in the source archive",
        "notes.txt is in the source archive, but not in the repository",
    ]

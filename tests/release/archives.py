"""Source archives and wheels: their names, and a source archive with equal bytes for equal files."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

_PROGRAM, _FILE = 0o755, 0o644


def names_in(archive: Path) -> list[str]:
    """Return the files of a wheel or a source archive; without the first folder of the latter."""
    if archive.suffix == ".whl":
        return sorted(zipfile.ZipFile(archive).namelist())
    with tarfile.open(archive) as opened:
        return sorted(member.name.partition("/")[2] for member in opened if member.isfile())


def normalise_sdist(archive: Path, *, seconds: int) -> None:
    """Rewrite a source archive with sorted files, one time, no owner, and only the bit of programs in modes.

    setuptools records the owner, the mode and the time of each file of the machine that builds.
    """
    content = io.BytesIO()
    with tarfile.open(archive) as given, tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as written:
        for member in sorted(given, key=lambda one: one.name):
            if member.isfile():
                plain = tarfile.TarInfo(member.name)
                plain.size, plain.mtime = member.size, seconds
                plain.mode = _PROGRAM if member.mode & 0o100 else _FILE
                written.addfile(plain, given.extractfile(member))
            elif not member.isdir():
                msg = f"{archive.name} has {member.name}, which is neither a file nor a folder"
                raise ValueError(msg)
    with archive.open("wb") as raw, gzip.GzipFile("", "wb", compresslevel=9, fileobj=raw, mtime=seconds) as packed:
        packed.write(content.getvalue())


def unpack_sdist(archive: Path, target: Path) -> Path:
    """Unpack a source archive below ``target``; return its only folder."""
    with tarfile.open(archive) as opened:
        opened.extractall(target, filter="data")
    (folder,) = target.iterdir()
    return folder


def differences(first: Path, second: Path) -> list[str]:
    """Return the names of files that differ in two archives of one name; [] if the archives have equal bytes."""
    if first.read_bytes() == second.read_bytes():
        return []
    one, other = _contents(first), _contents(second)
    different = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    return different or ["only in the records of the archive: times, modes or order"]


def _contents(archive: Path) -> dict[str, bytes]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            return {name: opened.read(name) for name in opened.namelist()}
    with tarfile.open(archive) as opened:
        files = [(member.name, opened.extractfile(member)) for member in opened if member.isfile()]
        return {name: file.read() for name, file in files if file is not None}

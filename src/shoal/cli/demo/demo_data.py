"""Pack the standard library of the running Python into tar shards, for the demonstration.

A sample is a file: its bytes in a field named by the suffix, and its *package*, the top-level directory. Modules at the
top level belong to the package "modules".
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# A sample should be much smaller than the window; a few dozen compiled modules and archives are too large.
LARGEST_BYTES = 256 << 10

SHARD_PREFIX = "stdlib-"

_LEFT_OUT = frozenset(("site-packages", "dist-packages", "__pycache__"))


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to pack: its path, its name below the standard library, and its size."""

    path: str
    name: str
    num_bytes: int

    @property
    def package(self) -> str:
        """Top-level directory of the file."""
        directory, slash, _ = self.name.partition("/")
        return directory if slash else "modules"


@dataclass(frozen=True, slots=True)
class FileSet:
    """The files to pack, sorted by name, and the numbers of too large and of unreadable files."""

    files: tuple[SourceFile, ...]
    num_large: int
    num_unreadable: int

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.num_bytes for file in self.files)


def find_files(root: Path, *, largest_bytes: int = LARGEST_BYTES) -> FileSet:
    """Return the regular, readable files below ``root``, sorted by name.

    Ignores links, caches and installed packages.
    """
    files, num_large, num_unreadable = [], 0, 0
    for directory, below, names in os.walk(root):
        below[:] = [name for name in below if name not in _LEFT_OUT]
        for name in names:
            path = os.path.join(directory, name)  # noqa: PTH118  # pathlib would take half the time here
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode):
                continue
            if status.st_size > largest_bytes:
                num_large += 1
            elif not os.access(path, os.R_OK):
                num_unreadable += 1
            else:
                files.append(SourceFile(path, Path(path).relative_to(root).as_posix(), status.st_size))
    return FileSet(tuple(sorted(files, key=lambda file: file.name)), num_large, num_unreadable)


def pack(
    files: Sequence[SourceFile], directory: Path, *, num_shards: int, progress: Callable[[int], None] | None = None
) -> list[Path]:
    """Write files in the given order into shards of about equal size, ``stdlib-000000.tar`` and so on.

    Equal files give equal bytes: no times, owners or permissions. ``progress`` gets the bytes of each sample.
    """
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    names = _member_names(files)
    for number, group in enumerate(_even_groups(files, num_shards)):
        path = directory / f"{SHARD_PREFIX}{number:06d}.tar"
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
            for file in group:
                key, field = next(names)
                data = Path(file.path).read_bytes()
                for suffix, content in ((field, data), ("package", file.package.encode())):
                    member = tarfile.TarInfo(f"{key}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
                if progress is not None:
                    progress(len(data))
        paths.append(path)
    return paths


def _even_groups(files: Sequence[SourceFile], num_groups: int) -> Iterator[list[SourceFile]]:
    """Split files into consecutive groups of about equal bytes."""
    total = sum(file.num_bytes for file in files)
    groups: list[list[SourceFile]] = [[] for _ in range(num_groups)]
    before = 0
    for file in files:
        groups[min(num_groups - 1, before * num_groups // max(1, total))].append(file)
        before += file.num_bytes
    return (group for group in groups if group)


def _member_names(files: Sequence[SourceFile]) -> Iterator[tuple[str, str]]:
    """Yield the key and the field of each file.

    WebDataset cuts a name at its first dot and joins neighbours with equal keys. So other dots become "_", and the
    second of two equal keys ("a.py" and "a.txt") gets the suffix appended. All names begin with "lib/", because names
    like ``__phello__/`` would be metadata.
    """
    keys: set[str] = set()
    for file in files:
        name = PurePosixPath("lib", file.name)
        field = name.suffix[1:].lower() or "data"
        key = str(name.with_name(name.stem.replace(".", "_")))
        while key in keys:
            key += f"_{field}"
        keys.add(key)
        yield key, "data" if field == "package" else field

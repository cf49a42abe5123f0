"""The files that the source archive and the wheels must have, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

COMPILED = ("shoal/formats/_cutting.abi3.so", "shoal/storage/http/_exchange.abi3.so")
# Files that only work on the repository itself, and files that setuptools adds.
_ONLY_IN_REPOSITORY = (".ci/", ".github/", ".gitignore", ".gitattributes", ".readthedocs", ".pre-commit")
_BY_SETUPTOOLS = ("PKG-INFO", "setup.cfg", "src/shoal.egg-info/")


def problems_of_sdist(names: Sequence[str], tracked: Iterable[str]) -> list[str]:
    """Compare the source archive with the files of the repository: its tests, pages and measurements are all in it."""
    wanted = {name for name in tracked if not name.startswith(_ONLY_IN_REPOSITORY)}
    present = {name for name in names if not name.startswith(_BY_SETUPTOOLS)}
    return [f"{name} is not in the source archive" for name in sorted(wanted - present)] + [
        f"{name} is in the source archive, but not in the repository" for name in sorted(present - wanted)
    ]


def problems_of_wheel(names: Sequence[str], tracked: Iterable[str], version: str, *, is_pure: bool) -> list[str]:
    """Compare a wheel with the package of the repository: modules, types and the licence, no C file, no test."""
    inside = (PurePosixPath(name) for name in tracked if name.startswith("src/shoal/"))
    wanted = {str(path.relative_to("src")) for path in inside if path.suffix in {".py", ".pyi", ".typed"}}
    wanted |= set() if is_pure else {*COMPILED}
    info = f"shoal-{version}.dist-info"
    records = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt")
    wanted |= {f"{info}/{name}" for name in records}
    return [f"{name} is not in the wheel" for name in sorted(wanted - set(names))] + [
        f"{name} is in the wheel, but not in the package" for name in sorted(set(names) - wanted)
    ]

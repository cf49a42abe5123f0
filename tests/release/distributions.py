"""Builds the source archive and two wheels of the last commit, twice, and compares them byte by byte.

``python -m tests.release.distributions DIRECTORY`` exports the commit into two folders of different names, builds in
both, checks the contents and writes the files with their SHA-256 into the directory. One wheel has the compiled module,
the other is for any machine. Exit code 1 if a second build differs, or a file is missing or superfluous.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.environments import ROOT, environment, home_of
from tests.environments import run as ran
from tests.release.archives import differences, names_in, normalise_sdist, unpack_sdist
from tests.release.changelog import version_of
from tests.release.contents import problems_of_sdist, problems_of_wheel

CONSTRAINTS = ROOT / "constraints.txt"
SUMS = "SHA256SUMS"


def tools() -> Path:
    """Return the Python of the environment with the tools of a release, made once."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    return environment(home_of(ROOT / ".compat", "release"), groups["release"], options=("-c", str(CONSTRAINTS)))


def commit_seconds() -> int:
    """Return the time of the last commit, which every file of a release has."""
    return int(ran("git", "-C", ROOT, "log", "-1", "--format=%ct"))


def tracked_files() -> list[str]:
    """Return the files of the last commit."""
    return ran("git", "-C", ROOT, "ls-tree", "-r", "--name-only", "-z", "HEAD").split("\0")[:-1]


def export(target: Path) -> Path:
    """Write the files of the last commit into ``target``, and nothing else that stands in the checkout."""
    target.mkdir(parents=True)
    archive = target.parent / f"{target.name}.tar"
    ran("git", "-C", ROOT, "archive", "--output", archive, "HEAD")
    with tarfile.open(archive) as opened:
        opened.extractall(target, filter="data")
    archive.unlink()
    return target


def build(source: Path, target: Path, *, seconds: int) -> list[Path]:
    """Build the source archive, and from it the compiled and the pure wheel; return the three files."""
    settings = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SHOAL_PURE_PYTHON")}
    settings |= {"SOURCE_DATE_EPOCH": str(seconds), "PIP_CONSTRAINT": str(CONSTRAINTS)}
    command = (tools(), "-m", "build", "--outdir", target)
    ran(*command, "--sdist", source, env=settings)
    (sdist,) = target.glob("*.tar.gz")
    normalise_sdist(sdist, seconds=seconds)
    for pure in ("0", "1"):
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            unpacked = unpack_sdist(sdist, Path(folder))
            ran(*command, "--wheel", unpacked, env=settings | {"SHOAL_PURE_PYTHON": pure})
    return sorted(target.iterdir())


def problems_of(built: list[Path], again: list[Path]) -> Iterator[str]:
    """Yield each difference between two builds, and each file that is missing or superfluous."""
    tracked, version = tracked_files(), version_of(ROOT)
    for one, other in zip(built, again, strict=True):
        yield from (f"{one.name}: a second build differs in {name}" for name in differences(one, other))
    for one in built:
        if one.suffix == ".whl":
            is_pure = one.stem.endswith("none-any")
            problems = problems_of_wheel(names_in(one), tracked, version, is_pure=is_pure)
        else:
            problems = problems_of_sdist(names_in(one), tracked)
        yield from (f"{one.name}: {problem}" for problem in problems)


def main() -> int:
    """Build into the directory of the command line; 1 if the builds differ or their contents are wrong."""
    target = Path(sys.argv[1]).resolve()
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    os.umask(0o022)  # a wheel records the modes of files
    if changed := ran("git", "-C", ROOT, "status", "--porcelain"):
        print(f"note: {len(changed.splitlines())} changed files of the checkout are not in the last commit")
    seconds = commit_seconds()
    with tempfile.TemporaryDirectory(prefix="shoal-release-") as folder:
        home = Path(folder)
        builds = []
        for name in ("first", "the-second-build"):
            (out := home / name / "dist").mkdir(parents=True)
            builds.append(build(export(home / name / f"source-of-{name}"), out, seconds=seconds))
        problems = list(problems_of(*builds))
        for file in builds[0]:
            shutil.copy2(file, target)
    sums = [(hashlib.sha256(path.read_bytes()).hexdigest(), path) for path in sorted(target.iterdir())]
    (target / SUMS).write_text("".join(f"{digest}  {path.name}\n" for digest, path in sums), encoding="ascii")
    for digest, path in sums:
        print(f"{path.name}  {path.stat().st_size:,} bytes  {digest}")
    print("\n".join(problems) or "two builds in different folders have equal bytes, and the contents are right")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())

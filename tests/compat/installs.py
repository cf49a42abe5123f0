"""Installs the built wheels and the source archive into empty environments, as a user does, and uses them there.

``python tests/compat/installs.py [DIRECTORY] [--quick]`` takes the files of a directory (default: builds the last
commit). For every Python at hand it installs the compiled wheel beside the oldest and the newest numpy and with the
extra ``all``, the wheel of Python alone, and the source archive with a compiler and with none. In each environment
``import shoal`` raises no warning, ``shoal`` and ``python -m shoal`` tell the version, the demonstration runs, and a
stream resumes, with the same samples everywhere. ``--quick`` keeps two environments. Exit code 1 if any check fails.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.compat.run import OLDEST_NUMPY, interpreters
from tests.environments import ROOT, CannotHaveError
from tests.environments import run as ran
from tests.release.archives import unpack_sdist
from tests.release.changelog import version_of
from tests.release.distributions import build, commit_seconds, export

INSIDE = Path(__file__).with_name("inside_install.py")
_DIGESTS: set[str] = set()  # of the streamed samples of every environment
_OURS = ("PYTHONPATH", "SHOAL_PURE_PYTHON", "PIP_CONSTRAINT", "CC")


@dataclass(frozen=True, slots=True)
class Install:
    """One way to install: a file, an extra, a release of numpy ("" for the newest), and an environment of the build."""

    name: str
    file: Path
    is_compiled: bool
    extra: str = ""
    numpy: str = ""
    compiler: str = ""
    is_quick: bool = False


def installs(directory: Path, oldest_numpy: str) -> list[Install]:
    """Return the ways to install the files of a directory."""
    (compiled,) = directory.glob("*abi3*.whl")
    (pure,) = directory.glob("*none-any.whl")
    (sdist,) = directory.glob("*.tar.gz")
    return [
        Install("wheel, oldest numpy", compiled, is_compiled=True, numpy=oldest_numpy, is_quick=True),
        Install("wheel, newest numpy", compiled, is_compiled=True),
        Install("wheel, extra all", compiled, is_compiled=True, extra="all"),
        Install("wheel of Python alone", pure, is_compiled=False, is_quick=True),
        Install("source, compiler", sdist, is_compiled=True),
        Install("source, no compiler", sdist, is_compiled=False, compiler="false"),
    ]


@dataclass(frozen=True, slots=True)
class Environment:
    """An empty environment below ``home``; programs run in ``home``, and see nothing of this checkout."""

    home: Path
    python: Path

    def run(self, *command: str | Path, **settings: str) -> str:
        """Return the output of a program; raise `CannotHaveError` with the end of its errors if it fails."""
        outside = {name: value for name, value in os.environ.items() if name not in _OURS}
        own = {"HOME": str(self.home), "SHOAL_CACHE_DIR": str(self.home / "cache")}
        return ran(*command, cwd=self.home, env=outside | own | settings)


def checks(environment: Environment, install: Install, version: str) -> Iterator[str]:
    """Yield the failures of an installed shoal."""
    python, shoal = environment.python, environment.python.with_name("shoal")
    environment.run(python, "-W", "error", "-c", "import shoal")
    for command in ((shoal,), (python, "-m", "shoal"), (python, "-W", "error", "-m", "shoal")):
        said = environment.run(*command, "--version").splitlines()
        if said[0] != f"shoal {version}":
            yield f"{command[-1]} --version says {said[0]!r}"
    report = json.loads(environment.run(shoal, "--version", "--json"))
    if report["is_compiled"] != install.is_compiled:
        yield f"the compiled module is {'in' if report['is_compiled'] else 'missing'}"
    if report["build"] != f"archive {install.file.name}":
        yield f"the build is {report['build']!r}"
    missing = [name for libraries in report["libraries"].values() for name, number in libraries.items() if not number]
    if install.extra == "all" and missing != ["hudi", "pylance", "pyspark", "ray"]:
        yield f"{', '.join(missing)} are missing"
    has_torch = environment.run(python, "-c", "import importlib.util as u; print(u.find_spec('torch'))").strip()
    if has_torch != "None":
        yield "torch is installed"
    if "complete -o" not in environment.run(shoal, "--print-completion", "bash"):
        yield "there is no completion"
    yield from demo_failures(environment, shoal, has_matplotlib=install.extra == "all")


def demo_failures(environment: Environment, shoal: Path, *, has_matplotlib: bool) -> Iterator[str]:
    """Yield the failures of the demonstration; a picture as PNG needs matplotlib."""
    record = json.loads(environment.run(shoal, "demo", "--json"))
    if (record["picture"] is not None) != has_matplotlib:
        yield f"the picture of the demonstration is {record['picture']}"
    if has_matplotlib != (environment.home / "shoal-demo.png").exists():
        yield "the demonstration left no picture, or a needless one"


def install_and_check(install: Install, interpreter: Path, home: Path, version: str) -> tuple[str, list[str]]:
    """Install into a new environment; return the digest of the streamed samples, and the failures."""
    home.mkdir(parents=True)
    ran(interpreter, "-m", "venv", home / "venv")
    environment = Environment(home, home / "venv" / "bin" / "python")
    wanted = [f"{install.file}[{install.extra}]" if install.extra else str(install.file)]
    wanted.append(f"numpy=={install.numpy}" if install.numpy else "numpy")
    pip = (environment.python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--only-binary=numpy")
    settings = {"CC": install.compiler} if install.compiler else {}
    began = time.perf_counter()
    environment.run(*pip, *wanted, **settings)
    seconds = time.perf_counter() - began
    (home / "data").mkdir()
    failures = list(checks(environment, install, version))
    report = json.loads(environment.run(environment.python, INSIDE, home / "data"))
    if not report["file"].startswith(str(home)):
        failures.append(f"shoal is imported from {report['file']}")
    numpy = environment.run(environment.python, "-c", "import numpy; print(numpy.__version__)").strip()
    milliseconds = 1000 * min(import_seconds(environment) for _ in range(5))
    print(f"    numpy {numpy:<7} installed in {seconds:4.1f} s, imported in {milliseconds:3.0f} ms", flush=True)
    return report["samples"], failures


def import_seconds(environment: Environment) -> float:
    """Return the seconds of ``import shoal`` in a new interpreter, without the start of the interpreter."""
    code = "import time; began = time.perf_counter(); import shoal; print(time.perf_counter() - began)"
    return float(environment.run(environment.python, "-c", code))


def test_source(directory: Path, interpreter: Path, home: Path) -> None:
    """Install the unpacked source archive with its pinned test programs, and run the golden tests of orders in it."""
    home.mkdir(parents=True)
    (sdist,) = directory.glob("*.tar.gz")
    source = unpack_sdist(sdist, home / "unpacked")
    ran(interpreter, "-m", "venv", home / "venv")
    environment = Environment(home, home / "venv" / "bin" / "python")
    pip = (environment.python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    environment.run(*pip, "-c", source / "constraints.txt", "pytest", "pytest-timeout", "hypothesis", source)
    test = (environment.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", source / "pyproject.toml")
    said = environment.run(*test, "-m", "golden", "--rootdir", source, source / "tests" / "order")
    print(f"    {said.strip().splitlines()[-1]}", flush=True)


def problems_on(version: str, interpreter: Path, directory: Path, home: Path, *, quick: bool) -> Iterator[str]:
    """Yield what failed on one Python, and add the digests of its streams to `_DIGESTS`."""
    every = [one for one in installs(directory, OLDEST_NUMPY[version]) if one.is_quick or not quick]
    for number, install in enumerate(every):
        print(f"python {version}  {install.name}", flush=True)
        try:
            digest, failures = install_and_check(install, interpreter, home / str(number), version_of(ROOT))
            _DIGESTS.add(digest)
        except CannotHaveError as error:
            failures = [str(error)]
        yield from (f"python {version}, {install.name}: {failure}" for failure in failures)
    if not quick:
        print(f"python {version}  tests of the source archive", flush=True)
        try:
            test_source(directory, interpreter, home / "tests")
        except CannotHaveError as error:
            yield f"python {version}, tests of the source archive: {error}"


def main() -> int:
    """Install everywhere; 1 if a check failed, or no Python was found."""
    given = [word for word in sys.argv[1:] if not word.startswith("-")]
    with tempfile.TemporaryDirectory(prefix="shoal-installs-") as folder:
        home = Path(folder)
        directory = Path(given[0]).resolve() if given else home / "dist"
        if not given:
            directory.mkdir()
            build(export(home / "source"), directory, seconds=commit_seconds())
        problems = [
            problem
            for version, interpreter in interpreters().items()
            for problem in problems_on(version, interpreter, directory, home / version, quick="--quick" in sys.argv)
        ]
    if len(_DIGESTS) != 1:
        problems.append(f"{len(_DIGESTS)} different streams of samples")
    print("\n".join(problems) or "every environment installs, imports, streams and resumes alike")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())

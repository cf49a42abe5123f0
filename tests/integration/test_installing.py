"""shoal is installed with a compiler and without one, as users do it, and gives the same samples."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TRACKED = ["LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "src"]
STREAM = """
import hashlib, sys, tempfile
import shoal
assert shoal.__file__.startswith(sys.prefix), shoal.__file__
ds = shoal.open(sys.argv[1]).shuffle(seed=1, window="1MiB").decode()
samples = hashlib.sha256(repr(list(ds)).encode()).hexdigest()
print(ds.stats()["is_compiled"], samples)
"""


def run(*command: str | Path, **environment: str) -> str:
    given = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SHOAL_PURE_PYTHON")}
    done = subprocess.run(
        command, env=given | environment, capture_output=True, text=True, check=False, timeout=300, cwd="/"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The files that a release has, without what this checkout has built."""
    listed = run("git", "-C", ROOT, "ls-files", "-z", *TRACKED).split("\0")
    for name in filter(None, listed):
        target = tmp_path / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    return tmp_path / "source"


@pytest.mark.timeout(400)
def test_it_is_installed_with_and_without_a_compiler(source: Path, tmp_path: Path) -> None:
    told = {}
    for compiler in ("cc", "false"):
        home = tmp_path / compiler
        wheels = home / "wheels"
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
        shutil.copytree(source, home / "source")  # builds leave files there
        run(*pip, "wheel", "--quiet", "--no-deps", "-w", wheels, home / "source", CC=compiler)
        (wheel,) = wheels.iterdir()
        assert wheel.name.split("-")[2:4] == ["cp311", "abi3"]  # for each Python from 3.11 on
        names = zipfile.ZipFile(wheel).namelist()
        compiled = (
            ["shoal/formats/_cutting.abi3.so", "shoal/storage/http/_exchange.abi3.so"] if compiler == "cc" else []
        )
        assert [name for name in names if name.endswith((".so", ".c"))] == compiled
        assert "shoal/py.typed" in names
        assert not [name for name in names if not name.startswith("shoal")]
        run(sys.executable, "-m", "venv", home / "venv")
        python = home / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
        shards = write_tars(tmp_path / "shards")
        told[compiler] = run(python, "-c", STREAM, shards, SHOAL_CACHE_DIR=str(home / "cache")).split()
    assert [is_compiled for is_compiled, _ in told.values()] == ["True", "False"]
    assert len({samples for _, samples in told.values()}) == 1


def write_tars(directory: Path) -> Path:
    from tests.stream.made import write_tars as write

    if not directory.exists():
        directory.mkdir()
        write(directory, [40, 60])
    return directory

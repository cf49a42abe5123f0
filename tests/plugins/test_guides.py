"""The packages of the guides, installed from their text, do what the guides show."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.documents import commands_of
from tests.plugins.packages import GUIDES, PAGES, install, uses_of, write_package
from tests.samples import write_sample_data

GROUPS = {"formats", "orders", "stores", "tables", "decoders", "commands", "engines"}
MOST_LINES_OF_EXAMPLES = 150
MOST_LINES = 80  # of pyproject.toml and module: a guide shows how little it takes

EXAMPLES = GUIDES.parent.parent / "examples"
TRIED_ALWAYS = ("add-a-format", "add-a-table", "add-a-command")
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)


def run(command: list[str], directory: Path, target: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    here = {"PATH": path, "PYTHONPATH": str(target), "SHOAL_CACHE_DIR": str(directory / "cache")}
    done = subprocess.run(
        command, cwd=directory, env=os.environ | here, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def use(page: Path, directory: Path, target: Path) -> None:
    write_sample_data(directory)
    for block in uses_of(page):
        if block.language == "python":
            run([sys.executable, "-c", block.code], directory, target)
        for command in commands_of(block.code) if block.language == "console" else []:
            run(["bash", "-euo", "pipefail", "-c", command], directory, target)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.stem, marks=[] if page.stem in TRIED_ALWAYS else pytest.mark.drill) for page in PAGES],
)
def test_the_package_of_a_guide_does_what_the_guide_shows(page: Path, tmp_path: Path) -> None:
    project = write_package(page, tmp_path / "source")
    install(project, tmp_path / "source", tmp_path / "target")
    assert uses_of(page)
    (tmp_path / "work").mkdir()
    use(page, tmp_path / "work", tmp_path / "target")


@every_page
def test_a_package_is_short(page: Path, tmp_path: Path) -> None:
    write_package(page, tmp_path / "source")
    lines = [line for path in (tmp_path / "source").iterdir() for line in path.read_text().splitlines() if line]
    assert len(lines) <= MOST_LINES


@pytest.mark.parametrize("package", sorted(EXAMPLES.glob("shoal-*")), ids=lambda path: path.name)
def test_an_example_of_a_package_is_short(package: Path) -> None:
    """`make compat` installs these packages, and runs their pages."""
    assert sum(len(path.read_text().splitlines()) for path in package.glob("*.py")) <= MOST_LINES_OF_EXAMPLES
    entries = tomllib.loads((package / "pyproject.toml").read_text())["project"]["entry-points"]
    assert set(entries) <= {f"shoal.{group}" for group in GROUPS}


def test_there_is_a_guide_for_each_group(tmp_path: Path) -> None:
    found = {group for page in PAGES for group in write_package(page, tmp_path / page.stem)["project"]["entry-points"]}
    assert found == {f"shoal.{group}" for group in GROUPS}


@pytest.mark.drill
@pytest.mark.slow
def test_pip_installs_the_packages(tmp_path: Path) -> None:
    projects = [write_package(page, tmp_path / page.stem) for page in PAGES]
    options = ["--quiet", "--no-cache-dir", "--no-deps", "--no-build-isolation", "--no-index"]
    target = tmp_path / "target"
    sources = [tmp_path / page.stem for page in PAGES]
    install = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), *map(str, sources)]
    subprocess.run(install, check=True, timeout=100)
    script = (
        "import sys; from importlib.metadata import entry_points\n"
        "print([(each.group, each.name, each.value) for group in sys.argv[1:] for each in entry_points(group=group)])"
    )
    words = [sys.executable, "-c", script, *(f"shoal.{group}" for group in sorted(GROUPS))]
    here = os.environ | {"PYTHONPATH": str(target)}
    said = subprocess.run(words, env=here, capture_output=True, text=True, check=True).stdout
    wanted = [
        (group, name, value)
        for project in projects
        for group, entries in project["project"]["entry-points"].items()
        for name, value in entries.items()
    ]
    assert len(wanted) == len(GROUPS) + 2  # a suffix of formats, and one of tables
    assert not [each for each in wanted if str(each) not in said]

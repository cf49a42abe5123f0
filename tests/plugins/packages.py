"""Packages that bring something to shoal: those of the guides, and made ones, installed as pip would."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from tests.documents import Block, blocks_of

GUIDES = Path(__file__).parent.parent.parent / "docs" / "guides"
PAGES = sorted(GUIDES.glob("add-a*.md"))


def write_package(page: Path, directory: Path) -> dict[str, Any]:
    """Write ``pyproject.toml`` and the module of a guide; return the former."""
    blocks = blocks_of(page.read_text(encoding="utf-8"))
    (text,) = [block.code for block in blocks if block.language == "toml"]
    project = tomllib.loads(text)
    (module,) = project["tool"]["setuptools"]["py-modules"]
    directory.mkdir(parents=True)
    (directory / "pyproject.toml").write_text(text)
    (directory / f"{module}.py").write_text(next(block.code for block in blocks if block.language == "python"))
    return project


def uses_of(page: Path) -> list[Block]:
    """The blocks of a guide that need its package installed."""
    blocks = blocks_of(page.read_text(encoding="utf-8"))
    return [block for block in blocks if block.not_run and "tests/plugins" in block.not_run]


def install(project: dict[str, Any], source: Path, target: Path) -> None:
    """Install a package of one module as far as `importlib` can tell; pip takes seconds to build one."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.glob("*.py"):
        (target / path.name).write_bytes(path.read_bytes())
    groups = project["project"]["entry-points"]
    write_metadata(target, project["project"]["name"], project["project"]["version"], groups)


def write_metadata(target: Path, name: str, version: str, groups: dict[str, dict[str, str]]) -> None:
    """Write what pip leaves of a package beside its modules."""
    beside = target / f"{name.replace('-', '_')}-{version}.dist-info"
    beside.mkdir(parents=True)
    (beside / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [line for group, entries in groups.items() for line in (f"[{group}]", *map(" = ".join, entries.items()))]
    (beside / "entry_points.txt").write_text("\n".join(lines) + "\n")

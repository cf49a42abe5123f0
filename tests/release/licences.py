"""Writes docs/licences.md: what each extra of shoal brings, and under which licence.

``python -m tests.release.licences`` reads the metadata of the packages in this environment, which has every extra but
the engines. ``python -m tests.release.licences --json`` prints the packages for `tests.release.sbom`.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "licences.md"
LARGE = ("spark", "ray", "frameworks", "lance")  # hundreds of MB, and not installed here
# What the metadata of a package leaves open.
CHOSEN = {
    "av": "BSD-3-Clause; its wheels include FFmpeg (LGPL-3.0-or-later by its own words, built with x264 and x265)",
    "matplotlib": "matplotlib's licence, alike PSF-2.0",
    "pycurl": "LGPL-2.1-only OR MIT: shoal uses it under MIT; its wheels include libcurl (curl), OpenSSL (Apache-2.0)",
    "python-dateutil": "Apache-2.0 OR BSD-3-Clause",
    "soundfile": "BSD-3-Clause; its wheels include libsndfile (LGPL-2.1-or-later), loaded as a shared library",
    "tqdm": "MPL-2.0 AND MIT",
}
_SHORT = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: BSD License": "BSD",
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: Python Software Foundation License": "PSF-2.0",
}
_LONGEST_NAME = 40
INTRODUCTION = """\
# Licences of what an installation brings

shoal has the Apache License 2.0. `pip install shoal` brings numpy alone; each extra brings the packages below. Their
versions are in `constraints.txt`; each package states its licence.

`python -m tests.release.licences` writes this page. A release has a software bill of materials (CycloneDX) with the
versions for each extra, made by `make release`. The extras `spark` and `ray` bring pyspark and ray (both Apache-2.0)
with the packages that these choose. `frameworks` brings Accelerate, Lightning and transformers (Apache-2.0) and
torchdata (BSD-3-Clause) with theirs, and torch if it is missing; `lance` brings pylance (Apache-2.0) with pyarrow.

| package | licence | brought by |
| --- | --- | --- |
"""


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package, with its direct requirements."""

    name: str
    version: str
    licence: str
    requires: tuple[str, ...]


def extras() -> dict[str, list[str]]:
    """Return the requirements of the core, as the extra "", and of each extra but the large ones."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    left_out = {*LARGE, "all", "dev"}
    return {"": project["dependencies"], **{name: optional[name] for name in optional if name not in left_out}}


def package_of(name: str) -> Package:
    """Return a package of this environment."""
    found = distribution(name)
    needed = [Requirement(text) for text in found.requires or ()]
    names = {canonicalize_name(one.name) for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})}
    return Package(canonicalize_name(name), found.version, licence_of(name), tuple(sorted(names)))


def licence_of(name: str) -> str:
    """Return the licence that a package states: as an expression, as a classifier, or in words."""
    if (chosen := CHOSEN.get(canonicalize_name(name))) is not None:
        return chosen
    stated: Any = distribution(name).metadata
    classes = [_SHORT.get(text, text) for text in stated.get_all("Classifier") or () if text.startswith("License ::")]
    words = (stated.get("License") or "").strip()
    short_words = words if 0 < len(words) <= _LONGEST_NAME and "\n" not in words else ""
    expression: str | None = stated.get("License-Expression")
    return expression or short_words or ", ".join(classes) or "not stated"


def closure(requirements: list[str]) -> Iterator[Package]:
    """Yield the required packages and their own requirements."""
    waiting: list[str] = [canonicalize_name(Requirement(text).name) for text in requirements]
    seen = set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            package = package_of(name)
            yield package
            waiting += package.requires


def brought() -> dict[str, dict[str, Package]]:
    """Return the packages of an installation with each extra by name; the core alone is the extra ""."""
    core = extras()[""]
    return {extra: {one.name: one for one in closure([*core, *texts])} for extra, texts in extras().items()}


def page() -> str:
    """Return the page."""
    packages = brought()
    names = sorted({name for each in packages.values() for name in each})
    rows = []
    for name in names:
        by = [f"`{extra}`" for extra, each in packages.items() if name in each and extra]
        licence = next(each[name].licence for each in packages.values() if name in each)
        rows.append(f"| {name} | {licence} | {'every installation' if name in packages[''] else ', '.join(by)} |\n")
    return INTRODUCTION + "".join(rows)


if __name__ == "__main__":
    if sys.argv[1:] == ["--json"]:
        records = {extra: [asdict(one) for one in each.values()] for extra, each in brought().items()}
        print(json.dumps(records))
    else:
        PAGE.write_text(page(), encoding="utf-8")

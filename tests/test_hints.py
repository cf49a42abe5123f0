"""Hints name what can be had, in words that one place writes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import shoal
from shoal.errors import ShardError, UsageError
from shoal.hints import LIBRARIES_OF_EXTRA, did_you_mean, pip_install

ROOT = Path(__file__).parent.parent


def extras() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {name: wanted for name, wanted in project["optional-dependencies"].items() if name != "dev"}


def test_the_libraries_of_each_extra_are_those_it_installs() -> None:
    assert {
        name: [re.split(r"[\[<>=]", one)[0] for one in wanted]
        for name, wanted in extras().items()
        if name not in {"all", "frameworks"}  # no hint of shoal asks for a framework
    } == {name: libraries.split() for name, libraries in LIBRARIES_OF_EXTRA.items()}


def test_all_brings_every_extra_but_large_ones() -> None:
    """They have hundreds of MB; torch must fit the machine, and a cluster has its own release of pyspark and ray."""
    (every,) = extras()["all"]
    large = {"hudi", "lance", "spark", "ray"}
    assert every == f"shoal[{','.join(name for name in LIBRARIES_OF_EXTRA if name not in large)}]"


def test_a_hint_names_the_library_and_its_extra() -> None:
    assert pip_install("obstore", "pycurl") == "pip install obstore pycurl (or 'shoal[remote]')"
    assert pip_install("pyarrow", upgrade=True) == "pip install --upgrade pyarrow (or 'shoal[tables]')"
    for libraries in LIBRARIES_OF_EXTRA.values():
        for library in libraries.split():
            assert pip_install(library).startswith(f"pip install {library} (or 'shoal[")


def test_pages_name_extras_that_exist() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "design").glob("*.md")]
    named = {
        (page.name, extra)
        for page in pages
        for listed in re.findall(r"(?:shoal|'\.)\[([a-z,]+)\]", page.read_text(encoding="utf-8"))
        for extra in listed.split(",")
    }
    assert not {(page, extra) for page, extra in named if extra not in extras()}


def test_extras_are_named_in_one_place_only() -> None:
    """An extra cannot be installed before there is a release: a hint names the library, too."""
    here = [path.name for path in (ROOT / "src").rglob("*.py") if re.search(r"'shoal\[", path.read_text())]
    assert here == ["hints.py"]


@pytest.fixture
def ds(tmp_path: Path) -> shoal.Dataset:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": 1}\n')
    return shoal.open(tmp_path / "a.jsonl")


def test_a_mistyped_name_is_told_what_was_meant(ds: shoal.Dataset, tmp_path: Path) -> None:
    wrong = {
        "window": lambda: ds.shuffle("windw"),
        "tar": lambda: shoal.open(tmp_path, format="tra"),
        "jsonl.gz": lambda: shoal.open(tmp_path, format="json.gz"),
        "parquet": lambda: shoal.open(tmp_path, format="Parqet"),
        "torchrgb": lambda: ds.decode("torch-rgb"),
        "numpy": lambda: ds.format("nunpy"),
        "drop": lambda: ds.batch(4, remainder="dropp"),
        "skip": lambda: ds.reading(on_error="skipp"),
        "always": lambda: ds.reading(verify="allways"),
        "budget": lambda: shoal.open(tmp_path, cache={"budgett": "1GiB"}),
        "sample_bytes": lambda: ds.select(sample_byte=3),
        "text": lambda: list(ds.columns("txt")),
        "label": lambda: list(ds.to_tuple("text", "lable")),
        "timeout_seconds": lambda: shoal.open("http://127.0.0.1:9/a.tar", storage_options={"timeout_second": 1}),
        "arrow": lambda: shoal.pack.pack(tmp_path, tmp_path.parent / "packed", format="arow"),
    }
    for meant, call in wrong.items():
        with pytest.raises((UsageError, ShardError), match=f"did you mean '{meant}'"):
            call()


def test_nothing_is_guessed_where_nothing_is_near() -> None:
    assert did_you_mean("tensors", ("python", "numpy")) == ""
    assert did_you_mean(None, ("none",)) == ""

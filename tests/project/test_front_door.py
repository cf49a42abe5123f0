"""The files that a stranger meets first have their parts, and name commands and files that exist."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from tests.project.makefile import ROOT, targets

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
PAGES = ("SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", ".github/pull_request_template.md")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_there_is_a_form_for_each_kind_of_issue() -> None:
    assert {path.stem for path in FORMS} == {"bug", "question", "feature"}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_is_one_of_the_forge(path: Any) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= {*form}
    fields = [item for item in form["body"] if item["type"] != "markdown"]
    assert all(item["type"] in ("textarea", "input", "checkboxes", "dropdown") for item in fields)
    names = [item["id"] for item in fields]
    assert len(names) == len({*names})
    assert all(item["attributes"]["label"] for item in fields)
    assert any(item.get("validations", {}).get("required") for item in fields)
    if path.stem != "feature":
        assert "shoal --version" in path.read_text(encoding="utf-8")


def test_the_citation_has_what_the_format_requires() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "version", "license"} <= {*citation}
    assert citation["license"] == PROJECT["license"]
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in PROJECT["authors"]]
    assert str(citation["version"]) == PROJECT["version"].partition(".dev")[0]


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_make_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert set(re.findall(r"`make ([\w-]+)", text)) - {*targets()} == set()


def test_the_code_of_conduct_is_short_and_names_its_source() -> None:
    text = (ROOT / "CODE_OF_CONDUCT.md").read_text(encoding="utf-8")
    assert "Contributor Covenant" in text
    assert "2.1" in text
    assert len(text.splitlines()) < 40

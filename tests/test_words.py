"""The law of words: few constructions that are read twice, and no name that hides what it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.words import ROOT, constructions_of, files_below, hiding_names

MOST_IN_SOURCE = 40
MOST_IN_PAGES = 40
PAGES = (
    "docs",
    "design",
    "changes",
    "README.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
)  # not CONTRIBUTING.md, which shows what to avoid


def test_few_constructions_of_the_source_are_read_twice() -> None:
    places = [place for file in files_below([ROOT / "src"]) for place in constructions_of(file)]
    assert len(places) <= MOST_IN_SOURCE, "\n".join(map(str, places))


def test_few_constructions_of_the_pages_are_read_twice() -> None:
    pages = files_below([ROOT / page for page in PAGES])
    places = [place for page in pages if page.suffix == ".md" for place in constructions_of(page)]
    assert len(places) <= MOST_IN_PAGES, "\n".join(map(str, places))


def test_no_name_hides_what_it_holds() -> None:
    places = [place for file in files_below([ROOT / "src"]) for place in hiding_names(file)]
    assert not places, "\n".join(map(str, places))


@pytest.mark.parametrize(
    "sentence",
    [
        "Samples of which another file says where they are.",
        "Kept by whoever asks.",
        "Those of a mixture have other numbers.",
        "An index into that of a dataset.",
        "It holds what the shard is read with.",
    ],
)
def test_a_construction_is_counted(sentence: str, tmp_path: Path) -> None:
    source, page = tmp_path / "module.py", tmp_path / "page.md"
    source.write_text(f'"""{sentence}"""\n')
    page.write_text(f"{sentence}\n\n```\n{sentence}\n```\n")
    assert len(constructions_of(source)) == len(constructions_of(page)) == 1


def test_a_question_and_code_are_not_counted(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text('"""WHAT DOES A SHARD HOLD? See `what is`."""\nvalue = 1  # in which the ids of the chunk are\n')
    assert not constructions_of(source)


def test_a_hiding_name_is_counted(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text("def told(mine: int) -> int:\n    found = mine\n    return found\n")
    assert sorted(place.text for place in hiding_names(source)) == ["found", "mine", "told"]

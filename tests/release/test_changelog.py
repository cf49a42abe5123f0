"""Fragments become lines of the section of the next release, whatever the number of assemblies."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.release.changelog import ROOT, assemble, changes_of, fragments_in, missing_from, version_of, with_changes

START = "# Changelog\n\nAn introduction.\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(f"{START}\n## 0.1.0 (2026-11-26)\n\n### Order\n\n- First.\n")
    changes = tmp_path / "changes"
    changes.mkdir()
    (changes / "README.md").write_text("How.\n")
    (changes / "10.feature.md").write_text("Ten,\nin two lines.\n\n\nEleven ([guide](../docs/a.md)).\n")
    (changes / "9.feature.md").write_text("Nine.\n")
    (changes / "9.fix.md").write_text("Mended.\n")
    return tmp_path


def test_each_paragraph_is_a_line_with_links_from_the_changelog() -> None:
    assert list(changes_of("One\ntwo.\n\nThree [x](../docs/a.md).\n")) == ["- One\n  two.", "- Three [x](docs/a.md)."]


def test_fragments_join_the_section_of_the_version_and_are_removed(root: Path) -> None:
    assert assemble(root, date="2027-01-02") == 4
    assert (root / "CHANGELOG.md").read_text() == (
        f"{START}\n## 0.2.0 (2027-01-02)\n\n"
        "### Added\n\n- Nine.\n- Ten,\n  in two lines.\n- Eleven ([guide](docs/a.md)).\n\n"
        "### Fixed\n\n- Mended.\n\n"
        "## 0.1.0 (2026-11-26)\n\n### Order\n\n- First.\n"
    )
    assert [path.name for path in (root / "changes").iterdir()] == ["README.md"]


def test_assembling_again_adds_what_is_new_and_repeats_nothing(root: Path) -> None:
    assemble(root, date=None)
    before = (root / "CHANGELOG.md").read_text()
    assert assemble(root, date=None) == 0
    assert (root / "CHANGELOG.md").read_text() == before
    (root / "changes" / "12.feature.md").write_text("Twelve.\n")
    (root / "changes" / "12.speed.md").write_text("Half the time.\n")
    assert assemble(root, date="2027-01-03") == 2
    assert (root / "CHANGELOG.md").read_text() == before.replace("unreleased", "2027-01-03").replace(
        "docs/a.md)).\n", "docs/a.md)).\n- Twelve.\n"
    ).replace("- Mended.\n", "- Mended.\n\n### Faster\n\n- Half the time.\n")


def test_the_first_section_of_all(root: Path) -> None:
    assert with_changes(START, "0.1.0", {"fix": ["- A."]}, date="unreleased") == (
        f"{START}\n## 0.1.0 (unreleased)\n\n### Fixed\n\n- A.\n"
    )


def test_what_a_release_would_lack(root: Path) -> None:
    changelog = root / "CHANGELOG.md"
    assert missing_from(changelog.read_text(), "0.2.0", root / "changes") == [
        "9.feature.md is not in CHANGELOG.md yet: make changelog",
        "10.feature.md is not in CHANGELOG.md yet: make changelog",
        "9.fix.md is not in CHANGELOG.md yet: make changelog",
        "CHANGELOG.md begins with 0.1.0, not with 0.2.0",
    ]
    assemble(root, date="unreleased")
    assert missing_from(changelog.read_text(), "0.2.0", root / "changes") == [
        "0.2.0 has no date in CHANGELOG.md: make changelog DATE=today"
    ]
    assemble(root, date="2027-01-02")
    assert missing_from(changelog.read_text(), "0.2.0", root / "changes") == []


def test_a_file_that_is_no_fragment_is_an_error(root: Path) -> None:
    (root / "changes" / "13.docs.md").write_text("x")
    with pytest.raises(ValueError, match=r"13\.docs\.md is no fragment: NUMBER\.KIND\.md"):
        fragments_in(root / "changes")


def test_the_changelog_of_this_project_begins_with_its_version() -> None:
    fragments_in(ROOT / "changes")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {version_of(ROOT)} (" in changelog
    assert len(changelog.splitlines()) <= 300

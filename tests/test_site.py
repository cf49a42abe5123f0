"""The site builds without a warning, loads nothing from elsewhere, and every page has a description."""

from __future__ import annotations

import json
import re
import runpy
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
pytest.importorskip("zensical", reason="the site is built with Zensical")
SITE = runpy.run_path(str(ROOT / "docs" / "make_site.py"))


class Page(HTMLParser):
    """What a page loads, and what it says of itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.images_without_words: list[str] = []
        self.description, self.num_titles = "", 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag in {"script", "img", "iframe", "source", "video", "audio"}:
            self.loaded += [url for url in [attributes.get("src", "")] if not url.startswith("data:")]
        if tag == "link" and attributes.get("rel") not in {"canonical", "next", "prev"}:
            self.loaded.append(attributes["href"])
        if tag == "img" and not attributes.get("alt"):
            self.images_without_words.append(attributes.get("src", ""))
        if tag == "meta" and attributes.get("name") == "description":
            self.description = attributes["content"]
        self.num_titles += tag == "h1"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("site")
    SITE["build"](folder)
    return folder


def pages_of(site: Path) -> dict[str, Page]:
    files = [file for file in site.glob("*/**/*.html") if file.name != "404.html"]
    return {str(file.relative_to(site)): Page(file.read_text(encoding="utf-8")) for file in files}


def test_the_site_has_every_page_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = pages_of(site)
    assert len(pages) == len(SITE["pages"]())
    assert {name: page.loaded for name, page in pages.items() if any("//" in url for url in page.loaded)} == {}
    assert [name for name, page in pages.items() if not page.description] == []
    assert [name for name, page in pages.items() if page.num_titles != 1] == []
    assert {name: page.images_without_words for name, page in pages.items() if page.images_without_words} == {}
    styles = "".join(file.read_text(encoding="utf-8") for file in site.rglob("*.css"))
    assert re.findall(r"url\([\"']?(?:https?:)?//[^)]*|@import[^;]*", styles) == []


def test_the_menu_of_versions_lists_what_is_there(site: Path, tmp_path: Path) -> None:
    (version,) = json.loads((site / "versions.json").read_text())
    assert (site / version["version"] / "index.html").exists()
    assert f"url={version['version']}/" in (site / "index.html").read_text()
    for name in ("0.9", "0.10", "notes"):
        (tmp_path / name).mkdir()
        if name != "notes":
            (tmp_path / name / "index.html").touch()
    SITE["write_versions"](tmp_path)
    assert [entry["version"] for entry in json.loads((tmp_path / "versions.json").read_text())] == ["0.10", "0.9"]


def test_links_lead_to_the_same_files_on_the_site() -> None:
    text = "[a](../concepts.md#x) ![b](../images/way.png) [c](https://example.org) [d](#here)\n"
    text += "[e](../../bench/LOG.md) [f](../../README.md)\n```\n[g](../nothing.md)\n```\n"
    relinked, files = SITE["relinked"](text, ROOT / "docs" / "guides" / "index.md")
    expected = "[a](../concepts.md#x) ![b](../images/way.png) [c](https://example.org) [d](#here)\n"
    expected += "[e](../bench/LOG.md) [f](../index.md)\n```\n[g](../nothing.md)\n```\n"
    assert relinked == expected
    assert files == {ROOT / "docs" / "images" / "way.png"}
    relinked, _ = SITE["relinked"]("[way](../docs/images/way.png)", ROOT / "design" / "way.md")
    assert relinked == "[way](../images/way.png)\n"


def test_a_page_is_described_by_its_first_sentences() -> None:
    words = "A page with `code` and [a link](x.md). " + "A long sentence follows here. " * 20
    front = SITE["front_matter"](f"# Title\n\n| table |\n\n{words}\n", ROOT / "docs" / "page.md")
    (description,) = re.findall(r"description: (.*)", front)
    assert json.loads(description).startswith("A page with code and a link. A long")
    assert json.loads(description).endswith("here.")
    assert len(json.loads(description)) <= 300
    with pytest.raises(ValueError, match="needs a first paragraph"):
        SITE["front_matter"]("# Title\n\n| a table |\n", ROOT / "docs" / "page.md")


def test_a_page_outside_the_navigation_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_more: dict[str, Any] = {**SITE["pages"](), "lost.md": ROOT / "docs" / "index.md"}
    monkeypatch.setitem(SITE["assemble"].__globals__, "pages", lambda: with_more)
    with pytest.raises(ValueError, match=r"differ: lost\.md"):
        SITE["assemble"](tmp_path / "source")


@pytest.mark.drill
def test_a_broken_link_ends_the_build(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SITE["build"].__globals__, "assemble", lambda _: None)  # the tree of the first build
    index = SITE["SOURCE"] / "index.md"
    text = index.read_text(encoding="utf-8")
    try:
        index.write_text(text + "\n[nowhere](nowhere.md)\n", encoding="utf-8")
        with pytest.raises(ValueError, match="page does not exist"):
            SITE["build"](tmp_path)
    finally:
        index.write_text(text, encoding="utf-8")

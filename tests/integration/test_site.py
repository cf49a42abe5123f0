"""The site in a real browser: search finds what people ask for, pages fit each screen, axe-core has nothing to say."""

from __future__ import annotations

import http.server
import json
import runpy
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.environments import CannotHaveError
from tests.integration.browser import Browser, browser
from tests.integration.installs import axe_script

ROOT = Path(__file__).parent.parent.parent
PAGES = (
    "",
    "start/images/",
    "start/frameworks/",
    "guides/",
    "guides/how-good-is-my-shuffle/",
    "guides/training-with-lightning/",
    "reference/dataset/",
    "reference/command-line/",
    "semantics/",
    "glossary/",
    "architecture/",
    "benchmarks/",
)
# What people ask for, and the page that answers.
SEARCHES = {
    "resume on another number of GPUs": ("tutorial/", "start/", "guides/resumed-run-differs/"),
    "window": ("reference/orders/", "concepts/", "glossary/"),
    "memory is too high": ("guides/memory-is-too-high/",),
    "S3 credentials": ("guides/remote-data/",),
    "Lightning": ("guides/training-with-lightning/", "start/frameworks/"),
    "WebDataset": ("guides/from-webdataset/",),
    "pack_sequences": ("reference/dataset/", "guides/pack-sequences/"),
    "loss spiked": ("guides/loss-spiked/",),
    "state_dict": ("reference/dataset/", "states/"),
    "Parquet": ("formats/", "reference/formats/"),
    "shoal plan": ("guides/planning-a-cluster/", "reference/command-line/"),
    "damaged sample": ("guides/damaged-samples/",),
}
WIDER = """[...document.querySelectorAll('.md-content *')].filter(e => {
    for (let box = e; box; box = box.parentElement)
        if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(box).overflowX)) return false
    return e.getBoundingClientRect().right > innerWidth + 1}).map(e => e.outerHTML.slice(0, 80))"""
RESULTS = """new Promise(resolve => {
    const box = document.activeElement.shadowRoot, began = Date.now()
    const look = () => {
        const links = [...box.querySelectorAll('[role=listbox] a')].map(link => link.href)
        if (links.length || Date.now() - began > 10000) resolve(links); else setTimeout(look, 50)
    }
    look()
})"""


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    try:
        with browser() as opened:
            yield opened
    except CannotHaveError as error:
        pytest.skip(f"no browser here: {error}")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the newest version."""
    folder = tmp_path_factory.mktemp("site")
    runpy.run_path(str(ROOT / "docs" / "make_site.py"))["build"](folder)
    (version,) = json.loads((folder / "versions.json").read_text())

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{version['version']}/"
        server.shutdown()


@pytest.mark.parametrize("width", [420, 900, 1600])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_the_screen_and_loads_nothing_from_elsewhere(
    tab: Browser, site: str, page: str, width: int
) -> None:
    tab.look(site + page, width=width)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(WIDER) == []
    urls = [event["params"]["request"]["url"] for event in tab.events if event["method"] == "Network.requestWillBeSent"]
    root = site.rsplit("/", 2)[0]
    assert [url for url in urls if not url.startswith((root, "data:", "blob:"))] == []
    complaints = [event for event in tab.events if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_axe_finds_nothing_to_complain_of(tab: Browser, site: str, page: str, scheme: str) -> None:
    try:
        script = axe_script().read_text(encoding="utf-8")
    except CannotHaveError as error:
        pytest.skip(f"no axe-core here: {error}")
    tab.look(site + page, width=1280, scheme=scheme)
    tab.evaluate(script + "; 0")
    rules = {name: {"enabled": True} for name in ("heading-order", "empty-heading", "page-has-heading-one", "region")}
    run = f"axe.run(document, {{runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa'], rules: {json.dumps(rules)}}})"
    found = tab.evaluate(
        f"{run}.then(all => all.violations.map(each => [each.id, each.nodes.length, each.nodes[0].html.slice(0, 200)]))"
    )
    assert found == []


@pytest.mark.parametrize("words", SEARCHES)
def test_search_finds_what_people_ask_for(tab: Browser, site: str, words: str) -> None:
    tab.look(site, width=1280)
    tab.evaluate("document.querySelector('.md-search__button').click()")
    tab.evaluate("new Promise(done => setTimeout(done, 300))")
    tab.type(words)
    first = [link.removeprefix(site) for link in tab.evaluate(RESULTS)[:8]]
    assert any(link.startswith(SEARCHES[words]) for link in first), first


def test_code_has_a_button_that_copies_it(tab: Browser, site: str) -> None:
    tab.look(site, width=1280)
    assert tab.evaluate("document.querySelectorAll('.md-content pre').length") >= 1
    assert tab.evaluate("document.querySelectorAll('[data-clipboard-target], .md-code__button').length") >= 1


def test_the_menu_offers_the_version(tab: Browser, site: str) -> None:
    tab.look(site, width=1280)
    shown = "new Promise(done => setTimeout(() => done(document.querySelector('.md-version')?.textContent), 1000))"
    assert site.rsplit("/", 2)[1] in tab.evaluate(shown)

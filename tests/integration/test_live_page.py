"""The page of a run in a real browser: it fits the screen, loads nothing else, renews itself, and tells of its end."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.environments import CannotHaveError
from tests.integration.browser import Browser, browser
from tests.integration.test_pages import OUTSIDE, WIDER
from tests.samples import write_tar

import shoal
from shoal.watch.page_reporter import address_of

WIDTHS = (420, 900, 1600)


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    try:
        with browser() as opened:
            yield opened
    except CannotHaveError as error:
        pytest.skip(f"no browser here: {error}")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> shoal.Dataset:
    directory = tmp_path_factory.mktemp("data")
    sources = {}
    for name in ("web pages of many kinds in a long name", "books", "code"):
        samples = [{"__key__": f"{i:04d}".encode(), "bin": bytes(500)} for i in range(200)]
        write_tar(directory / f"{name[:3]}.tar", samples)
        sources[name] = shoal.open(directory / f"{name[:3]}.tar")
    weights = dict(zip(sources, (6, 3, 1), strict=True))
    return shoal.mix(sources, weights=weights, epoch_size=4000).shuffle(seed=1).batch(8)


@pytest.fixture
def run(mixture: shoal.Dataset) -> Iterator[tuple[Any, str]]:
    ds = mixture.reading(progress="page")
    with iter(ds) as batches:
        for _ in range(60):
            next(batches)
            time.sleep(0.03)
        url = address_of(ds.stream.counters)
        assert url is not None
        yield batches, url


def test_the_page_fits_every_screen_and_loads_only_itself(tab: Browser, run: tuple[Any, str], tmp_path: Path) -> None:
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            tab.look(run[1], width=width, scheme=scheme)
            tab.evaluate("new Promise(done => setTimeout(done, 1300))")  # until it has renewed itself
            assert tab.evaluate("document.documentElement.scrollWidth") == width
            requests = [event["params"]["request"]["url"] for event in tab.events
                        if event["method"] == "Network.requestWillBeSent"]  # fmt: skip
            assert set(requests) == {run[1]}
            assert len(requests) >= 2
            complaints = [event for event in tab.events if event["method"] in COMPLAINTS]
            assert complaints == []
            assert tab.evaluate(WIDER) == []
            assert tab.evaluate(OUTSIDE) == []
        tab.screenshot(tmp_path / f"page-{width}.png")


COMPLAINTS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


def test_the_answer_comes_first_and_is_read_aloud(tab: Browser, run: tuple[Any, str]) -> None:
    tab.look(run[1], width=900)
    assert tab.evaluate("document.querySelector('header').firstElementChild.tagName") == "H1"
    assert tab.evaluate("document.querySelector('h1 .word').getBoundingClientRect().top") < 100
    heading = tab.evaluate("document.querySelector('h1').textContent")
    assert tab.evaluate("document.title").startswith(tab.evaluate("document.querySelector('.word').textContent"))
    names = tab.names()
    assert ("heading", " ".join(heading.split())) in [(role, " ".join(name.split())) for role, name in names]
    assert [name for role, name in names if role in ("image", "img", "progressbar", "table") and not name] == []


def test_the_page_renews_itself_and_keeps_what_the_reader_opened(tab: Browser, run: tuple[Any, str]) -> None:
    batches, url = run
    tab.look(url, width=900)
    position = "[...document.querySelectorAll('dt')].find(e => e.textContent == 'Position').nextSibling.textContent"
    before = tab.evaluate(position)
    tab.evaluate("document.querySelector('details').open = true")
    for _ in range(10):
        next(batches)
    tab.evaluate("new Promise(done => setTimeout(done, 1500))")
    assert tab.evaluate(position) != before
    assert tab.evaluate("document.querySelector('details').open")


def test_a_run_that_has_ended_is_said_to_have_ended(tab: Browser, mixture: shoal.Dataset) -> None:
    ds = mixture.reading(progress="page")
    next(iter(ds))
    url = address_of(ds.stream.counters)
    assert url is not None
    tab.look(url, width=420)
    assert tab.evaluate("document.querySelector('#lost').hidden")
    del ds
    gc.collect()
    tab.evaluate("new Promise(done => setTimeout(done, 2500))")
    assert not tab.evaluate("document.querySelector('#lost').hidden")
    assert "has ended" in tab.evaluate("document.querySelector('#lost').textContent")

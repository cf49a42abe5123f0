"""Pages in a real browser: nothing is loaded, nothing overflows a phone, the keyboard reaches what can be opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.cli.calls import Calls
from tests.environments import CannotHaveError
from tests.integration.browser import Browser, browser
from tests.samples import write_tar_shards

import shoal

WIDTHS = {"phone": 390, "small phone": 320, "desktop": 1280}


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    try:
        with browser() as opened:
            yield opened
    except CannotHaveError as error:
        pytest.skip(f"no browser here: {error}")


@pytest.fixture(params=["audit", "plan", "trace", "head", "show"])
def page(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Path:
    path, calls = tmp_path / "page.html", Calls(capsys)
    if request.param == "audit":
        np.save(tmp_path / "ids.npy", np.concatenate([np.arange(3000), [7, 7]]))
        calls.text("audit", tmp_path / "ids.npy", "--html", path)
    elif request.param == "plan":
        words = ["plan", "--num-samples", "2e5", "--sample-bytes", "100KB", "--ranks-per-node", 8, "--nodes", 2]
        calls.text(*words, "--global-batch", 512, "--get-price", 0.4, "--html", path)
    elif request.param == "head":
        write_pictures(tmp_path / "data")
        calls.text("head", tmp_path / "data", "-n", 16, "--page", path)
    elif request.param == "show":
        write_tar_shards(tmp_path / "data")
        shoal.open(tmp_path / "data").shuffle().decode().show().write(path)
    else:
        write_pictures(tmp_path / "data")
        calls.text("trace", tmp_path / "data", "--step", 1, "--context", 1, "--batch-size", 4, "--html", path)
    return path


def write_pictures(directory: Path) -> None:
    """A shard of images with captions."""
    image = pytest.importorskip("PIL.Image")
    import io

    from tests.samples import write_tar

    directory.mkdir()
    samples = []
    for number in range(16):
        file = io.BytesIO()
        image.new("RGB", (640, 400 + 10 * number), (16 * number, 120, 255 - 16 * number)).save(file, "JPEG")
        caption = f"picture {number} " + "of something that takes many words to say " * (number % 3)
        samples.append({"__key__": f"{number:04d}".encode(), "jpg": file.getvalue(), "txt": caption.encode()})
    write_tar(directory / "pictures.tar", samples)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", WIDTHS)
def test_a_page_fits_the_screen_and_loads_nothing(tab: Browser, page: Path, screen: str, scheme: str) -> None:
    tab.look(page, width=WIDTHS[screen], scheme=scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") == WIDTHS[screen]
    asked = [
        event["params"]["request"]["url"] for event in tab.events if event["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in asked if not url.startswith("data:")] == [page.as_uri()]
    complaints = [event for event in tab.events if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
    assert complaints == []
    assert tab.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    # Nothing but what scrolls on its own is wider than the page, and texts of drawings stay inside them.
    assert tab.evaluate(WIDER) == []
    assert tab.evaluate(OUTSIDE) == []


WIDER = """[...document.querySelectorAll('main *')]
    .filter(e => !e.closest('.scroll') && !e.closest('svg') && e.getBoundingClientRect().right > innerWidth + 1)
    .map(e => e.outerHTML.slice(0, 80))"""
OUTSIDE = """[...document.querySelectorAll('svg text')].filter(text => {
        const box = text.getBoundingClientRect(), whole = text.ownerSVGElement.getBoundingClientRect();
        return box.left < whole.left - 2 || box.right > whole.right + 2 || box.top < whole.top - 2
            || box.bottom > whole.bottom + 2}).map(text => text.textContent)"""


def test_the_schemes_differ(tab: Browser, page: Path) -> None:
    colours = []
    for scheme in ("light", "dark"):
        tab.look(page, width=1280, scheme=scheme)
        colours.append(
            tab.evaluate("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")
        )
    (light, ink), (dark, chalk) = colours
    assert light == "rgb(255, 255, 255)"
    assert dark != light
    assert ink != chalk


def test_a_screen_reader_is_told_what_a_page_shows(tab: Browser, page: Path) -> None:
    tab.look(page, width=390)
    names = tab.names()
    assert [name for role, name in names if role in ("image", "img", "graphics-document") and not name] == []
    assert [name for role, name in names if role == "table" and not name] == []
    assert sum(role == "heading" for role, _ in names) >= 3
    assert any(role == "main" for role, _ in names)


def test_the_keyboard_reaches_everything_in_the_order_of_the_page(tab: Browser, page: Path) -> None:
    tab.look(page, width=390)
    wanted = tab.evaluate("document.querySelectorAll('summary, .scroll, a[href]').length")
    wanted -= tab.evaluate("document.querySelectorAll('details:not([open]) .scroll').length")
    tops = []
    for _ in range(wanted):
        tab.press("Tab")
        tops.append(tab.evaluate("document.activeElement.getBoundingClientRect().top + scrollY"))
        assert tab.evaluate("document.activeElement !== document.body")
        assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert tops == sorted(tops)
    if tab.evaluate("document.querySelector('summary') !== null"):
        tab.evaluate("document.querySelector('summary').focus()")
        tab.press("Enter")
        assert tab.evaluate("document.querySelector('details').open")
        assert (
            tab.evaluate("document.querySelector('details .scroll, details img').getBoundingClientRect().height") > 20
        )

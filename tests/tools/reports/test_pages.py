"""Pages are well-formed, load nothing, and can be read by who does not see them; tests/integration shows them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.cli.calls import Calls, make_shards
from tests.tools.reports.reading_pages import contrast, faults, read

from shoal.measure import audit
from shoal.orders import Full
from shoal.tools.auditing.findings import as_sentence
from shoal.tools.reports.audit_page import audit_page
from shoal.tools.reports.curve_figures import log_axis, plain_axis, size_axis
from shoal.tools.reports.page_document import document, table

HOSTILE = "</title><script>alert(1)</script><img src=x onerror=\"alert(2)\"> & 'quotes'"


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


def test_the_page_of_an_audit(calls: Calls, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.concatenate([np.arange(3000), [7, 7]]))
    page = tmp_path / "audit.html"
    calls.text("audit", tmp_path / "ids.npy", "--batch-size", 16, "--html", page)
    text = page.read_text(encoding="utf-8")
    assert faults(text) == []
    elements = read(text).elements
    assert sum(element.tag == "svg" for element in elements) == 4
    facts = audit(np.concatenate([np.arange(3000), [7, 7]]), batch=16)
    main = next(element.text for element in elements if element.tag == "main")
    assert all(as_sentence(finding.text) in main for finding in facts.findings)
    assert facts.headline in next(element.text for element in elements if element.tag == "header")
    assert f"{facts.vr[16]:.2f}" in main
    assert "shoal audit" in next(element.text for element in elements if element.tag == "footer")
    assert len(text) < 200_000


def test_the_page_of_an_order(calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, page = make_shards(tmp_path, monkeypatch, num_shards=6, samples_per_shard=50), tmp_path / "audit.html"
    calls.text(
        "audit", data, "--by", "shard", "--window", "180KiB", "--chunk", "40KiB", "--batch-size", 8, "--html", page
    )
    text = page.read_text(encoding="utf-8")
    assert faults(text) == []
    assert "shuffle(shoal.orders.Window(" in text
    assert "predicted" in text


@pytest.mark.parametrize("num_samples", [1, 2, 40])
def test_the_page_of_few_samples(num_samples: int) -> None:
    assert faults(audit_page(audit(range(num_samples)), title="Few")) == []


def test_the_page_of_a_plan(calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, page = make_shards(tmp_path, monkeypatch), tmp_path / "plan.html"
    words = ["plan", data, "--global-batch", 16, "--ranks-per-node", 2, "--get-price", 0.4]
    record = calls.json(*words, "--html", page)
    text = page.read_text(encoding="utf-8")
    assert faults(text) == []
    elements = read(text).elements
    assert sum(element.tag == "svg" for element in elements) == 5
    main = next(element.text for element in elements if element.tag == "main")
    assert f"{record['num_requests']:,}" in main
    heads = [element.text for element in elements if element.tag == "th" and "thead" in element.around]
    assert {"Window", "VR", "Memory of a node", "Price"} <= set(heads)
    assert record["call"] in next(element.text for element in elements if element.attributes.get("class") == "call")


def test_what_if_rows_are_what_the_changed_plan_says(calls: Calls, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    words = ["plan", "--num-samples", "2e5", "--sample-bytes", "50KB", "--ranks-per-node", 4, "--global-batch"]
    given = ["--chunk", "1MB", "--window"]
    calls.text(*words, 512, *given, "256MB", "--html", page)
    elements = read(page.read_text(encoding="utf-8")).elements
    heads = [element.text for element in elements if element.tag == "th" and "thead" in element.around]
    start = heads.index("Change")
    width = next(at for at, head in enumerate(heads[start:], start) if head == "Waiting") - start + 1
    cells = [element.text for element in elements if element.tag in {"td", "th"} and "tbody" in element.around]
    shown = {"this plan", "half the window", "twice the global batch"}
    places = [at for at, cell in enumerate(cells) if cell in shown]
    rows = {cells[at]: dict(zip(heads[start:], cells[at : at + width], strict=False)) for at in places}
    for name, size, window in [
        ("this plan", 512, "256MB"),
        ("half the window", 512, "128MB"),
        ("twice the global batch", 1024, "256MB"),
    ]:
        record = calls.json(*words, size, *given, window)
        assert rows[name]["VR"] == f"{record['vr'][str(size)]:.2f}"
        assert float(rows[name]["Reads of a chunk"]) == pytest.approx(record["amplification"], rel=0.1)


def test_a_picture_of_a_plan(calls: Calls, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ["plan", "--num-samples", 20_000, "--sample-bytes", "10KB", "--chunk", "200KB", "--window", "4MB"]
    for name in ("plan.svg", "again.svg", "plan.png"):
        calls.text(*words, "--picture", tmp_path / name)
    assert (tmp_path / "plan.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_what_comes_from_outside_is_text() -> None:
    page = audit_page(audit(Full().bind([500]).ids(0, 500)), title=HOSTILE, order=HOSTILE, made_by=HOSTILE)
    assert faults(page) == []
    assert next(element.text for element in read(page).elements if element.tag == "h1") == HOSTILE
    page = document(title="t", lead=HOSTILE, about=HOSTILE, body=[table(HOSTILE, [HOSTILE], [[HOSTILE]])], made_by="m")
    assert not any(element.tag in {"script", "img"} for element in read(page).elements)


def test_a_page_names_no_secret(calls: Calls, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", Full().bind([500]).ids(0, 500))
    words = ["audit", tmp_path / "ids.npy", "--storage-option", "headers.X-Key=hush", "--html", tmp_path / "audit.html"]
    calls.text(*words)
    assert "hush" not in (tmp_path / "audit.html").read_text()


def test_colours_differ_enough_in_both_schemes() -> None:
    style = next(e.text for e in read(document(title="t", lead="", about="", body=[], made_by="m")).elements
                 if e.tag == "style")  # fmt: skip
    schemes = re.findall(r":root\{([^}]*--paper[^}]*)\}", style)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--(\w+):(#\w+)", scheme))
        for name in ("ink", "soft", "bad", "fair", "perfect", "data"):
            assert contrast(colours[name], colours["paper"]) >= 4.5, (name, colours)
        assert contrast(colours["ink"], colours["panel"]) >= 4.5
        for name in ("data", "perfect", "bad", "more", "less"):
            assert contrast(colours[name], colours["paper"]) >= 3.0, (name, colours)


def test_faults_are_found() -> None:
    page = audit_page(audit(range(500)), title="Storage order")
    for damage, complaint in [
        (('role="img" ', ""), "a drawing says nothing"),
        (("</figure>", ""), "closes figure"),
        (("<caption>", "<p>"), "no caption"),
        (("<main>", '<main><img src="https://example.com/a.png">'), "names another address"),
        (("<main>", "<main><script src=x></script>"), "could run"),
        (('scope="col" ', ""), "neither a row's nor a column's"),
        (("<h3 ", "<h5 "), "h5 follows h2"),
    ]:
        assert any(complaint in fault for fault in faults(page.replace(*damage))), damage


def test_axes() -> None:
    assert [text for _, text in plain_axis("", [0.0, 34.0]).ticks] == ["0", "10", "20", "30"]
    assert [text for _, text in plain_axis("", [3 << 20], unit=1 << 20).ticks] == ["0", "1", "2", "3"]
    assert [text for _, text in log_axis("", [1.0, 40.0], least=0.5, most=4.0).ticks] == ["1", "3", "10", "30"]
    assert [text for _, text in size_axis("", [64 << power for power in range(8)]).ticks] == [
        "64",
        "256",
        "1,024",
        "4,096",
    ]
    axis = log_axis("", [2.0], least=1.0, most=100.0)
    assert (axis.share(1.0), axis.share(0.1), axis.share(1e9)) == (0.0, 0.0, 1.0)
    assert plain_axis("", [0.0]).share(0.0) == 0.0

"""The notebooks run, and their stored outputs are those of this code."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.documents import links_of
from tests.words import constructions_of

DOCS = Path(__file__).parent.parent / "docs"
MAKE = runpy.run_path(str(DOCS / "make_notebooks.py"))
SCRIPTS = sorted((DOCS / "notebooks").glob("*.py"))
MOST_BYTES = 300_000
HOW = "python docs/make_notebooks.py"

_ENCODED = re.compile(r"(data:\w+/\w+);base64,[A-Za-z0-9+/=]+")  # other versions of Pillow write other bytes
every_notebook = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)


def stored(script: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(script.with_suffix(".ipynb").read_text(encoding="utf-8"))
    return made


def comparable(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell without what may differ: bytes of pictures, the last digits of numbers, and outputs that vary."""
    if cell["cell_type"] == "code" and MAKE["VARIES"] in cell["metadata"].get("tags", ()):
        kinds = [[output["output_type"], sorted(output.get("data", ()))] for output in cell["outputs"]]
        return {**cell, "outputs": kinds}
    shown: dict[str, Any] = json.loads(_ENCODED.sub(r"\1", json.dumps(cell)))
    for output in shown.get("outputs", ()):
        if "text/html" in output.get("data", ()):  # which rounds the numbers of the text
            del output["data"]["text/plain"]
    return shown


def test_there_are_four() -> None:
    assert len(SCRIPTS) == 4
    assert [path.stem for path in sorted((DOCS / "notebooks").glob("*.ipynb"))] == [path.stem for path in SCRIPTS]


@every_notebook
def test_the_stored_outputs_are_those_of_this_code(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL")
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with MAKE["empty_directory"]():
        made = MAKE["notebook"](script)
    expected = stored(script)
    for cell, other in zip(made["cells"], expected["cells"], strict=True):
        assert comparable(json.loads(json.dumps(cell))) == comparable(other), HOW
    assert made | {"cells": []} == expected | {"cells": []}


@every_notebook
def test_a_notebook_is_of_the_format_that_viewers_read(script: Path) -> None:
    """Version 4.5 of the format: an identity for each cell, and the fields of each kind of cell and output."""
    notebook = stored(script)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    cells = notebook["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        more = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert cell.keys() == {"cell_type", "id", "metadata", "source"} | more
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"])
        for output in cell.get("outputs", ()):
            fields = {"name", "text"} if output["output_type"] == "stream" else {"data", "execution_count", "metadata"}
            assert output.keys() == fields | {"output_type"}
    title, blank, sentence, *_ = "".join(cells[0]["source"]).splitlines()
    assert title.startswith("# ")
    assert not blank
    assert sentence.endswith(".")


@every_notebook
def test_a_notebook_is_small_and_names_no_place_of_a_machine(script: Path) -> None:
    text = script.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert len(text.encode()) < MOST_BYTES
    for place in (str(Path.home()), str(DOCS.parent), "/tmp", "/home/", "/Users/"):
        assert place not in text
    assert not re.search(r"\b20\d\d-\d\d-\d\d", text)
    assert "<script" not in text


@every_notebook
def test_links_and_words(script: Path, tmp_path: Path) -> None:
    texts = [cell.source for cell in MAKE["cells_of"](script) if not cell.is_code]
    page = tmp_path / "page.md"
    page.write_text("\n\n".join(texts))
    assert [str(place) for place in constructions_of(page)] == []
    for _, target in links_of(page.read_text()):
        assert (script.parent / target.partition("#")[0]).exists(), target


@every_notebook
def test_datasets_and_samples_show_themselves(script: Path) -> None:
    outputs = [output for cell in stored(script)["cells"] for output in cell.get("outputs", ())]
    html = ["".join(output["data"]["text/html"]) for output in outputs if "text/html" in output.get("data", ())]
    assert sum("<b>Dataset</b>" in text or "<b>Mixture</b>" in text for text in html) >= 1
    assert len(html) >= 3

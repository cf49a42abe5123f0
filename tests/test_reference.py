"""The reference is what the docstrings and ``--help`` say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import shoal

DOCS = Path(__file__).parent.parent / "docs"


def test_the_reference_is_up_to_date() -> None:
    pytest.importorskip("torch", reason="the reference of shoal.torch is made from its docstrings")
    made = runpy.run_path(str(DOCS / "make_reference.py"))["page"]()
    # Words only: how argparse breaks lines differs between Pythons.
    assert (DOCS / "reference.md").read_text(encoding="utf-8").split() == made.split(), "python docs/make_reference.py"


def test_the_reference_has_every_method_of_a_dataset() -> None:
    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    public = [name for name in dir(shoal.Dataset) if not name.startswith("_")]
    assert len(public) > 30
    assert [name for name in public if f"### `ds.{name}`" not in text] == []

"""The reference is what the docstrings and ``--help`` say."""

from __future__ import annotations

import importlib
import inspect
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import shoal
from shoal.stream.iterating.iterator import Iteration

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


MODULES = ("", ".mixing", ".orders", ".formats", ".measure", ".pack", ".prometheus", ".testing")
FRAMEWORKS = (".torch", ".jax", ".huggingface")
PROTOCOLS = {"__iter__", "__len__", "__getitem__"}


def test_every_public_object_has_an_example() -> None:
    pytest.importorskip("torch", reason="shoal.torch cannot be imported without it")
    objects = dict(public_objects())
    assert len(objects) > 200
    assert [name for name, value in objects.items() if "\n>>> " not in f"\n{inspect.getdoc(value)}"] == []


def test_every_example_stands_in_a_section() -> None:
    pytest.importorskip("torch", reason="shoal.torch cannot be imported without it")
    for name, value in public_objects():
        before = (inspect.getdoc(value) or "").partition("\n>>> ")[0]
        assert "\nExamples\n--------" in before, name


def public_objects() -> Iterator[tuple[str, Any]]:
    """Functions and classes by full name, and the members of the classes that users hold all day."""
    for door in MODULES + FRAMEWORKS:
        module = importlib.import_module(f"shoal{door}")
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                yield f"{module.__name__}.{name}", value
    held = (shoal.Dataset, shoal.mixing.MixedDataset, shoal.LiveDataset, Iteration)
    for owner in (*held, shoal.torch.DataLoader, shoal.jax.DataLoader):
        for attribute in dir(owner):
            home = next(kind for kind in owner.__mro__ if attribute in vars(kind))
            value = vars(home)[attribute]
            is_named = not attribute.startswith("_") or (attribute in PROTOCOLS and value.__doc__)
            if home.__module__.startswith("shoal.") and is_named and isinstance(value, FunctionType | property):
                yield f"{owner.__name__}.{attribute}", value

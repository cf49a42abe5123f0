"""The reference has a place for every public name."""

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
from shoal.stats.counters import Counters
from shoal.stats.prometheus_text import text
from shoal.stream.iterating.iterator import Iteration

DOCS = Path(__file__).parent.parent / "docs"
MODULES = (
    "formats", "huggingface", "jax", "measure", "mixing", "orders", "pack", "prometheus", "testing", "torch", "watch",
)  # fmt: skip
PROTOCOLS = {"__iter__", "__len__", "__getitem__"}
# A type, or a constant that another entry names.
WITHOUT_A_PLACE = {"shoal.formats.Buffer", "shoal.prometheus.CONTENT_TYPE"}


def public_names() -> Iterator[str]:
    """Functions and classes of the public modules, and what a dataset and a mixture can do."""
    modules = [f"shoal.{name}" for name in MODULES]
    yield from (f"shoal.{name}" for name in shoal.__all__ if f"shoal.{name}" not in [*modules, "shoal.errors"])
    for name in [*modules, "shoal.errors"]:
        yield from (f"{name}.{public}" for public in importlib.import_module(name).__all__)
    yield from (f"shoal.Dataset.{name}" for name in dir(shoal.Dataset) if not name.startswith("_"))
    own = [name for name in vars(shoal.mixing.MixedDataset) if not name.startswith("_")]
    yield from (f"shoal.mixing.MixedDataset.{name}" for name in own)


def test_every_public_name_has_a_place_in_the_reference() -> None:
    pytest.importorskip("torch", reason="shoal.torch is imported")
    pytest.importorskip("griffe", reason="the site is built with griffe")
    documented = runpy.run_path(str(DOCS / "docstrings_on_site.py"))["documented_names"]()
    names = set(public_names())
    assert len(names) > 150
    assert sorted(names - documented - WITHOUT_A_PLACE) == []


def test_every_counter_has_a_meaning() -> None:
    unexplained = [
        name for name, value in Counters().as_dict().items() if f"{name} of Dataset.stats" in text({name: value})
    ]
    assert unexplained == []


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
    for module in [shoal, *(importlib.import_module(f"shoal.{name}") for name in MODULES)]:
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

"""The reference has a place for every public name."""

from __future__ import annotations

import importlib
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal
from shoal.stats.counters import Counters
from shoal.stats.prometheus_text import text

DOCS = Path(__file__).parent.parent / "docs"
MODULES = ("formats", "huggingface", "jax", "measure", "mixing", "orders", "pack", "prometheus", "testing", "torch")
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

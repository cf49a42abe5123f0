"""The table of licences names every package that an extra brings."""

from __future__ import annotations

import pytest
from tests.release.licences import CHOSEN, PAGE, brought, extras, page

pytest.importorskip("tokenizers", reason="the packages of every extra are needed")


def test_the_table_is_that_of_the_installed_packages() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.release.licences"


def test_every_package_states_a_licence() -> None:
    packages = {one.name: one.licence for each in brought().values() for one in each.values()}
    assert [name for name, licence in packages.items() if licence == "not stated"] == []
    assert sorted(set(CHOSEN) - set(packages)) == []


def test_every_extra_brings_what_it_requires() -> None:
    assert brought()[""].keys() == {"numpy"}
    assert {"pillow", "simplejpeg", "numpy"} == brought()["images"].keys()
    tables = {"tables", "delta", "iceberg", "hudi", "hub"}
    assert set(extras()) == {"", "images", "audio", "video", "remote", *tables, "formats", "tokens", "report"}
    assert "torch" not in {name for each in brought().values() for name in each}

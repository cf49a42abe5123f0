"""The picture of orders is drawn, and its absence is explained."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import UsageError
from shoal.tools.reports.mixing_picture import MeasuredOrder, mixing_picture
from shoal.tools.reports.rendering import has_matplotlib, rendered


def draw(path: Path) -> None:
    orders = [
        MeasuredOrder(name, "some words", np.arange(500), {8: ratio, 64: 2 * ratio}, distinct, 0.5)
        for name, ratio, distinct in (
            ("none", 8.0, 1.0),
            ("window", 1.0, 5.5),
            ("perfect", 1.0, 6.0),
            ("other", 2.0, 3),
        )
    ]
    texts = {"title": "A finding", "subtitle": "of these files", "label": "packages"}
    path.write_bytes(rendered(mixing_picture(orders, **texts, batch=64, expected_distinct=6.0), path.suffix))


def test_a_png_is_1200_pixels_wide(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    assert data[1:4] == b"PNG"
    assert int.from_bytes(data[16:20]) == 1200


def test_the_same_numbers_draw_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for suffix in ("png", "svg", "pdf"):
        draw(tmp_path / f"a.{suffix}")
        draw(tmp_path / f"b.{suffix}")
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_without_matplotlib_the_way_to_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not has_matplotlib()
    with pytest.raises(UsageError, match="matplotlib") as caught:
        draw(tmp_path / "a.png")
    assert caught.value.hint == "pip install matplotlib (or 'shoal[report]'), or write it as .svg"
    draw(tmp_path / "a.svg")
    assert b"where it is stored" in (tmp_path / "a.svg").read_bytes()

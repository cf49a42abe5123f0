"""The figure of a first epoch that is read while it is indexed."""

from __future__ import annotations

import numpy as np
import pytest
from tests.tools.reports.reading_pages import faults, read

from shoal.quality.expected_quality import GrowingQuality
from shoal.quality.growing_quality import growing_quality
from shoal.tools.reports.curve_figures import LEFT, RIGHT, TOP, WIDTH
from shoal.tools.reports.marks import Stroke
from shoal.tools.reports.plan_page import PlanFigures, growing_figure, plan_page

MIB = 2**20


def quality(num_shards: int, shard_bytes: int = 16 * MIB) -> GrowingQuality:
    return growing_quality([shard_bytes] * num_shards, 256, sample_bytes=2**14)


def curve(found: GrowingQuality) -> list[tuple[float, float]]:
    """The points of the first epoch."""
    marks = growing_figure(found).drawing.marks
    (points,) = next(mark.lines for mark in marks if isinstance(mark, Stroke) and _is_data(mark))  # not in the legend
    return list(points)


def _is_data(mark: Stroke) -> bool:
    return mark.colour == "data" and len(mark.lines) == 1 and mark.lines[0][0][1] > TOP


@pytest.mark.parametrize("num_shards", [1, 5, 9, 60, 20_000])
def test_each_segment_is_a_step(num_shards: int) -> None:
    found = quality(num_shards)
    points = curve(found)
    steps = [points[number : number + 2] for number in range(0, len(points), 2)]
    assert len(steps) == len(found.segments)
    assert points[0][0] == pytest.approx(LEFT)
    assert points[-1][0] == pytest.approx(WIDTH - RIGHT)
    for number, (begin, end) in enumerate(steps):
        assert begin[1] == end[1]
        assert begin[0] < end[0]
        if number:
            assert begin[0] == steps[number - 1][1][0]
            lower = found.segments[number].vr < found.segments[number - 1].vr
            assert (begin[1] > steps[number - 1][1][1]) == lower


def test_the_numbers_are_those_of_the_first_segments() -> None:
    found = quality(20_000)
    figure = growing_figure(found)
    assert figure.numbers is not None
    assert len(figure.numbers.rows) == 10
    assert figure.numbers.rows[0] == ["0.02 %", "4", "128", f"{found.segments[0].vr:.2f}"]
    assert figure.numbers.rows[1] == ["0.06 %", "8", "256", f"{found.segments[1].vr:.2f}"]
    says = figure.drawing.says
    assert f"{found.segments[0].vr:.2f} in its first segment, of 4 shards" in says
    assert f"{found.later_vr:.2f} in later epochs" in says


def test_it_is_the_first_figure_of_a_plan() -> None:
    drawn = PlanFigures(
        batch=256,
        vr={256: 1.5, 512: 2.0},
        rank_bytes=np.ones(4),
        node_bytes_per_second=np.ones(4),
        node_limit=1.0,
        heat=np.ones((4, 3), dtype=np.int64),
        growing=quality(600),
    )
    rows = [["Change", "VR"], ["this plan", "1"]]
    page = plan_page(drawn, {}, rows, title="Plan", about="", lead="", call="ds", notes=["note"], made_by="shoal")
    assert faults(page) == []
    elements = read(page).elements
    assert sum(element.tag == "svg" for element in elements) == 5
    assert "The first epoch, while it is indexed" in next(each.text for each in elements if each.tag == "figcaption")

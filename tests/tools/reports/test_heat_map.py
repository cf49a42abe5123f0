"""Maps tell empty and crowded parts from chance, however few samples there are, and pictures show the same ones."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from shoal.measure import Audit, audit
from shoal.tools.auditing.epoch_tests import survey
from shoal.tools.reports.audit_page import audit_figures, audit_page, audit_picture
from shoal.tools.reports.heat_map import HeatMap, heat_map
from shoal.tools.reports.marks import LIGHT, Cells
from shoal.tools.reports.rendering import rendered, svg_of


def shuffled(size: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).permutation(size)


def map_of(result: Audit) -> HeatMap:
    shares = None if result.is_part else np.full(64, 1 / 64)
    return heat_map(result.heat, shares)


def third_empty(size: int) -> Audit:
    """The first third of the epoch does not come from the first third of the dataset."""
    third = size // 3
    late = third + shuffled(size - third, seed=1)
    rest = np.concatenate([late[third:], np.arange(third)])
    return audit(np.concatenate([late[:third], rest[shuffled(len(rest), seed=2)]]))


@pytest.mark.parametrize("size", [600, 3000, 28_000, 100_000])
def test_an_empty_part_of_the_map_is_lit_however_few_samples_there_are(size: int) -> None:
    levels = map_of(third_empty(size)).levels
    corner = levels[: levels.shape[0] // 3, : levels.shape[1] // 3]
    assert (corner == -3).all()
    assert levels[0, 0] < 0


@pytest.mark.parametrize("size", [500, 3000, 60_000])
def test_maps_of_perfect_shuffles_stay_empty(size: int) -> None:
    shares = np.full(64, 1 / 64)
    lit = 0
    for seed in range(30):
        results = survey(shuffled(size, seed), size)
        heat = results.heat.reshape(200, 64, -1).sum(axis=2)
        lit += int(np.count_nonzero(heat_map(heat, shares).levels))
    assert lit <= 8  # 1.5 on average


def test_what_never_comes_is_less_and_of_a_part_only_absent() -> None:
    ids = shuffled(2000)  # of 3000
    whole, part = (map_of(audit(ids, num_samples=3000, is_part=is_part)) for is_part in (False, True))
    assert (whole.levels[:, -2:] == -3).all()
    assert (whole.levels >= 0)[:, :5].all()
    assert not whole.absent.any()
    assert not part.levels.any()
    assert part.absent.tolist() == [False] * 6 + [True] * 2
    assert "25% of the dataset are not in this part" in part.words


def test_what_comes_twice_is_more() -> None:
    ids = np.concatenate([shuffled(4000), np.arange(1000)])
    levels = map_of(audit(ids, num_samples=4000)).levels
    assert (levels[-1] > 0).any()
    assert (levels[-1] < 0).any()


@pytest.mark.parametrize("size", [1, 20, 64, 100])
def test_a_few_samples_make_one_field(size: int) -> None:
    assert map_of(audit(np.arange(size))).levels.size <= max(1, size // 25)


def test_pages_and_pictures_show_the_same_figures_in_the_same_colours() -> None:
    result = third_empty(3000)
    page, picture = audit_page(result, title="a"), audit_picture(result, title="a")
    lit = set()
    for figure in audit_figures(result, {}):
        assert svg_of(figure.drawing) in page
        marks = [mark for mark in figure.drawing.marks if isinstance(mark, Cells)]
        lit |= {(mark.colour, mark.opacity, len(mark.boxes)) for mark in marks}
    assert {("less", 1.0)} <= {(colour, opacity) for colour, opacity, _ in lit}
    shown = [mark for mark in picture.marks if isinstance(mark, Cells)]
    assert {(mark.colour, mark.opacity, len(mark.boxes)) for mark in shown} == lit
    svg = rendered(picture, ".svg").decode()
    assert result.headline in svg
    assert result.headline in page
    assert f"--less:{LIGHT['less']}" in svg


def test_pixels_of_an_empty_corner_have_the_colour_of_less() -> None:
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    picture = audit_picture(third_empty(3000))
    pixels = np.asarray(image.open(io.BytesIO(rendered(picture, ".png"))).convert("RGB"))
    boxes = [
        mark.boxes for mark in picture.marks if isinstance(mark, Cells) and (mark.colour, mark.opacity) == ("less", 1)
    ]
    left, top, wide, high = max(boxes[0], key=lambda box: box[1])  # the map stands above the legend's swatch
    scale = 1200 / picture.width
    results = pixels[int((top + high / 2) * scale), int((left + wide / 2) * scale)]
    assert "#" + "".join(f"{value:02x}" for value in results) == LIGHT["less"]


@pytest.mark.parametrize(
    ("ids", "arguments", "headline"),
    [
        (shuffled(20_000), {}, "Good: VR "),
        (np.arange(6400), {}, "Poor: VR 65 in batches of 64 (perfect: 1)"),
        (shuffled(2000), {"num_samples": 3000}, "Poor: 1,000 samples missing (33%), VR "),
        (np.concatenate([shuffled(3000), [7]]), {}, "Fair: 1 delivery repeated (less than 1%), VR "),
        (np.stack([shuffled(3000)] * 2), {}, "Poor: the same order comes again, VR "),
        (shuffled(8000)[::4], {"num_samples": 8000, "is_part": True}, "Good within one part: VR "),
        (1000 + shuffled(1000), {"num_samples": 8000, "is_part": True}, "Good within one part: VR "),
        (shuffled(20), {}, "Too few samples to judge"),
    ],
    ids=[
        "perfect",
        "storage order",
        "a third missing",
        "one repeated",
        "one order twice",
        "a rank",
        "a band",
        "few",
    ],
)
def test_a_headline_tells_what_weighs_most(ids: Any, arguments: Any, headline: str) -> None:
    result = audit(ids, **arguments)
    assert result.headline.startswith(headline)
    assert result.headline.lower().startswith(result.grade) or result.grade == "unknown"
    assert ("% of the dataset" in result.headline) == (bool(arguments.get("is_part")) and len(ids) == 1000)


def test_findings_stand_by_weight_with_cause_and_cure() -> None:
    result = audit(np.concatenate([np.arange(4000)] * 2), epochs=2)
    weights = [finding.weight for finding in result.findings if finding.is_serious]
    assert weights == sorted(weights, reverse=True)
    assert result.findings[0].name == "same order"
    assert "same order comes again" in result.headline
    page = audit_page(result, title="a")
    for finding in result.findings:
        assert finding.cause[1:] in page
        assert finding.cure[1:] in page
        assert page.count(finding.cause[1:]) == 1  # told once, at the heaviest

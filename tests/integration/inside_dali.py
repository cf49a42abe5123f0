"""DALI decodes ahead of the loop, and the states of the recipe count the batches that the loop received."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.documents import blocks_of
from tests.samples import write_photos

import shoal

PAGE = Path(__file__).parent.parent.parent / "docs" / "guides" / "hand-over-batches.md"
pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dali")
    os.environ["SHOAL_CACHE_DIR"] = str(directory / "cache")
    write_photos(directory / "photos")
    return directory / "photos"


@pytest.fixture(scope="module")
def decoded(photos: Path) -> Any:
    """The function of the page, which has run in the folder of the photos."""
    (code,) = (block.code for block in blocks_of(PAGE.read_text(encoding="utf-8")) if block.run_with == "dali")
    page, before = ModuleType("page"), Path.cwd()
    os.chdir(photos.parent)
    try:
        exec(compile(code, str(PAGE), "exec"), vars(page))
    finally:
        os.chdir(before)
    return vars(page)["decoded"]


def opened(photos: Path, size: int) -> Any:
    return shoal.open(photos).shuffle(seed=3).with_ids().batch(size)


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("num_received", [1, 4, 8])
def test_a_run_resumes_after_the_batches_that_the_loop_received(
    depth: int, num_received: int, photos: Path, decoded: Any
) -> None:
    received = list(itertools.islice(decoded(opened(photos, 9), batch_size=9, depth=depth), num_received))
    _, _, state = received[-1]
    resumed = opened(photos, 7)  # any batch size
    resumed.load_state_dict(state)
    received += decoded(resumed, batch_size=7, depth=depth)
    assert [number for _, ids, _ in received for number in ids] == resumed.ids(epoch=0).tolist()


@pytest.mark.parametrize("depth", [1, 3])
def test_one_pipeline_serves_all_epochs(depth: int, photos: Path, decoded: Any) -> None:
    ds = opened(photos, 8)
    received = list(decoded(ds, batch_size=8, depth=depth, num_epochs=2))
    expected = [number for epoch in range(2) for number in ds.ids(epoch=epoch).tolist()]
    assert [number for _, ids, _ in received for number in ids] == expected
    assert [(state["epoch"], state["position"]) for _, _, state in received[8:11]] == [(0, 72), (1, 0), (1, 8)]


@pytest.mark.parametrize("depth", [1, 3])
def test_the_dataset_itself_counts_what_dali_has_taken(depth: int, photos: Path, decoded: Any) -> None:
    ds = opened(photos, 8)
    run = decoded(ds, batch_size=8, depth=depth)
    _, _, state = next(run)
    assert (state["position"], ds.state_dict()["position"]) == (8, 8 * depth)

"""torchdata's loader with worker processes, at every point of two passes; `test_frameworks` runs this."""

from __future__ import annotations

import dataclasses
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from tests.integrations import whole_and_resumed
from tests.integrations.whole_and_resumed import EVERYWHERE, Made
from tests.samples import write_tar_shards

import shoal

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    pytest.mark.timeout(300),
]

# One fork server starts all workers, and imports torch once.
multiprocessing.set_forkserver_preload(["torch.utils.data", "torchdata.stateful_dataloader", "shoal.torch"])


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """A loader of 21 samples in shuffled order, in batches of 4."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    write_tar_shards(tmp_path / "data", num_shards=3, samples_per_shard=7)
    return Made(shoal.open(tmp_path / "data"), is_shuffled=True, size=4)


@pytest.mark.parametrize("workers", [(0, False), (2, False), (2, True)], ids=["none", "new", "persistent"])
@pytest.mark.parametrize("sets_epochs", [True, False])
@pytest.mark.parametrize("size", [4, -4])
@pytest.mark.parametrize("is_shuffled", [True, False])
def test_a_state_of_any_point_resumes_exactly(
    is_shuffled: bool, size: int, sets_epochs: bool, workers: tuple[int, bool], made: Made
) -> None:
    num_workers, persistent = workers
    made = dataclasses.replace(
        made, is_shuffled=is_shuffled, size=size, num_workers=num_workers, persistent=persistent
    )  # fmt: skip
    assert whole_and_resumed.differences(made, sets_epochs=sets_epochs, points=EVERYWHERE) == []


class MadeByHuggingFace(Made):
    """Over a dataset of that library instead, whose state is its own."""

    def source(self) -> Any:
        """A new dataset at its start."""
        return self.dataset.shuffle(seed=3).with_ids().columns("__id__").to_hf()


def test_what_to_hf_makes_resumes_exactly_too(made: Made) -> None:
    # Without set_epoch that library begins every later pass where the state was, whatever its data.
    made = MadeByHuggingFace(made.dataset, is_shuffled=True, size=-4)
    assert whole_and_resumed.differences(made, sets_epochs=True, points=EVERYWHERE) == []

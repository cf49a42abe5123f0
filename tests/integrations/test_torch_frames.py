"""Frames of videos through worker processes: the same batches, exact resume, and kills."""

from __future__ import annotations

import itertools
import os
import signal
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.robots import CAMERAS, number_in, write_robot

import shoal
from shoal.errors import WorkerError
from shoal.stream.dataset import Dataset
from shoal.torch import DataLoader

pytest.importorskip("av")
pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than this machine has cores
]
TOP, WRIST = CAMERAS
LENGTHS = (7, 12, 3, 9, 1, 14, 20)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_robot(tmp_path_factory.mktemp("robot"), LENGTHS)


def windows(root: Path) -> Dataset:
    rows = shoal.open(f"lerobot://{root}")
    return rows.windows(offsets={TOP: [-1, 0]}, pad="edge").decode_frames().shuffle(seed=3).batch(4)


def indices_in(batches: Any) -> list[int]:
    """The anchor rows in batches, whose frames show these rows."""
    indices: list[int] = []
    for batch in batches:
        is_repeat = batch.get("__pad__", torch.zeros(len(batch["index"]), dtype=torch.bool))
        for row in np.flatnonzero(~np.asarray(is_repeat)):
            index = int(batch["index"][row])
            assert number_in(np.asarray(batch[WRIST][row])) == number_in(np.asarray(batch[TOP][row, 1])) == index
            indices.append(index)
    return indices


def test_workers_make_the_same_batches_and_count_the_frames(root: Path) -> None:
    here = windows(root)
    loader = DataLoader(windows(root), num_workers=2)
    expected, batches = list(here), list(loader)
    assert indices_in(batches) == indices_in(expected)
    assert all(np.array_equal(one[TOP], other[TOP]) for one, other in zip(batches, expected, strict=True))
    assert loader.state_dict() == here.state_dict()
    assert loader.stats()["num_frames"] == here.stats()["num_frames"] == 3 * sum(LENGTHS)
    assert loader.stats()["video_bytes"] >= here.stats()["video_bytes"] > 0


@pytest.mark.usefixtures("impatient")
def test_a_run_whose_worker_is_killed_goes_on_with_each_window_once(root: Path) -> None:
    loader = DataLoader(windows(root), num_workers=2)
    iterator: Any = iter(loader)
    before = list(itertools.islice(iterator, 3))
    state = loader.state_dict()
    worker = iterator._source._workers.processes[0]
    os.kill(worker.pid, signal.SIGKILL)
    wait([worker.sentinel], timeout=20)
    with pytest.raises(WorkerError, match="SIGKILL"):
        list(iterator)
    again = DataLoader(windows(root), num_workers=1)
    again.load_state_dict(state)
    assert sorted(indices_in([*before, *again])) == list(range(sum(LENGTHS)))

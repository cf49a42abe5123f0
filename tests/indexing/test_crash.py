"""A run that is killed, and goes on where its log ends: every sample is used once."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest
from tests.forks import Fork
from tests.stream.made import write_lines

import shoal
from shoal.stream.open_dataset import open_dataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
]

COUNTS = [150, 1, 90, 100]
WINDOW = "200KiB"


def run(data: Path, log_path: Path, number: int, until_epoch: int) -> None:
    """Go on after the last line of the log.

    The commit is one line of the log: the samples that were used and the state after them, in one write. A line that a
    kill cut short was never used.
    """
    with log_path.open("rb+") as log:
        whole = log.read()
        whole = whole[: whole.rfind(b"\n") + 1]
        log.truncate(len(whole))
        log.seek(0, os.SEEK_END)
        ds = shoal.open(data).shuffle(seed=11, window=WINDOW).batch(1 + number % 7)
        ds.stream.opened.store.reads_ahead = number % 2 == 0
        if whole:
            ds.load_state_dict(json.loads(whole.splitlines()[-1])["state"])
        while ds.state_dict()["epoch"] < until_epoch:
            epoch = ds.state_dict()["epoch"]
            for batch in ds:
                line = {"epoch": epoch, "ids": batch["id"].tolist(), "state": ds.state_dict()}
                log.write(json.dumps(line).encode() + b"\n")
                log.flush()
                os.fsync(log.fileno())


def num_lines(log: Path) -> int:
    return log.read_bytes().count(b"\n")


def check_used_once(data: Path, log: Path) -> None:
    """Finish the epoch that the last line is of, and look at all that was used."""
    last = json.loads(log.read_bytes().rpartition(b"\n")[0].splitlines()[-1])
    assert Fork(partial(run, data, log, 3, last["epoch"] + 1)).exit_code() == 0
    used: dict[int, list[int]] = {}
    for line in map(json.loads, log.read_bytes().splitlines()):
        used.setdefault(line["epoch"], []).extend(line["ids"])
    ds = open_dataset(data).shuffle(seed=11, window=WINDOW)
    assert len(ds.resolved.chunks) > ds.resolved.order.parameters["chunks"]
    assert sorted(used) == list(range(len(used)))
    for epoch, ids in used.items():
        assert ids == ds.ids(epoch=epoch).tolist()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "data", COUNTS)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.touch()
    return path


def kill_after(data: Path, log: Path, number: int, num_steps: int, pause_seconds: float = 0.0) -> None:
    """Start a run, and kill it once it has used so many batches, and some time later."""
    before = num_lines(log)
    child = Fork(partial(run, data, log, number, 10**6))
    while num_lines(log) < before + num_steps:
        time.sleep(0.001)
    time.sleep(pause_seconds)
    assert child.kill() == -signal.SIGKILL


def test_every_sample_is_used_once_over_some_kills(data: Path, log: Path) -> None:
    for number, num_steps in enumerate((5, 0, 40, 70)):
        kill_after(data, log, number, num_steps)
    check_used_once(data, log)


@pytest.mark.drill
def test_every_sample_is_used_once_over_fifty_kills(data: Path, log: Path) -> None:
    """Half of them at any moment: while a dataset is opened, too, or its index is made."""
    dice = random.Random(5)
    for number in range(50):
        kill_after(data, log, number, dice.randrange(30) if number % 2 else 0, dice.uniform(0.001, 0.08))
    check_used_once(data, log)

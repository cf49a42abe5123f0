"""A job is killed while its source changes, and goes on at other sizes on another machine."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.stream.generations.arriving import Arriving

LEGS = [(2, 0, 9), (3, 2, 8), (1, 1, 20), (2, 2, 30)]
"""Ranks, workers of each rank, and steps until the ranks are killed."""


@pytest.mark.drill
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2))
def test_each_epoch_has_its_shards_once_through_kills_and_arrivals(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    arriving = Arriving(tmp_path / "data")
    letters = draw.sample("abcdefghijklmnopqrstuvwxyz", 26)
    arriving.arrive([f"{letter}.jsonl" for letter in letters[:4]], 11)
    names = (f"{draw.choice(letters)}-{number}.jsonl" for number in itertools.count())
    delivered: dict[int, list[int]] = {}
    for number, (world_size, num_workers, steps) in enumerate(LEGS):
        ranks = [start(tmp_path, number, rank, world_size, num_workers, steps) for rank in range(world_size)]
        arriving.arrive([next(names)], 5)  # in any case, however fast the ranks are
        while any(rank.poll() is None for rank in ranks):
            if draw.random() < 0.3:
                arriving.arrive([next(names)], 5)
            time.sleep(0.4)
        logs = [(tmp_path / f"log-{number}-{rank}.txt").read_text() for rank in range(world_size)]
        assert [rank.returncode for rank in ranks] == [-9] * world_size, logs
        saved = [json.loads((tmp_path / f"saved-{number}-{rank}.json").read_text()) for rank in range(world_size)]
        states = [json.dumps(each["state"], sort_keys=True) for each in saved]
        assert len({len(each["delivered"]) for each in saved}) == len(set(states)) == 1
        for each in saved:
            for epoch, ids in each["delivered"]:
                delivered.setdefault(epoch, []).extend(ids)
    (last, position), shards = (saved[0]["state"]["epoch"], saved[0]["state"]["position"]), saved[0]["state"]["shards"]
    num_arrived = [0]
    for name in arriving.arrivals:
        num_arrived.append(num_arrived[-1] + len(arriving.ids_in([name])))
    assert last >= 2, "the run saw several epochs"
    sizes = []
    for epoch, ids in sorted(delivered.items()):
        assert len(set(ids)) == len(ids), f"epoch {epoch} has a sample twice"
        if epoch < last:
            assert sorted(ids) == list(range(len(ids)))
            assert len(ids) in num_arrived
            sizes.append(len(ids))
        else:
            assert len(ids) == position
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0]
    assert (shards[-1] if isinstance(shards, list) else shards) <= len(arriving.arrivals)


@pytest.mark.drill
@pytest.mark.timeout(600)
def test_each_epoch_has_its_version_once_through_kills_and_writes(tmp_path: Path) -> None:
    """Rows are appended, deleted and rewritten meanwhile: the run that began with a version ends with it."""
    deltalake = pytest.importorskip("deltalake")
    table, draw, num_rows = str(tmp_path / "data"), random.Random(0), 44
    for first in range(0, num_rows, 11):
        deltalake.write_deltalake(table, rows(range(first, first + 11)), mode="append")
    delivered: dict[int, list[int]] = {}
    new_ids = itertools.count(1000)
    for number, (world_size, num_workers, steps) in enumerate(LEGS):
        ranks = [start(tmp_path, number, rank, world_size, num_workers, steps) for rank in range(world_size)]
        while any(rank.poll() is None for rank in ranks):
            # The first leg has one version to begin with; a run that is resumed finds its version.
            if number and draw.random() < 0.3:
                deltalake.write_deltalake(table, rows([next(new_ids), next(new_ids)]), mode="append")
                deltalake.DeltaTable(table).delete(f"id = {draw.randrange(num_rows)}")
            time.sleep(0.7)
        logs = [(tmp_path / f"log-{number}-{rank}.txt").read_text() for rank in range(world_size)]
        assert [rank.returncode for rank in ranks] == [-9] * world_size, logs
        for rank in range(world_size):
            saved = json.loads((tmp_path / f"saved-{number}-{rank}.json").read_text())
            assert saved["state"]["snapshot"] == '{"delta": 3}'
            for epoch, ids in saved["delivered"]:
                delivered.setdefault(epoch, []).extend(ids)
    last = max(delivered)
    assert last >= 2
    assert deltalake.DeltaTable(table).version() > 5
    for epoch, ids in delivered.items():
        assert len(set(ids)) == len(ids)
        assert set(ids) <= set(range(num_rows))
        assert epoch == last or len(ids) == num_rows


def rows(ids: Any) -> Any:
    return pa.table({"id": pa.array(list(ids), pa.int64())})


def start(out: Path, number: int, rank: int, world_size: int, num_workers: int, steps: int) -> Any:
    """A started rank of a job on this machine; each leg has another cache directory, as another machine has."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    environment = {**os.environ, **{name: str(value) for name, value in names.items()}}
    environment |= {"SHOAL_CACHE_DIR": str(out / f"cache-{number}"), "PYTHONPATH": str(Path.cwd())}
    words = [sys.executable, "-m", "tests.integrations.train_followed", out, number, num_workers, steps]
    with (out / f"log-{number}-{rank}.txt").open("w") as log:
        return subprocess.Popen([str(word) for word in words], env=environment, stdout=log, stderr=log)

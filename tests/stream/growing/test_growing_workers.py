"""The growing order in the processes of a job: workers of a loader, ranks that share the indexing, and kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.stream.growing.growing_data import gated, growing, keys_of_all

torch = pytest.importorskip("torch")

import shoal.torch  # noqa: E402

_RUN = """
import json, os, sys
import shoal
from tests.stream.growing.growing_data import gated, growing

data, rank, world_size, stop, state = sys.argv[1], *map(int, sys.argv[2:5]), json.loads(sys.argv[5])
with gated(1) as gate:
    dataset = growing(data).batch(4).partition(rank=rank, world_size=world_size)
    if state:
        dataset.load_state_dict(state)
    gate.let(1000 if state else 2)
    for step, batch in enumerate(dataset):
        print(json.dumps([batch["key"], dataset.state_dict()]), flush=True)
        if step == stop:
            os.kill(os.getpid(), 9)
        gate.let(1)
"""


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_loaders_give_the_same_batches(shards: Path, num_workers: int, persistent: bool) -> None:
    expected = [batch["key"] for batch in growing(shards).batch(5)]
    loader = shoal.torch.DataLoader(growing(shards).batch(5), num_workers=num_workers, persistent_workers=persistent)
    assert [batch["key"] for batch in loader] == expected
    assert len(loader) == len(expected)
    later = [batch["key"] for batch in loader]
    assert sorted(key for batch in later for key in batch) == keys_of_all()
    assert later != expected
    assert loader.stats()["num_samples"] == 2 * len(keys_of_all())
    loader.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_resumes_in_the_middle(shards: Path, num_workers: int) -> None:
    expected = [batch["key"] for batch in growing(shards).batch(5)]
    first = shoal.torch.DataLoader(growing(shards).batch(5), num_workers=num_workers)
    with gated(2) as gate:
        iterator = iter(first)
        got = [next(iterator)["key"] for _ in range(3)]
        state = first.state_dict()
        gate.let(1000)
    assert got == expected[:3]
    assert state["position"] == 15
    second = shoal.torch.DataLoader(growing(shards).batch(5), num_workers=num_workers)
    second.load_state_dict(state)
    assert [batch["key"] for batch in second] == expected[3:]
    assert second.state_dict()["epoch"] == 1
    first.close()
    second.close()


def test_a_killed_run_resumes_on_two_ranks(shards: Path, tmp_path: Path) -> None:
    ((code, lines),) = _run(shards, 1, 7, {}, tmp_path)
    assert code == -signal.SIGKILL
    after: list[str] = []
    for rank in range(2):
        resumed = growing(shards).batch(4).partition(rank=rank, world_size=2)
        resumed.load_state_dict(lines[-1][1])
        after += [key for batch in resumed for key in batch["key"]]
    before = {key for keys, _ in lines for key in keys}
    assert len(before) == 4 * 8
    assert not before & set(after)
    assert sorted(before | set(after)) == keys_of_all()


@pytest.mark.drill
@pytest.mark.parametrize("stop", [0, 7, 30])
def test_killed_ranks_resume_at_another_size(shards: Path, tmp_path: Path, stop: int) -> None:
    first = _run(shards, 2, stop, {}, tmp_path)
    assert all(code == -signal.SIGKILL for code, _ in first)
    state = first[0][1][-1][1]
    assert state == first[1][1][-1][1]
    rest = _run(shards, 3, -1, state, tmp_path)
    assert all(code == 0 for code, _ in rest)
    before = {key for _, lines in first for keys, _ in lines for key in keys}
    after = [key for _, lines in rest for keys, _ in lines for key in keys]
    assert not before & set(after)
    assert sorted(before | set(after)) == keys_of_all()


def _run(data: Path, world_size: int, stop: int, state: dict[str, Any], cache: Path) -> list[tuple[int, list[Any]]]:
    environment = {**os.environ, "SHOAL_CACHE_DIR": str(cache / "cache")}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _RUN, data, str(rank), str(world_size), str(stop), json.dumps(state)],
            stdout=subprocess.PIPE, text=True, env=environment,
        )
        for rank in range(world_size)
    ]  # fmt: skip
    found = []
    for rank in ranks:
        out, _ = rank.communicate(timeout=100)
        found.append((rank.returncode, [json.loads(line) for line in out.splitlines()]))
    return found

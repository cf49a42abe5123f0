"""States of the growing order: of other samples behind the same names and sizes they are refused."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.stream.growing.growing_data import COUNTS, WINDOW, gated, growing, write_shards

import shoal
from shoal.errors import StateError

_OTHER = "first [0-9]+ of [0-9]+ segments held other samples"


def _stopped(data: Path, steps: int, **terms: Any) -> tuple[list[str], dict[str, Any]]:
    """The keys of the first batches of 4, and the state after them."""
    run = growing(data, **terms).batch(4)
    iterator = iter(run)
    keys = [key for _ in range(steps) for key in next(iterator)["key"]]
    state = json.loads(json.dumps(iterator.state_dict()))
    iterator.close()
    return keys, state


def _replaced(path: Path) -> None:
    """Replace a shard by one of the same size with other samples: two lines become one."""
    num_bytes = path.stat().st_size
    first, second, *others = path.read_text().splitlines()
    line = json.dumps({**json.loads(first), "more": ""})
    line = line[:-2] + "x" * (len(first) + 1 + len(second) - len(line)) + '"}'
    path.write_text("\n".join([line, *others, ""]))
    assert path.stat().st_size == num_bytes


@pytest.mark.parametrize("index", ["grow", "known"])
def test_a_shard_that_another_of_its_size_has_replaced(tmp_path: Path, index: str) -> None:
    data = write_shards(tmp_path / "data")
    keys, state = _stopped(data, 20)
    _replaced(data / f"{int(keys[0].split('/')[0]):03d}.jsonl")
    if index == "known":
        shoal.open(data, index="wait")
        with pytest.raises(StateError, match=_OTHER):
            growing(data).load_state_dict(state)
        return
    run = growing(data).batch(4)
    run.load_state_dict(state)
    with pytest.raises(StateError, match=_OTHER):
        next(iter(run))
    assert sum(len(batch["key"]) for batch in growing(data).batch(4)) == sum(COUNTS) - 1


def test_a_shard_behind_the_position_may_be_replaced(tmp_path: Path) -> None:
    data = write_shards(tmp_path / "data")
    order = [key.split("/")[0] for key in _stopped(data, 79)[0]]
    keys, state = _stopped(data, 2)
    assert order[-1] not in order[:8]
    _replaced(data / f"{int(order[-1]):03d}.jsonl")
    run = growing(data).batch(4)
    run.load_state_dict(state)
    assert len(keys) + sum(len(batch["key"]) for batch in run) == sum(COUNTS) - 1


def test_an_index_with_other_extents(tmp_path: Path) -> None:
    data = write_shards(tmp_path / "data", [2000] * 12)
    window: Any = {"seed": 5, "window": "1MiB"}
    run = shoal.open(data, index="grow").shuffle(**window).batch(4)
    next(iter(run))
    state = run.state_dict()
    job = shoal.plan_index(data, to=data / "shoal.index", extent_bytes=2**14)
    for number in job.missing():
        job.task(number)()
    job.finish()
    other = shoal.open(data, index="grow").shuffle(**window).batch(4)
    with pytest.raises(StateError, match="other extents"):
        other.load_state_dict(state)


def test_an_index_that_names_directories_is_that_of_the_same_shards(tmp_path: Path) -> None:
    data = write_shards(tmp_path / "all" / "data")
    keys, state = _stopped(data, 20)
    job = shoal.plan_index(tmp_path / "all", to=tmp_path / "all.index")
    for number in job.missing():
        job.task(number)()
    job.finish()
    run = shoal.open(f"{data}/*.jsonl", index=tmp_path / "all.index").shuffle(seed=5).batch(4)
    run.load_state_dict(state)
    assert keys + [key for batch in run for key in batch["key"]] == _stopped(data, 80)[0]


@pytest.mark.parametrize("steps", [1, 20, 79])
def test_states_do_not_depend_on_what_is_indexed(shards: Path, steps: int) -> None:
    with gated(1) as gate:
        threading.Timer(0.1, gate.let, [1000]).start()
        _, grown = _stopped(shards, steps)
    shoal.open(shards, index="wait")
    assert _stopped(shards, steps)[1] == grown
    assert growing(shards).state_at(4 * steps) == grown
    assert len(json.dumps(grown)) < 400


def test_a_state_of_a_later_epoch_knows_all_segments(tmp_path: Path) -> None:
    data = write_shards(tmp_path / "data")
    run = growing(data).batch(4)
    run.set_epoch(2)
    assert "segments" not in run.state_dict()
    next(iter(run))
    state = run.state_dict()
    _replaced(data / "000.jsonl")
    with pytest.raises(StateError, match=_OTHER):
        growing(data).load_state_dict(state)


def test_what_no_state_says_is_no_state(shards: Path) -> None:
    run = shoal.open(shards, index="grow").shuffle(seed=5, window=WINDOW).batch(4)
    next(iter(run))
    with pytest.raises(StateError, match="changed after it was saved"):
        run.load_state_dict({**run.state_dict(), "segments": "1-0123456789abcdef"})

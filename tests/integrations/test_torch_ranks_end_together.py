"""Ranks that pack documents as they come yield equally many batches, so that no sum over all ranks waits for ever."""

from __future__ import annotations

import itertools
import json
import multiprocessing
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.integrations import train_packed_ranks

import shoal
import shoal.torch
from shoal.errors import UsageError
from shoal.stream.dataset import Dataset

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

STEPS = 50


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for shard in range(4):
        numbers = range(100 * shard, 100 * (shard + 1))
        (tmp_path / f"{shard}.jsonl").write_text("".join(json.dumps({"number": n}) + "\n" for n in numbers))
    return tmp_path


def parts(data: Path, world_size: int = 2, **how: Any) -> list[Dataset]:
    ds = train_packed_ranks.dataset(data).batch(2, **how)
    return [ds.partition(rank=rank, world_size=world_size) for rank in range(world_size)]


def tokens_of(batches: Any) -> Counter[int]:
    return Counter(token for batch in batches for token in batch["tokens"][batch["segment_ids"] > 0].tolist())


ALL_TOKENS = Counter(token for number in range(400) for token in train_packed_ranks.sized({"number": number})["tokens"])


def test_several_ranks_state_how_a_pass_ends(data: Path) -> None:
    with pytest.raises(UsageError, match=r"2 ranks would yield different numbers of batches.*hang"):
        iter(parts(data)[0])
    apart = [len(list(part)) for part in parts(data, steps="apart")]
    assert apart[0] != apart[1]
    assert [len(list(part)) for part in parts(data, steps=STEPS)] == [STEPS, STEPS]
    assert len(parts(data, steps=STEPS)[0]) == STEPS
    assert len(list(train_packed_ranks.dataset(data).batch(2))) > STEPS  # one rank has none to wait for


def test_passes_carry_on_until_epochs_follow_each_other(data: Path) -> None:
    """What a rank has left of an epoch is carried: passes cut the batches of epoch after epoch elsewhere."""
    for rank, part in enumerate(parts(data, steps=STEPS)):
        alone = parts(data, steps="apart")[rank]  # its batches, epoch after epoch
        expected = [batch["tokens"].tolist() for _ in range(8) for batch in alone]
        passes = [[batch["tokens"].tolist() for batch in part] for _ in range(4)]
        assert [len(each) for each in passes] == [STEPS] * 4
        assert list(itertools.chain(*passes)) == expected[: 4 * STEPS]


def test_a_merged_state_resumes_passes_at_another_world_size(data: Path) -> None:
    ranks, found = parts(data, steps=STEPS), Counter[int]()
    for part in ranks:
        found += tokens_of(itertools.islice(part, 20))
    state = shoal.merge_states(part.state_dict() for part in ranks)
    again = parts(data, steps=STEPS)
    for part, before in zip(again, ranks, strict=True):
        part.load_state_dict(state)
        part.set_epoch(0)
        assert part.state_dict() == before.state_dict()
    three = parts(data, 3, steps="apart")
    for part in three:
        part.load_state_dict(state)
        found += tokens_of(part)
    assert not ALL_TOKENS - found


# A rank that forks its workers needs no fork server of its own, which would import torch.
@pytest.mark.parametrize(
    ("num_workers", "method"),
    [(0, None), pytest.param(2, "fork", marks=pytest.mark.drill), pytest.param(2, None, marks=pytest.mark.drill)],
)
def test_real_ranks_that_wait_for_each_other_at_each_step_end_two_passes(
    data: Path, num_workers: int, method: str | None
) -> None:
    context: Any = multiprocessing.get_context("forkserver")
    options = (num_workers, method, {"steps": STEPS})
    ranks = [context.Process(target=train_packed_ranks.run, args=(data, rank, 2, *options)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
        assert process.exitcode == 0
    saved = [json.loads((data / f"rank-{rank}.json").read_text()) for rank in range(2)]
    for part, each in zip(parts(data, steps=STEPS), saved, strict=True):
        assert [tokens.count(-1) for tokens in each["passes"]] == [STEPS, STEPS]
        here = [sorted(tokens_of(part).elements()) for _ in range(2)]
        assert [sorted(token for token in tokens if token >= 0) for tokens in each["passes"]] == here
        assert each["state"] == part.state_dict()
    shoal.merge_states(each["state"] for each in saved)


def test_ranks_that_refill_state_it_as_well(data: Path) -> None:
    ds = shoal.open(str(data / "*.jsonl")).filter(lambda sample: sample["number"] % 7 < 3, refill=True)
    with pytest.raises(UsageError, match=r"filter\(refill=True\) fills batches, so 3 ranks"):
        iter(ds.batch(4).partition(rank=0, world_size=3))
    numbers = [[len(b["number"]) for b in ds.batch(4, steps=9).partition(rank=r, world_size=3)] for r in range(3)]
    assert {len(each) for each in numbers} == {9}


def test_an_epoch_without_a_batch_is_an_error_and_no_endless_loop(data: Path) -> None:
    ds = train_packed_ranks.dataset(data).batch(1000, remainder="drop", steps=9)
    with pytest.raises(UsageError, match="rank 1 gets no batch in epoch 1, so its passes would never end"):
        list(ds.partition(rank=1, world_size=2))


def test_a_pass_that_is_stopped_stays_where_it_is(data: Path) -> None:
    loader = shoal.torch.DataLoader(parts(data, steps=STEPS)[0])
    batches = iter(loader)
    next(batches)
    loader.stop()
    assert next(batches, None) is None
    again = parts(data, steps=STEPS)[0]
    next(iter(again))
    assert loader.state_dict() == again.state_dict()


def test_what_cannot_be_stated_is_refused(data: Path) -> None:
    plain = shoal.open(str(data / "*.jsonl"))
    with pytest.raises(UsageError, match=r"batch\(steps=9\) is for ranks that fill their batches"):
        plain.batch(4, steps=9)
    for steps in (0, "together"):
        with pytest.raises(UsageError, match=r"must be a number of batches of at least 1, or 'apart'"):
            train_packed_ranks.dataset(data).batch(4, steps=steps)

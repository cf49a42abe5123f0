"""Fine-tuning from conversations: mixed, templated, packed with masks, in workers, on any number of ranks, killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.chats_of_tests import TOOLS, WEATHER, conversation, write_model

import shoal
from shoal.errors import StateError
from shoal.pipeline.stages.conversations.chat_tokens import chat_tokens_with

pytest.importorskip("torch", reason="torch is not installed")

from tests.integrations.train_on_chats import dataset, learned

from shoal.torch import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")
ROOT = Path(__file__).parent.parent.parent
SPEAKERS = {"user": "human", "assistant": "gpt", "system": "system", "tool": "observation"}


def samples_of(name: str, num_samples: int) -> list[dict[str, Any]]:
    draw, samples = random.Random(name), []
    for number in range(num_samples):
        messages = conversation(draw, "tools" if name == "calls" else "ChatML")
        if name == "share":
            sharegpt = [{"from": SPEAKERS[each["role"]], "value": each["content"]} for each in messages]
            samples.append({"conversations": json.dumps(sharegpt), "number": number})
        elif name == "calls":
            samples.append({"messages": messages, "tools": json.dumps([WEATHER])})
        else:
            samples.append({"messages": messages})
    return samples


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sets of conversations, with the lengths of their tokens as a column of each index."""
    home = tmp_path_factory.mktemp("chats")
    stage = chat_tokens_with(write_model(home / "model", TOOLS))
    for name, num_samples in (("help", 90), ("share", 50), ("calls", 40)):
        samples = [each | {"num_tokens": stage(each, 0)["num_tokens"]} for each in samples_of(name, num_samples)]
        shoal.pack.pack(samples, home / name, format="jsonl", columns=["num_tokens"], shard_bytes="16KiB")
    return home


@pytest.fixture(scope="module")
def whole(written: Path) -> list[list[int]]:
    """The learned tokens of each sequence of an epoch that was not stopped."""
    return learned(dataset(written))


def counted(rows: list[list[int]]) -> Counter[int]:
    return Counter(token for row in rows for token in row)


@pytest.mark.parametrize(
    ("before", "then"),
    [((0, 1), (2, 3)), ((2, 2), (0, 1)), pytest.param((1, 3), (1, 2), marks=pytest.mark.drill)],
)
def test_a_run_goes_on_elsewhere_with_the_same_tokens(
    written: Path, whole: list[list[int]], before: tuple[int, int], then: tuple[int, int]
) -> None:
    assert sum(map(len, whole)) > 1000
    num_workers, world_size = before
    parts = [dataset(written).partition(rank=rank, world_size=world_size) for rank in range(world_size)]
    loaders = [DataLoader(part, num_workers=num_workers) for part in parts]
    streams = [iter(loader) for loader in loaders]
    seen = [row for _ in range(5) for stream in streams for row in learned([next(stream)])]
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states)
    for stream in streams:
        stream.close()
    num_workers, world_size = then
    for rank in range(world_size):
        loader = DataLoader(dataset(written).partition(rank=rank, world_size=world_size), num_workers=num_workers)
        loader.load_state_dict(json.loads(json.dumps(states[0])))
        seen += learned(loader)
    assert counted(seen) == counted(whole)
    assert sorted(seen) == sorted(whole)


def test_the_learned_tokens_are_those_of_each_conversation_of_the_epoch(written: Path, whole: list[list[int]]) -> None:
    stage = chat_tokens_with(written / "model")
    mixed = dataset(written)
    expected: Counter[int] = Counter()
    for sample_id in mixed.ids().tolist():
        made = mixed[int(sample_id)]
        assert made["num_tokens"] == len(made["tokens"]) == len(made["loss_mask"])
    for name in ("help", "share", "calls"):
        single = shoal.open(written / name)
        assert [stage(single[number], number)["num_tokens"] for number in range(3)] == single.index_column(
            "num_tokens"
        )[:3].tolist()
    # Documents of more than a sequence are cut, and each piece lists its document: count each document once.
    for sample_id, num_times in Counter(whole_documents(mixed)).items():
        made = mixed[sample_id]
        for token in made["tokens"][made["loss_mask"] == 1].tolist():
            expected[token] += num_times
    assert counted(whole) == expected


def whole_documents(ds: shoal.Dataset) -> list[int]:
    """The documents of an epoch, each at the piece with which it begins."""
    ids = []
    for step in range(len(ds)):
        told = ds.batch_segments(step)
        ids += [int(each) for each, start in zip(told.ids, told.starts, strict=True) if start == 0]
    return ids


def test_a_state_of_another_template_is_refused(written: Path, tmp_path: Path) -> None:
    ds = shoal.open(written / "help").shuffle(seed=0).chat_tokens(written / "model")
    state = ds.state_at(10)
    ds.load_state_dict(state)
    other = write_model(tmp_path / "model")
    shoal.open(written / "help").shuffle(seed=0).chat_tokens(written / "model", train_on="last").load_state_dict(state)
    with pytest.raises(StateError, match="the tokenizer changed") as caught:
        shoal.open(written / "help").shuffle(seed=0).chat_tokens(other).load_state_dict(state)
    assert "chat template" in caught.value.hint


@pytest.mark.drill
@pytest.mark.parametrize("seed", range(2))
def test_a_run_that_is_killed_again_and_again_learns_each_token_once(written: Path, tmp_path: Path, seed: int) -> None:
    home = tmp_path
    for name in ("help", "share", "calls", "model"):
        (home / name).symlink_to(written / name)
    draw, num_kills = random.Random(seed), 0
    while not (home / "done").exists():
        world_size, num_workers = draw.choice([(1, 1), (2, 1), (3, 2), (2, 0)])
        script = ROOT / "tests" / "integrations" / "train_on_chats.py"
        command = [sys.executable, "-W", "ignore", str(script), str(home), str(world_size), str(num_workers)]
        with subprocess.Popen(command, cwd=ROOT) as process:
            wanted = num_lines(home) + draw.randint(1, 6)
            while process.poll() is None and (num_kills == 5 or num_lines(home) < wanted):
                time.sleep(0.01)
            time.sleep(draw.random() / 20)
            process.send_signal(signal.SIGKILL)
        if not (home / "done").exists():
            assert process.returncode == -signal.SIGKILL
            num_kills += 1
    assert num_kills >= 3
    rows: dict[int, list[list[int]]] = {}
    for line in (home / "log.jsonl").read_text().splitlines():
        position, noted = json.loads(line)
        rows[position] = noted  # a global batch that was lost with its state is done again
    assert sorted(row for each in rows.values() for row in each) == sorted(learned(dataset(written)))


def num_lines(home: Path) -> int:
    log = home / "log.jsonl"
    return log.read_text().count("\n") if log.exists() else 0

"""`shoal trace` agrees with what a run gets, both ways."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.calls import Calls, make_shards
from tests.samples import write_jsonl

import shoal


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_shards(tmp_path, monkeypatch, num_shards=6, samples_per_shard=41)


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


ORDERS: list[tuple[list[str], dict[str, Any]]] = [
    ([], {}),
    (["--seed", "4", "--window", "180KiB", "--chunk", "40KiB"], {"seed": 4, "window": "180KiB", "chunk": "40KiB"}),
    (["--order", "buffer", "--samples", "20"], {"order": shoal.orders.Buffer(20)}),
    (["--order", "full", "--seed", "1"], {"order": "full", "seed": 1}),
    (["--order", "none"], {"order": "none"}),
]


@pytest.mark.parametrize(("words", "keywords"), ORDERS)
@pytest.mark.parametrize(("world_size", "batch", "epoch"), [(1, 10, 0), (3, 5, 1), (4, 64, 2), (7, 1, 1)])
def test_steps_hold_what_a_run_gets(
    words: list[str],
    keywords: dict[str, Any],
    world_size: int,
    batch: int,
    epoch: int,
    data: Path,
    calls: Calls,
) -> None:
    dataset = shoal.open(data).shuffle(**keywords).batch(batch)
    run = ["--batch-size", batch, "--world-size", world_size, "--epoch", epoch, *words]
    last = -(-246 // (batch * world_size)) - 1
    index = dataset.resolved.index
    for step in sorted({0, last // 2, last}):
        said = calls.json("trace", data, "--step", step, *run)
        assert said["order"] == str(dataset.resolved)
        assert said["num_steps"] == last + 1
        for rank in range(world_size):
            own = [row for row in said["samples"] if row["rank"] == rank]
            expected = dataset.batch_ids(step, epoch=epoch, rank=rank, world_size=world_size).tolist()
            assert [row["sample"] for row in own] == expected
            assert [row["place"] for row in own] == list(range(len(own)))
            alone = calls.json("trace", data, "--step", step, "--rank", rank, *run)
            assert alone["samples"] == own
        once = [row for row in said["samples"] if not row["repeat"]]
        assert sorted(row["position"] for row in once) == list(range(said["first_position"], said["end_position"]))
        for row in said["samples"]:
            stored = (data / row["shard"]).read_bytes()[row["first_byte"] : row["end_byte"]]
            assert f"sample {row['sample']:04d}".encode() in stored
            assert dataset.ids(epoch, row["position"], row["position"] + 1).tolist() == [row["sample"]]
        assert {row["shard"] for row in said["samples"]} <= set(index.shard_names)
        # And back: the same rows, and for a repeat also the step to which its sample belongs.
        ids = ",".join(str(row["sample"]) for row in said["samples"])
        back = calls.json("trace", data, "--sample", ids, *run)["samples"]
        assert all(row in back for row in said["samples"])
        repeats = {row["sample"] for row in [*said["samples"], *back] if row["repeat"]}
        assert all(row in said["samples"] or row["sample"] in repeats for row in back)


@pytest.mark.parametrize("remainder", ["keep", "pad", "drop"])
def test_every_sample_is_found_where_the_remainder_puts_it(remainder: str, data: Path, calls: Calls) -> None:
    dataset = shoal.open(data).shuffle(seed=1).batch(global_batch_size=49, remainder=remainder)
    run = ["--global-batch", 49, "--world-size", 4, "--remainder", remainder, "--seed", 1]
    rows = calls.json("trace", data, "--sample", ",".join(map(str, range(246))), *run)["samples"]
    delivered = sorted((row["step"], row["rank"], row["sample"]) for row in rows if row["step"] is not None)
    expected = [
        (step, rank, sample)
        for step in range(5 if remainder == "drop" else 6)
        for rank in range(4)
        for sample in dataset.batch_ids(step, rank=rank, world_size=4).tolist()
    ]
    assert delivered == sorted(expected)
    nowhere = [row for row in rows if row["step"] is None]
    assert len(nowhere) == (1 if remainder == "drop" else 0)
    assert all(row["position"] == 245 for row in nowhere)
    assert all(row["note"] == "in the dropped remainder of epoch 0" for row in nowhere)


def test_no_data_are_read_unless_keys_are_asked_for(data: Path, calls: Calls) -> None:
    words = ["trace", data, "--step", 1, "--batch-size", 4]
    calls.text("index", data)
    with_keys = calls.json(*words, "--keys")["samples"]
    assert [row.pop("key") for row in with_keys] == [f"{row['sample']:04d}" for row in with_keys]
    for path in data.glob("*.tar"):
        path.write_bytes(bytes(path.stat().st_size))
    assert calls.json(*words)["samples"] == with_keys


def test_a_sample_by_key(data: Path, calls: Calls, tmp_path: Path) -> None:
    run = ["--batch-size", 16, "--world-size", 2]
    assert calls.json("trace", data, "--key", "0123", *run) == calls.json("trace", data, "--sample", 123, *run)
    assert "none of 246 samples has the key" in calls.refused("trace", data, "--key", "123", *run)
    docs = write_jsonl(tmp_path / "docs.jsonl")
    assert "have no keys" in calls.refused("trace", docs, "--key", "123", *run)
    assert calls.json("trace", docs, "--step", 0, "--keys", *run)["samples"][0]["key"] is None


def saved(path: Path, dataset: shoal.Dataset) -> Path:
    path.write_text(json.dumps(dataset.state_dict()))
    return path


@pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")
@pytest.mark.parametrize(("words", "keywords"), ORDERS)
def test_a_state_brings_its_order(
    words: list[str], keywords: dict[str, Any], data: Path, calls: Calls, tmp_path: Path
) -> None:
    dataset = shoal.open(data).shuffle(**keywords).batch(10)
    dataset.set_epoch(3)
    run = iter(dataset)
    batches = [next(run) for _ in range(7)]
    state = ["--state", saved(tmp_path / "state.json", dataset), "--batch-size", 10]
    of_epoch = calls.json("trace", data, "--step", 6, *state)
    assert of_epoch["epoch"] == 3
    assert (
        of_epoch["samples"]
        == calls.json("trace", data, "--step", 6, "--epoch", 3, "--batch-size", 10, *words)["samples"]
    )
    assert [row["sample"] for row in of_epoch["samples"]] == [int(key) for key in batches[-1]["__key__"]]
    before = calls.json("trace", data, "--step", -1, "--from-state", *state)
    assert [row["sample"] for row in before["samples"]] == [row["sample"] for row in of_epoch["samples"]]
    other_epoch = calls.json("trace", data, "--step", 0, "--epoch", 1, *state)
    assert [row["sample"] for row in other_epoch["samples"]] == dataset.batch_ids(0, epoch=1).tolist()


def test_steps_after_a_state(data: Path, calls: Calls, tmp_path: Path) -> None:
    first = shoal.open(data).shuffle(seed=2).batch(10)
    run = iter(first)
    for _ in range(3):
        next(run)
    path = saved(tmp_path / "state.json", first)
    resumed = shoal.open(data).shuffle(seed=2).batch(8)
    resumed.load_state_dict(json.loads(path.read_text()))
    keys = [[int(key) for key in batch["__key__"]] for batch in resumed]
    for step in (0, 5, len(keys) - 1):
        said = calls.json("trace", data, "--step", step, "--state", path, "--from-state", "--batch-size", 8)
        assert [row["sample"] for row in said["samples"]] == keys[step]
        assert said["counted_from"] == 30
        words = ["--sample", keys[step][0], "--state", path, "--from-state", "--batch-size", 8]
        assert calls.json("trace", data, *words)["samples"] == said["samples"][:1]
    assert "has steps -3 to 26" in calls.refused(
        "trace", data, "--step", 27, "--state", path, "--from-state", "--batch-size", 8
    )


def test_states_that_do_not_fit(data: Path, calls: Calls, tmp_path: Path) -> None:
    dataset = shoal.open(data).shuffle(seed=2)
    path = saved(tmp_path / "state.json", dataset)
    step = ["--step", 0, "--batch-size", 4]
    assert "belongs to dataset" in calls.refused("trace", data / "train-000001.tar", *step, "--state", path)
    assert "asks for another" in calls.refused("trace", data, *step, "--state", path, "--seed", 2)
    assert "--state is not given" in calls.refused("trace", data, *step, "--from-state")
    assert "asks for epoch 1" in calls.refused("trace", data, *step, "--state", path, "--from-state", "--epoch", 1)
    assert "No such file" in calls.refused("trace", data, *step, "--state", tmp_path / "none.json")
    taken = saved(tmp_path / "taken.json", dataset.take(100))
    assert "digest" in calls.refused("trace", data, *step, "--state", taken)
    mixed = shoal.mix({"a": shoal.open(data / "train-000000.tar"), "b": shoal.open(data / "train-000001.tar")})
    refused = calls.refused("trace", data, *step, "--state", saved(tmp_path / "mixed.json", mixed))
    assert "of a mixture, but one dataset" in refused
    assert "mixture file" in refused
    with pytest.raises(shoal.errors.StateError, match="saved with a mixture, but this stream is not a mixture"):
        dataset.load_state_dict(mixed.state_dict())
    taken.write_text("[" * 100_000)
    assert "not a state" in calls.refused("trace", data, *step, "--state", taken)
    taken.write_text("{}")
    assert "not a state" in calls.refused("trace", data, *step, "--state", taken)


def test_questions_that_cannot_be_answered(data: Path, calls: Calls) -> None:
    complaint = calls.refused("trace", data, "--step", 60, "--batch-size", 10)
    assert "epoch 0 has steps 0 to 24" in complaint
    assert "--epoch 2 --step 10" in complaint
    assert "--from-state" in calls.refused("trace", data, "--step", -1, "--batch-size", 10)
    assert "no sample 246" in calls.refused("trace", data, "--sample", 246, "--batch-size", 10)
    assert "ranks count from 0" in calls.refused("trace", data, "--step", 1, "--batch-size", 10, "--rank", 1)
    assert "no sample for each" in calls.refused("trace", data, "--step", 1, "--global-batch", 3, "--world-size", 4)


def test_a_sample_asked_for_twice_is_said_once_and_on_one_rank_only_where_it_comes(data: Path, calls: Calls) -> None:
    run, nowhere = ["--batch-size", 8, "--world-size", 3], {"step": None, "rank": None, "place": None}
    (row,) = calls.json("trace", data, "--sample", "17,17", *run)["samples"]
    for rank in range(3):
        (alone,) = calls.json("trace", data, "--sample", 17, "--rank", rank, *run)["samples"]
        assert alone == (row if rank == row["rank"] else row | {**nowhere, "note": "comes to another rank"})


def test_people_see_the_same(data: Path, calls: Calls) -> None:
    words = ["trace", data, "--step", 2, "--batch-size", 3, "--world-size", 2]
    said, text = calls.json(*words, "--keys"), calls.text(*words, "--keys")
    facts, table = text.split("\n\n")
    assert said["order"] in facts
    heading, *lines = table.splitlines()
    assert heading.split() == ["sample", "rank", "place", "position", "shard", "first", "byte", "end", "byte", "key"]
    columns = ("sample", "rank", "place", "position", "shard", "first_byte", "end_byte", "key")
    assert [line.split() for line in lines] == [[str(row[name]) for name in columns] for row in said["samples"]]
    assert "repeat" in calls.text("trace", data, "--step", 24, "--global-batch", 10, "--world-size", 8)


def test_the_installed_command(data: Path) -> None:
    command = Path(sys.executable).parent / "shoal"
    words = [str(command), "trace", str(data), "--step", "5", "--batch-size", "4", "--json"]
    answer = subprocess.run(words, capture_output=True, text=True, check=True)
    assert answer.stderr == ""
    expected = shoal.open(data).shuffle().batch(4).batch_ids(5).tolist()
    assert [row["sample"] for row in json.loads(answer.stdout)["samples"]] == expected

"""`shoal trace --run` traces a dataset of Python: after split(), select(), sample() and in mixtures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.calls import Calls, make_shards

import shoal

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

MODULE = """
import numpy as np
import shoal

def data():
    return shoal.open("data/*.tar", index_columns=["cls"])

def part():
    return data().split({"train": 0.8, "val": 0.2}, seed=1)["train"].shuffle(seed=2).batch(10)

def sampled():
    return data().sample(by="cls", balanced=True, num_samples=400).shuffle(seed=2).batch(10)

def both():
    return data().select(np.arange(0, 246, 2)).sample(num_samples=300).shuffle(seed=2).take(250).batch(10)

def mixture():
    return shoal.mix({"a": data().take(100), "b": data().skip(100)}, weights={"a": 3, "b": 1}).shuffle(seed=2).batch(10)

def never():
    return shoal.mix({"a": data().take(100), "b": data().skip(100)}, weights={"a": 1, "b": 0}).shuffle(seed=2).batch(10)

def refilled():
    return data().shuffle(seed=2).filter(bool, refill=True).batch(10)

def as_they_come():
    return data().shuffle(seed=2).pack_sequences(8, lengths=None, key="txt").batch(10)

def packed():
    return data().shuffle(seed=2).batch_by_length(8, lengths="cls")

made = part()
number = 7
"""


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    make_shards(tmp_path, monkeypatch, num_shards=6, samples_per_shard=41)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "traced_training.py").write_text(MODULE)
    yield Calls(capsys)
    sys.modules.pop("traced_training", None)


@pytest.mark.parametrize("name", ["part", "sampled", "both", "mixture"])
def test_steps_of_a_state_hold_what_the_run_got(name: str, calls: Calls, tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    exec(MODULE, scope)  # the same module as text
    run = scope[name]()
    iterator = iter(run)
    keys = [[int(key) for key in next(iterator)["__key__"]] for _ in range(6)]
    state = tmp_path / "state.json"
    state.write_text(json.dumps(run.state_dict()))
    keys += [[int(key) for key in next(iterator)["__key__"]]]
    words = ["--run", f"traced_training:{name}"]
    for step in (0, 5):
        said = calls.json("trace", *words, "--state", state, "--step", step)
        assert [row["sample"] for row in said["samples"]] == run.batch_ids(step).tolist()
        assert (name == "mixture") or [row["sample"] for row in said["samples"]] == keys[step]
    after = calls.json("trace", *words, "--state", state, "--step", 0, "--from-state")
    before = calls.json("trace", *words, "--state", state, "--step", -1, "--from-state")
    assert (name == "mixture") or [row["sample"] for row in after["samples"]] == keys[6]
    assert [row["sample"] for row in before["samples"]] == run.batch_ids(5).tolist()
    assert calls.json("trace", *words, "--step", 3, "--batch-size", 5)["samples"][0]["position"] == 15


def test_all_copies_of_a_sample_are_found(calls: Calls) -> None:
    ds = shoal.open("data/*.tar", index_columns=["cls"])
    ids = ds.sample(by="cls", balanced=True, num_samples=400).shuffle(seed=2).ids()
    often = max(range(246), key=lambda sample: int((ids == sample).sum()))
    rows = calls.json("trace", "--run", "traced_training:sampled", "--sample", often)["samples"]
    assert [row["position"] for row in rows] == (ids == often).nonzero()[0].tolist()
    assert len(rows) == 2


@pytest.mark.parametrize("name", ["part", "both", "packed", "never"])
def test_samples_that_never_come_are_told_in_words(name: str, calls: Calls, tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    exec(MODULE, scope)
    run, all_ids = scope[name](), ",".join(map(str, range(246)))
    come = {sample for step in range(len(run)) for sample in run.batch_ids(step).tolist()}
    request = ["trace", "--run", f"traced_training:{name}", "--sample", all_ids]
    rows = calls.json(*request)["samples"]
    never = [row for row in rows if row["step"] is None]
    assert {row["sample"] for row in never} == set(range(246)) - come
    assert never
    assert {(row["position"], row["note"]) for row in never} == {(None, "does not come in epoch 0")}
    assert all("note" not in row for row in rows if row["step"] is not None)
    page = tmp_path / "trace.html"
    text = calls.text(*request, "--html", page)
    line = next(line for line in text.splitlines() if "does not come" in line)
    assert line.split()[:5] == [str(never[0]["sample"]), "-", "-", "-", "-"]
    assert " -1 " not in text
    assert "osition -1" not in page.read_text()
    assert "Does not come in epoch 0" in page.read_text()
    if name == "part":
        shard = calls.json("trace", "--run", f"traced_training:{name}", "--shard", rows[0]["shard"])["samples"]
        positions = [row["position"] for row in shard]
        comes = [position for position in positions if position is not None]
        assert positions == sorted(comes) + [None] * (len(positions) - len(comes))


def test_a_sample_left_out_by_a_gap_is_told_in_words(calls: Calls) -> None:
    run = shoal.open("data/*.tar").shuffle(seed=2).batch(10)
    text = "import shoal\nrun = shoal.open('data/*.tar').shuffle(seed=2).batch(10).without(steps=1)\n"
    Path("gaps.py").write_text(text)
    (row,) = calls.json("trace", "--run", "gaps:run", "--sample", run.batch_ids(1)[0])["samples"]
    assert (row["position"], row["note"]) == (10, "left out of epoch 0, by the state or without()")
    sys.modules.pop("gaps", None)


def test_a_state_of_another_selection_is_refused(calls: Calls, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    other = shoal.open("data/*.tar").split({"train": 0.7, "val": 0.2}, seed=1)["train"].shuffle(seed=2)
    state.write_text(json.dumps(other.state_dict()))
    said = calls.refused("trace", "--run", "traced_training:part", "--state", state, "--step", 0)
    assert "the samples chosen before shuffle() differ" in said
    said = calls.refused("trace", "data", "--state", state, "--step", 0, "--batch-size", 4)
    assert "saved after split(), select() or the like" in said
    assert "--run MODULE:NAME" in said


def test_a_run_that_packs_is_traced_by_its_documents(calls: Calls) -> None:
    rows = calls.json("trace", "--run", "traced_training:packed", "--step", 3)["samples"]
    packed = shoal.open("data/*.tar", index_columns=["cls"]).shuffle(seed=2).batch_by_length(8, lengths="cls")
    assert {row["sample"] for row in rows} == set(packed.batch_ids(3).tolist())


@pytest.mark.parametrize(("name", "field"), [("refilled", "__id__"), ("as_they_come", "document_ids")])
def test_a_run_that_fills_batches_says_how_to_see_what_is_in_them(name: str, field: str, calls: Calls) -> None:
    said = calls.refused("trace", "--run", f"traced_training:{name}", "--step", 3)
    assert "only reading shows their samples" in said
    assert f"adds the sample ids to batches, as the field '{field}'" in said


def test_what_is_no_run_is_said_so(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    step = ["--step", 0]
    assert "takes SOURCE or --run MODULE:NAME; got neither" in calls.refused("trace", *step, "--batch-size", 4)
    assert "got both" in calls.refused("trace", "data", *step, "--run", "traced_training:part")
    assert "the size of a batch is not given" in calls.refused("trace", "data", *step)
    assert calls.json("trace", *step, "--run", "traced_training:made")["num_steps"] == 21
    for wrong, said in [
        ("traced_training:number", "int, not a shoal dataset"),
        ("traced_training:par", "did you mean"),
        ("nowhere:run", "no module 'nowhere'"),
    ]:
        with pytest.raises(SystemExit):
            calls.text("trace", *step, "--run", wrong, code=2)
        assert said in capsys.readouterr().err

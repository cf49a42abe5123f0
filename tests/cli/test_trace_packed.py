"""`shoal trace` and `shoal verify --certificate` of runs whose documents are packed, also of mixtures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.calls import Calls
from tests.stream.test_pack_sequences import written
from tests.tools.reports.reading_pages import faults

import shoal
from shoal.order.state_dict import sealed
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore:a window of")

MIXTURE = """
sources:
  web: {path: web, weight: 0.6}
  code: {path: code, weight: 0.4}
shuffle: {seed: 1}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "web", range(70))
    written(tmp_path / "code", range(70, 110))
    (tmp_path / "blend.yaml").write_text(MIXTURE)
    return tmp_path


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


def dataset(source: str, **how: Any) -> Dataset:
    ds = shoal.open(source)
    ds = ds if source.endswith(".yaml") else ds.shuffle(seed=1)
    if "size" in how:
        return ds.batch_by_length(**how)
    return ds.pack_sequences(48, **{"strategy": "best_fit", "block": 32, **how}).batch(2)


def saved(ds: Dataset, steps: int) -> str:
    for _ in zip(range(steps), ds, strict=False):
        pass
    Path("state.json").write_text(json.dumps(ds.state_dict()))
    return "state.json"


WAYS = [{}, {"separator": 7}, {"strategy": "concat", "too_long": "drop"}, {"size": 2, "alike": 2, "block": 32}]


@pytest.mark.parametrize("source", ["web", "blend.yaml"])
@pytest.mark.parametrize("how", WAYS)
def test_a_state_tells_the_segments_of_each_step(home: Path, calls: Calls, source: str, how: dict[str, Any]) -> None:
    ds = dataset(source, **how)
    state = saved(dataset(source, **how), 3)
    size = 1 if "size" in how else 2
    run = ["--state", state, "--batch-size", size, "--world-size", 2]
    for step in (0, 2):
        rows = calls.json("trace", source, "--step", step, *run)["samples"]
        for rank in range(2):
            own = [row for row in rows if row["rank"] == rank]
            record = ds.batch_segments(step, rank=rank, world_size=2)
            for name, values in zip(("place", "segment", "sample", "first_token", "end_token"), record, strict=True):
                assert [row[name] for row in own] == values.tolist()
    after = calls.json("trace", source, "--state", state, "--from-state", "--step", 0, "--batch-size", size)
    assert [row["sample"] for row in after["samples"]] == ds.batch_segments(3).ids.tolist()
    assert after["packing"].startswith("batch_by_length(" if "size" in how else "pack_sequences(length=48")
    assert ("source" in after["samples"][0]) == source.endswith(".yaml")


@pytest.mark.parametrize("source", ["web", "blend.yaml"])
def test_documents_are_found_in_their_sequences(home: Path, calls: Calls, source: str) -> None:
    ds, state = dataset(source), saved(dataset(source), 3)
    wanted = {3, 5, 40}
    rows = calls.json("trace", source, "--state", state, "--sample", "3,5,40", "--batch-size", 2)["samples"]
    expected = [
        (step, int(sample), int(segment))
        for step in range(len(ds))
        for _, segment, sample, _, _ in zip(*ds.batch_segments(step), strict=True)
        if int(sample) in wanted
    ]
    assert sorted((row["step"], row["sample"], row["segment"]) for row in rows if row["step"] is not None) == sorted(
        expected
    )
    name = Path(next(iter(shoal.open("web").stream.opened.index.shard_names))).name
    if source == "web":
        of_shard = calls.json("trace", source, "--state", state, "--shard", name, "--batch-size", 2)
        assert len({row["sample"] for row in of_shard["samples"]}) == of_shard["num_shown"]
        for row in calls.json("trace", source, "--state", state, "--step", 1, "--epochs", "0,1", "--batch-size", 2)[
            "samples"
        ]:
            ids = [step for step in range(len(ds)) if row["sample"] in ds.batch_ids(step)]
            assert row["seen"]["0"] in ids


def test_sequences_are_asked_for_without_a_state(home: Path, calls: Calls) -> None:
    ds = shoal.open("web").shuffle(seed=1).pack_sequences(48, strategy="first_fit").batch(2)
    request = ["--seed", 1, "--pack-sequences", 48, "--strategy", "first_fit", "--batch-size", 2]
    rows = calls.json("trace", "web", "--step", 1, *request)["samples"]
    assert [row["sample"] for row in rows] == ds.batch_ids(1).tolist()
    assert "packing" in calls.text("trace", "web", "--step", 1, *request)
    contradiction = calls.refused("trace", "web", "--step", 1, *request[2:], "--state", saved(ds, 1))
    assert "--pack-sequences asks for another" in contradiction


def test_states_that_cannot_be_traced_say_why(home: Path, calls: Calls) -> None:
    state = saved(dataset("web"), 2)
    request = ["--state", state, "--step", 0, "--batch-size", 2]
    assert "no column 'size'" in calls.refused("trace", "web", *request, "--lengths", "size")
    streamed = dataset("web", lengths=None)
    state = saved(streamed, 2)
    assert "pack_sequences(lengths=None)" in calls.refused("trace", "web", *request)
    Path(state).write_text(json.dumps(shoal.open("web").shuffle(seed=2).batch(4, by="shard").state_dict()))
    assert "counts batches of batch(by=)" in calls.refused("trace", "web", *request)
    given = dataset("web").state_dict()
    given["order"] = {**given["order"], "packed": {**given["order"]["packed"], "lengths": "00"}}
    del given["check"]
    from_state = sealed(given)
    Path(state).write_text(json.dumps(from_state))
    complaint = calls.refused("trace", "web", *request)
    assert "have other lengths than the column 'num_tokens'" in complaint
    assert "pass the column of the run as --lengths" in complaint


@pytest.mark.parametrize("source", ["web", "blend.yaml"])
def test_the_page_tells_segments_and_sources(home: Path, calls: Calls, source: str) -> None:
    state = saved(dataset(source), 3)
    calls.text("trace", source, "--state", state, "--step", 1, "--batch-size", 2, "--html", "page.html")
    text = Path("page.html").read_text()
    assert faults(text) == []
    assert "2 sequences with" in text
    assert "Segment 1 of the sequence, tokens [0, " in text
    assert "pack_sequences(length=48" in text
    is_mixture = source.endswith(".yaml")
    assert ("Source web" in text or "Source code" in text) == ("Sources" in text) == is_mixture
    assert '<code class="call">' + ("mix of web" if is_mixture else "ds.shuffle(") in text


def test_the_sources_of_a_mixture_are_verified_one_after_the_other(home: Path, calls: Calls) -> None:
    sound = calls.json("verify", "blend.yaml")["sources"]
    assert [(each["source"], each["num_samples"], each["num_damages"]) for each in sound] == [
        ("web", 70, 0),
        ("code", 40, 0),
    ]
    shard = next((home / "code").glob("*.jsonl"))
    shard.write_bytes(b"?" + shard.read_bytes()[1:])
    text = calls.text("verify", "blend.yaml", code=1)
    assert f"code: {shard.name}, byte 0: " in text
    assert "--repair-index is for one dataset" in calls.refused("verify", "blend.yaml", "--repair-index")


@pytest.mark.parametrize("source", ["web", "blend.yaml"])
@pytest.mark.parametrize("packs", [True, False])
def test_a_certificate_is_checked_at_the_command_line(home: Path, calls: Calls, source: str, *, packs: bool) -> None:
    ds = dataset(source) if packs else shoal.open(source)
    for _ in ds:
        pass
    Path("certificate.json").write_text(json.dumps(ds.certificate()))
    assert calls.json("verify", source, "--certificate", "certificate.json")["as_due"]

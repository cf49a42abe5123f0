"""`shoal mix`, and the verbs that take a mixture file as their source."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
from tests.cli.calls import Calls
from tests.samples import write_jsonl

import shoal
from shoal.mixing import MixedDataset
from shoal.tools.reports.mixture_page import MixtureFigures, mixture_picture

pytest.importorskip("yaml")

SIZES = {"web": 1200, "code": 300, "books": 100}
BLEND = """
sources:
  web: {path: web.jsonl, weight: 0.7}
  code: {path: code.jsonl, weight: 0.2}
  books: {path: books.jsonl, weight: 0.1}
seed: 1
epoch_size: 1600
shuffle: {window: 64KiB, seed: 2}
changes:
  - {at: 640, ramp: 320, weights: {web: 0.2, code: 0.2, books: 0.6}}
"""


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


@pytest.fixture
def blend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    for name, size in SIZES.items():
        write_jsonl(tmp_path / f"{name}.jsonl", num_docs=size)
    (tmp_path / "blend.yaml").write_text(BLEND)
    return tmp_path / "blend.yaml"


def opened(path: Path) -> MixedDataset:
    ds = shoal.open(path)
    assert isinstance(ds, MixedDataset)
    return ds


def test_counts_repeats_and_ends_are_those_of_the_dataset(calls: Calls, blend: Path) -> None:
    record = calls.json("mix", blend, "--global-batch", 32, "--epochs", 2)
    ds = opened(blend)
    assert (record["num_samples"], record["num_steps"]) == (1600, 50)
    assert record["run"] == {"num_samples": 3200, "num_steps": 100}
    counts, ends = ds.counts(3200), ds.exhausted_at()
    for row in record["sources"]:
        name = row["source"]
        at = ends[name]
        assert at is not None
        assert row["num_samples"] == SIZES[name]
        assert row["num_in_run"] == counts[name]
        assert row["visits"] == pytest.approx(counts[name] / SIZES[name])
        assert (row["exhausted_at"], row["exhausted_step"]) == (at, -(-at // 32))
    assert [row["weight"] for row in record["sources"]] == pytest.approx([0.7, 0.2, 0.1])
    assert sum(row["window_share"] for row in record["sources"]) == pytest.approx(1)
    assert record["changes"][0]["weights"] == pytest.approx({"web": 0.2, "code": 0.2, "books": 0.6})
    assert record["vr"] == {str(size): vr for size, vr in ds.quality(batch=32).vr.items()}


def test_people_get_a_table_by_source(calls: Calls, blend: Path) -> None:
    text = calls.text("mix", blend, "--global-batch", 32)
    assert re.search(r"^samples +1,600$", text, re.MULTILINE)
    assert re.search(r"^books +100 +10\.00% +[\d,]+ +[\d.]+ ", text, re.MULTILINE)
    assert re.search(r"^640 +20 +320 +web 20\.00%, code 20\.00%, books 60\.00%$", text, re.MULTILINE)
    assert "step" not in calls.text("mix", blend)


def test_an_endless_mixture_runs_until_every_source_has_come_once(calls: Calls, blend: Path) -> None:
    blend.write_text(BLEND.replace("epoch_size: 1600", "ends: forever"))
    record = calls.json("mix", blend)
    assert record["num_samples"] is None
    assert record["run"]["num_samples"] == max(at or 0 for at in opened(blend).exhausted_at().values())
    assert calls.json("mix", blend, "--global-batch", 10, "--steps", 7)["run"] == {"num_samples": 70, "num_steps": 7}
    assert "never ends" in calls.refused("mix", blend, "--epochs", 2)
    assert "--steps counts global batches" in calls.refused("mix", blend, "--steps", 2)


def test_the_order_is_that_of_the_file_or_of_the_options(calls: Calls, blend: Path) -> None:
    assert "has an order, and --window" in calls.refused("mix", blend, "--window", "1MiB")
    blend.write_text(BLEND.replace("shuffle: {window: 64KiB, seed: 2}", ""))
    small, large = (calls.json("mix", blend, "--window", size)["sources"][0] for size in ("16KiB", "64KiB"))
    assert small["window_bytes"] <= large["window_bytes"]


def test_an_error_names_the_line(calls: Calls, blend: Path) -> None:
    blend.write_text("sources:\n  web: {path: web.jsonl, wieght: 1}\n")
    assert re.search(r"blend\.yaml, line 2, column 26: .*'wieght'", calls.refused("mix", blend))
    assert "is not a mixture file" in calls.refused("mix", blend.parent / "web.jsonl")


def test_the_picture_and_the_page_show_every_source(calls: Calls, blend: Path) -> None:
    picture, page = blend.parent / "mix.svg", blend.parent / "mix.html"
    calls.text("mix", blend, "--global-batch", 32, "--epochs", 5, "--picture", picture, "--html", page)
    for text in (picture.read_text(), page.read_text()):
        for name in SIZES:
            assert re.search(rf">{name}  once at [\d,]+<", text)
        assert "<circle" in text
        assert "Composition of the run" in text
    assert "pictures are" in calls.refused("mix", blend, "--picture", blend.parent / "mix.gif")


def test_the_picture_of_very_many_sources_names_the_largest() -> None:
    import numpy as np

    names = [f"s{number}" for number in range(40)]
    counts = np.outer(np.arange(5), np.arange(1, 41)) * 10
    edges = counts.sum(axis=1)
    parts = np.diff(counts, axis=0)
    shares = parts / parts.sum(axis=1, keepdims=True)
    drawn = MixtureFigures(names, [100] * 40, edges, counts, [], dict.fromkeys(names), edges / 1.0, shares, {})
    says = mixture_picture(drawn, title="many", about="", lead="").says
    assert "s39 " in says
    assert "29 others" in says
    assert "s3 " not in says


def test_a_mixture_by_tokens_is_shown_in_tokens_and_sequences(calls: Calls, tmp_path: Path) -> None:
    """Books have twenty times the tokens of a page: half of the tokens are 5 % of the samples."""
    for name, tokens, count in (("web", 50, 2000), ("books", 1000, 100)):
        lines = (json.dumps({"id": number, "num_tokens": tokens}) + "\n" for number in range(count))
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    sources = "".join(
        f"  {n}: {{path: {n}.jsonl, index_columns: [num_tokens], weight: 0.5}}\n" for n in ("web", "books")
    )
    change = "changes:\n  - {at: 1050, weights: {web: 0.2, books: 0.8}}\n"
    blend = tmp_path / "blend.yaml"
    blend.write_text(f"sources:\n{sources}unit: tokens\nlength: num_tokens\nepoch_size: 2100\n{change}")
    packed = ("--global-batch", 8, "--pack-sequences", 500)
    record = calls.json("mix", blend, *packed)
    web, books = record["sources"]
    assert (round(web["weight"], 3), round(web["token_share"], 3)) == (0.952, 0.5)
    (changed,) = record["changes"]
    assert round(changed["token_shares"]["books"], 3) == 0.8
    num_tokens = web["num_in_run"] * 50 + books["num_in_run"] * 1000
    assert record["run"] == {"num_samples": 2100, "num_steps": -(-num_tokens // 4000), "num_tokens": num_tokens}
    assert changed["step"] in (24, 25)  # about 1000 pages and 50 books
    steps = calls.json("mix", blend, *packed, "--steps", 10)["run"]
    assert steps["num_steps"] == 10
    assert 39_000 < steps["num_tokens"] <= 40_000
    calls.text("mix", blend, *packed, "--picture", tmp_path / "mix.svg")
    picture = (tmp_path / "mix.svg").read_text()
    shown = re.search(r"books (\d+)% to (\d+)%", picture)
    assert shown is not None
    assert abs(int(shown[1]) - 50) < 8  # three or four books among 64 samples
    assert abs(int(shown[2]) - 80) < 8
    assert "step of 8 sequences of 500 tokens" in picture
    assert "among the tokens of the run" in picture
    assert "2,100 documents an epoch" in picture
    text = calls.text("mix", blend, *packed, "--html", tmp_path / "mix.html")
    assert "documents of a batch" in text
    page = (tmp_path / "mix.html").read_text()
    assert "steps of 8 sequences of 500 tokens are shown" in page
    assert ".pack_sequences(500, lengths='num_tokens').batch(global_batch_size=8)" in html.unescape(page)
    assert "of tokens" in calls.text("mix", blend)
    assert "counts samples" in calls.refused("mix", plain(tmp_path), *packed)
    assert "--global-batch is not given" in calls.refused("mix", blend, "--pack-sequences", 500)


def plain(directory: Path) -> Path:
    (directory / "plain.yaml").write_text("sources:\n  web: {path: web.jsonl}\n  books: {path: books.jsonl}\n")
    return directory / "plain.yaml"


def test_head_shows_samples_of_a_mixture_in_its_order(calls: Calls, blend: Path) -> None:
    rows = calls.json_lines("head", blend, "-n", 6, "--epoch", 1)
    ds = opened(blend)
    assert "has an order, and" not in calls.complaints
    assert [row["id"] for row in rows] == ds.ids(1, 0, 6).tolist()
    assert [row["fields"]["__source__"] for row in rows] == [ds.sources[s] for s in ds.source_of(range(1600, 1606))]
    assert {row["shard"] for row in rows} <= {f"{name}.jsonl" for name in SIZES}


def test_bench_streams_a_mixture(calls: Calls, blend: Path) -> None:
    record = calls.json("bench", blend, "--stop-after", 256)
    assert record["num_samples"] == 256
    assert record["plain_bytes_per_second"] is None


def test_trace_shows_a_step_of_a_mixture_also_after_a_state(calls: Calls, blend: Path) -> None:
    ds = opened(blend).batch(global_batch_size=16)
    record = calls.json("trace", blend, "--step", 45, "--global-batch", 16)
    assert [row["sample"] for row in record["samples"]] == ds.batch_ids(45).tolist()
    assert [row["source"] for row in record["samples"]] == [
        ds.sources[number] for number in ds.source_of([row["position"] for row in record["samples"]])
    ]
    state = blend.parent / "state.json"
    state.write_text(json.dumps(ds.state_at(64)))
    after = calls.json("trace", blend, "--step", 41, "--global-batch", 16, "--state", state, "--from-state")
    assert [row["sample"] for row in after["samples"]] == [row["sample"] for row in record["samples"]]
    blend.write_text(BLEND.replace("weight: 0.7", "weight: 0.6"))
    assert "weights" in calls.refused("trace", blend, "--step", 4, "--global-batch", 16, "--state", state)


@pytest.mark.parametrize(("rank", "epoch"), [(None, 0), (1, 1)])
def test_trace_finds_every_use_of_a_sample_in_a_mixture(
    calls: Calls, blend: Path, rank: int | None, epoch: int
) -> None:
    ds = opened(blend).batch(8, remainder="keep")
    wanted = [3, 1505, 1599]
    words = ["--batch-size", 8, "--world-size", 3, "--epoch", epoch, *(() if rank is None else ("--rank", rank))]
    result = calls.json("trace", blend, "--sample", ",".join(map(str, wanted)), *words)["samples"]
    ranks = range(3) if rank is None else [rank]
    steps = range(len(ds.partition(rank=0, world_size=3)))
    expected = [
        (sample, step, each, place)
        for step in steps
        for each in ranks
        for place, sample in enumerate(ds.batch_ids(step, epoch=epoch, rank=each, world_size=3).tolist())
        if sample in wanted
    ]
    delivered = [(row["sample"], row["step"], row["rank"], row["place"]) for row in result if row["step"] is not None]
    assert sorted(delivered) == sorted(expected)
    ids = ds.ids(epoch)
    assert all(ids[row["position"]] == row["sample"] for row in result if row["position"] is not None)
    missing = {row["sample"] for row in result if row["step"] is None}
    assert missing == {each for each in wanted if each not in {sample for sample, *_ in expected}}
    if rank is None:
        assert len(delivered) > len(wanted)


def test_trace_of_a_mixture_by_shard_epoch_and_after_gaps(calls: Calls, blend: Path) -> None:
    ds, words = opened(blend), ["--global-batch", 16]
    result = calls.json("trace", blend, "--shard", "books.jsonl", *words, "--limit", 20)
    order = ds.ids(0).tolist()
    firsts = sorted({sample: order.index(sample) for sample in order if sample >= 1500}.values())
    assert [row["position"] for row in result["samples"]] == firsts[:20]
    assert (result["num_samples"], result["num_shown"]) == (100, 20)
    (row, *_) = calls.json("trace", blend, "--sample", 1505, *words, "--epochs", "1,2")["samples"]
    firsts_of = {epoch: ds.ids(epoch).tolist().index(1505) // 16 for epoch in (1, 2)}
    assert row["seen"] == {str(epoch): step for epoch, step in firsts_of.items()}
    position = row["position"]
    gaps = ds.without(positions=[(position, position + 1)])
    state = blend.parent / "state.json"
    state.write_text(json.dumps(gaps.batch(global_batch_size=16).state_at(0)))
    left = calls.json("trace", blend, "--sample", 1505, *words, "--state", state)["samples"]
    assert position not in [row["position"] for row in left if row["step"] is not None]
    assert "have no keys" in calls.refused("trace", blend, "--key", "a", *words)
    assert "there is no sample 1600" in calls.refused("trace", blend, "--sample", 1600, *words)


def test_trace_of_an_endless_mixture_ends(calls: Calls, blend: Path) -> None:
    blend.write_text(BLEND.replace("epoch_size: 1600", "ends: forever").replace("weight: 0.7", "weight: 0"))
    few = calls.json("trace", blend, "--sample", "1505", "--global-batch", 16, "--limit", 5)
    assert (len(few["samples"]), few["first_uses"]) == (5, 5)
    said = calls.text("trace", blend, "--step", 3, "--global-batch", 8)
    assert "steps           without end" in said
    assert calls.json("trace", blend, "--step", 3, "--global-batch", 8)["num_steps"] is None
    page = blend.parent / "trace.html"
    calls.text("trace", blend, "--step", 3, "--global-batch", 8, "--html", page)
    assert "Step 3, of steps without end, holds positions 24 to 31" in page.read_text()
    said += page.read_text() + calls.refused("trace", blend, "--step", -1, "--global-batch", 8)
    assert "epoch 0 has steps from 0 on, without end" in said
    assert not re.search("144,?115|1,?152,?921", said)
    assert "this mixture never ends" in calls.refused(
        "trace", blend, "--sample", 3, "--global-batch", 16, "--epochs", 1
    )


def test_audit_grades_one_source_of_a_mixture(calls: Calls, blend: Path) -> None:
    assert "'web', 'code', 'books'" in calls.refused("audit", blend)
    assert "did you mean 'books'" in calls.refused("audit", blend, "--of", "boks")
    assert "--of names a source" in calls.refused("audit", blend.parent / "web.jsonl", "--of", "web")
    assert calls.json("audit", blend, "--of", "code")["num_samples"] == SIZES["code"]


@pytest.mark.parametrize("verb", ["info", "index"])
def test_other_verbs_refuse_a_mixture_file(calls: Calls, blend: Path, verb: str) -> None:
    assert f"is a mixture file, and `shoal {verb}` works on one dataset" in calls.refused(verb, blend)

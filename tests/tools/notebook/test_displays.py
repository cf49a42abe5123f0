"""Objects show themselves in a notebook: small, escaped, in any colours, without reading or indexing anything."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.samples import write_jsonl, write_tar_shards

import shoal
from shoal.errors import ShuffleWarning
from shoal.measure import audit
from shoal.quality.curves import MOST_NEAR_RATIO
from shoal.stats.run_stats import RunStats

VOID = {"br", "img", "meta"}
MOST_BYTES = 16_000


class Checked(HTMLParser):
    """Balanced elements, and their text; the style is left out."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        assert not [name for name, value in attrs if name.startswith("on") or name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def text_of(shown: Any) -> str:
    html = shown._repr_html_()
    assert len(html) < MOST_BYTES
    assert "url(" not in html
    assert "@import" not in html
    return " ".join(Checked(html).text.split())


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_tar_shards(tmp_path / "data")
    write_jsonl(tmp_path / "docs.jsonl")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def opened() -> shoal.Dataset:
    return shoal.open("data")


def test_a_dataset_shows_source_size_order_stages_batches_and_position(data: Path) -> None:
    del data
    ds = opened().shuffle(seed=7, window="256KiB").decode().map(len).batch(16)
    text = text_of(ds)
    for words in (
        "Dataset 200 samples, 4 tar shards, 440.0 KiB",
        "Source data/train-000000.tar to train-000003.tar",
        "Order window, seed 7",
        "canonical nodes: 1",
        "Memory about",
        "Stages decode() map(len)",
        "Batches batches of 16, 13 steps in an epoch on each rank",
        "Ranks 1",
        "Position epoch 0, position 0 of 200",
    ):
        assert words in text, text
    ds = ds.partition(rank=1, world_size=2)
    next(iter(opened_iterator := iter(opened().batch(16))))
    assert opened_iterator is not None
    assert "rank 1 of 2" in text_of(ds)


def test_the_position_is_the_position_of_the_newest_iterator(data: Path) -> None:
    del data
    ds = opened().batch(16)
    iterator = iter(ds)
    for _ in range(3):
        next(iterator)
    assert "epoch 0, position 48 of 200" in text_of(ds)
    ds.set_epoch(4)
    assert "epoch 4, position 0 of 200" in text_of(ds)
    assert "storage order" in text_of(ds)


def test_other_kinds_of_datasets(data: Path) -> None:
    tokens = [json.dumps({"tokens": list(range(1 + number % 7))}) for number in range(60)]
    (data / "tokens.jsonl").write_text("\n".join(tokens))
    lengths = shoal.open("tokens.jsonl", index_columns=["tokens:len"])
    packed = lengths.shuffle().pack_sequences(16, lengths="tokens:len").batch(2)
    assert "pack_sequences" in text_of(packed)
    assert "pack_sequences" in text_of(packed.resolved)
    assert "100 samples in an epoch, of 200 stored" in text_of(opened().take(100))
    assert "Sampled" in text_of(opened().sample(num_samples=300).shuffle("buffer", samples=20))
    assert "Columns tokens:len" in text_of(lengths)
    for order in ("full", "block", "buffer", "none"):
        ds = opened().shuffle(order)
        assert f"shuffle(shoal.orders.{type(ds.resolved.order).__name__}" in text_of(ds.resolved)
    assert "filter(" in text_of(opened().filter(lambda sample: True).batch(4))
    assert "step" not in text_of(opened().filter(len, refill=True).batch(4))


def test_a_mixture_shows_its_shares(data: Path) -> None:
    del data
    names = ("tars", "<i>docs")
    sources = dict(zip(names, (opened(), shoal.open("docs.jsonl")), strict=True))
    mixture = shoal.mix(sources, weights={"tars": 3, "<i>docs": 1}).shuffle(seed=5)
    text = text_of(mixture)
    assert "Mixture of 2 sources" in text
    assert "tars 75.0%: 200 samples" in text
    assert "<i>docs 25.0%: 200 samples" in text
    assert "width:75.0%" in mixture._repr_html_()
    assert "seed 5" in text
    assert "mix of tars 75.00%" in text_of(mixture.resolved)
    changed = mixture.reweight(at=50, weights={"tars": 1, "<i>docs": 1})
    changed.load_state_dict(changed.state_at(60))
    assert "tars 50.0%" in text_of(changed)
    assert "endless samples" in text_of(shoal.mix(sources, ends="forever"))
    some = {f"s{number:02d}": shoal.open("docs.jsonl").select([number]) for number in range(20)}
    with pytest.warns(ShuffleWarning, match="the same data"):
        many = shoal.mix(some, ends="forever")
    assert "8 others 40.0%" in text_of(many)


def test_quality_begins_with_the_verdict(data: Path) -> None:
    del data
    ds = opened()
    good = text_of(ds.shuffle().quality(batch=8))
    assert f"near_vr 1.00, within the limit of {MOST_NEAR_RATIO}: mixes well" in good
    kinds = np.repeat(np.arange(4), 50)
    bad = ds.shuffle("buffer", samples=40).quality(batch=8, key=kinds)
    assert f"above the limit of {MOST_NEAR_RATIO}: mixes badly, and" in text_of(bad)
    assert "<svg" in bad._repr_html_()
    assert "<svg" not in ds.shuffle().quality(batch=100)._repr_html_()


def test_an_audit_begins_with_the_grade() -> None:
    poor = text_of(audit(range(5000), batch=64))
    assert poor.startswith("Audit 5,000 samples delivered, of 5,000 in an epoch Poor: VR")
    assert "variance Batches of" in poor
    assert "more findings" in poor
    good = text_of(audit(np.random.default_rng(0).permutation(5000), batch=64))
    assert "Good: VR" in good
    assert "more findings" not in good
    assert "Too few samples" in text_of(audit([1, 0, 2]))
    assert "in 2 epochs" in text_of(audit(np.arange(200).reshape(2, 100) % 100))


def test_stats_are_a_dict_that_shows_the_bottleneck_first(data: Path) -> None:
    del data
    ds = opened().decode().batch(16)
    assert "no sample was delivered yet" in text_of(ds.stats())
    for _ in ds:
        pass
    stats = ds.stats()
    assert isinstance(stats, dict)
    assert (
        json.loads(json.dumps(stats)) == stats == dict(stats) == copy.copy(stats) == pickle.loads(pickle.dumps(stats))
    )
    assert repr(stats).startswith("{")
    text = text_of(stats)
    assert text.startswith(f"Statistics 200 samples delivered Limited by {stats['bottleneck']}")
    assert "num_batches 13" in text
    assert type(stats | {"decoding": "<b>"}) is RunStats
    assert "decoding <b>" in text_of(stats | {"decoding": "<b>"})
    live = shoal.from_iterable(range(5))
    assert sum(1 for _ in live) == 5
    assert "num_taken 5" in text_of(live.stats())
    assert "Source an iterable (range)" in text_of(live.shuffle(buffer=3).map(abs).batch(2))


def test_stats_of_a_loader(data: Path) -> None:
    pytest.importorskip("torch")
    from shoal.torch import DataLoader

    del data
    with_workers = DataLoader(opened().batch(50), num_workers=0)
    for _ in with_workers:
        pass
    assert isinstance(with_workers.stats(), RunStats)
    assert "Limited by" in text_of(with_workers.stats())


def test_a_display_reads_and_iterates_nothing(data: Path) -> None:
    ds = opened().shuffle().decode().batch(16)
    before = ds.state_dict()
    shutil.rmtree(data / "data")
    assert text_of(ds)
    assert text_of(ds.resolved)
    assert ds.state_dict() == before
    assert not ds.stats()["num_samples"]


def test_an_impossible_rank_is_shown_and_not_raised(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del data
    ds = opened().batch(4)
    monkeypatch.setenv("RANK", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "must both be integers" in text_of(ds)


def test_the_core_loads_the_drawing_only_when_it_is_shown(data: Path) -> None:
    code = """
import sys, shoal
ds = shoal.open("data").shuffle().batch(4)
repr(ds), ds.stats(), ds.quality()
assert not [name for name in sys.modules if name.startswith("shoal.tools")]
ds._repr_html_()
assert "shoal.tools.notebook.dataset_display" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=data, check=True, timeout=60)

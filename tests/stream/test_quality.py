"""`Dataset.quality`: what is predicted from the index is what the order then has."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.stream.made import open_finely, write_lines

from shoal.errors import UsageError
from shoal.orders import Block, Buffer, Full, Sequential, Window
from shoal.quality.metrics import distinct_per_batch, expected_distinct, variance_ratio
from shoal.stream.dataset import Dataset
from shoal.stream.quality.shuffle_quality import variance_ratio_bound

NUM_SAMPLES = 3000


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open_finely(write_lines(tmp_path_factory.mktemp("lines") / "data", [500] * 6), extent_bytes=12_000)


@pytest.mark.parametrize("order", [Window(16, 1), Window(32, 4), Block(8), Full()], ids=str)
def test_what_is_predicted_is_what_is_measured(lines: Dataset, order: Window | Block | Full) -> None:
    labels = np.arange(NUM_SAMPLES) // 20  # some chunks hold more than one
    predicted, measured = [], []
    for seed in range(40):
        ds = lines.shuffle(order, seed=seed, chunk="12KB")
        if not seed:
            predicted = list(ds.quality(batch=32, key=labels).vr.values())[:4]
        emitted = labels[ds.ids()]
        measured.append([variance_ratio(emitted, size) for size in (32, 64, 128, 256)])
    error = np.std(measured, axis=0) / 40**0.5
    assert np.all(np.abs(np.mean(measured, axis=0) - predicted) < 0.1 * np.array(predicted) + 3 * error)


@pytest.mark.parametrize("order", [Sequential(), Buffer(samples=100)], ids=str)
def test_where_there_is_no_formula_it_is_measured(lines: Dataset, order: Sequential | Buffer) -> None:
    labels = np.arange(NUM_SAMPLES) // 100
    ds = lines.shuffle(order)
    quality = ds.quality(batch=32, key=labels)
    assert quality.is_measured
    assert quality.vr[32] == pytest.approx(variance_ratio(labels[ds.ids()], 32))


def test_chunks_and_shards_of_a_batch_are_counted(lines: Dataset) -> None:
    ds = lines.shuffle(Window(16, 1), chunk="12KB")
    quality, shards = ds.quality(batch=50), np.arange(NUM_SAMPLES) // 500
    assert quality.distinct_shards == pytest.approx(distinct_per_batch(shards[ds.ids()], 50), rel=0.02)
    assert quality.perfect_shards == pytest.approx(expected_distinct(shards, 50))
    assert 10 < quality.distinct_chunks <= 20 < quality.perfect_chunks
    assert ds.quality(batch=50, key="shard").key == "shard"


def test_the_warning_and_the_quality_are_one_formula(lines: Dataset) -> None:
    ds = lines.shuffle(Window(8, 1), chunk="12KB")
    assert ds.quality(batch=64).vr[64] == variance_ratio_bound(ds.resolved, 64)
    assert ds.quality(batch=64, rho=0.0).vr[64] == pytest.approx(1.0, abs=0.03)
    assert 1 < ds.quality(batch=64, rho=0.1).vr[64] < ds.quality(batch=64).vr[64]


def test_the_batch_is_that_of_the_dataset(lines: Dataset) -> None:
    ds = lines.shuffle()
    assert ds.quality().batch == 256
    assert ds.batch(32).partition(rank=1, world_size=4).quality().batch == 128
    assert ds.batch(global_batch_size=100).quality().batch == 100


def test_chosen_samples_are_judged_alone(lines: Dataset) -> None:
    ds = lines.select(np.arange(0, NUM_SAMPLES, 2)).shuffle(Window(16, 1), chunk="12KB")
    labels = np.arange(NUM_SAMPLES) // 20
    quality = ds.quality(batch=32, key=labels)
    assert list(quality.vr) == [32, 64, 128, 256, 512]
    assert quality.vr[32] == pytest.approx(variance_ratio(labels[ds.ids()], 32), rel=0.2)
    assert ds.take(100).quality(batch=32).vr == ds.quality(batch=32).vr


def test_it_is_words_and_json(lines: Dataset) -> None:
    quality = lines.shuffle(Window(8, 1), chunk="12KB").quality(batch=64)
    assert json.loads(json.dumps(quality.to_dict()))["vr"]["64"] == quality.vr[64]
    text = str(quality)
    assert text.startswith("shuffle(shoal.orders.Window(chunks=8")
    assert f"batches of 64 vary {quality.vr[64]:.2f} times as much" in text
    assert quality.effective_batch == pytest.approx(64 / quality.vr[64])


def test_what_cannot_be_judged_is_refused(lines: Dataset) -> None:
    ds = lines.shuffle()
    with pytest.raises(UsageError, match="at least two"):
        ds.quality(batch=2000)
    with pytest.raises(UsageError, match=r"each of 3000 samples by id; got shape \(3,\)"):
        ds.quality(key=[1, 2, 3])
    with pytest.raises(UsageError, match="no column 'file'"):
        ds.quality(key="file")
    with pytest.raises(UsageError, match="from -1 to 1"):
        ds.quality(rho=2.0)

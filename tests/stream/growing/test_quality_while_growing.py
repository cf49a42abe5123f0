"""`Dataset.quality` of the growing order: known before the shards are indexed, and the same formula afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.stream.growing.growing_data import gated

import shoal
from shoal.errors import UsageError
from shoal.quality.growing_quality import size_correlation
from shoal.quality.metrics import variance_ratio
from shoal.stream.dataset import Dataset

CHUNK, WINDOW = "64KB", "512KB"
NUM_SHARDS, NUM_LINES = 40, 1000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of about 270 KB, each of lines of one kind."""
    directory = tmp_path_factory.mktemp("growing")
    for shard in range(NUM_SHARDS):
        lines = (f'{{"shard": {shard}, "text": "{"word " * (49 + number % 7)}"}}\n' for number in range(NUM_LINES))
        (directory / f"{shard:03d}.jsonl").write_text("".join(lines))
    return directory


def opened(data: Path, *, seed: int = 5) -> Dataset:
    return shoal.open(data, index="grow").shuffle(seed=seed, window=WINDOW, chunk=CHUNK)


def test_it_is_told_by_the_first_segment(data: Path) -> None:
    with gated(1):
        ds = opened(data)
        assert ds.stream.growth is not None
        found = ds.quality(batch=32)
        assert ds.stream.growth.num_indexed_segments == 1, "no other segment was waited for"
    assert shoal.open(data, index="wait").num_samples == NUM_SHARDS * NUM_LINES  # and the index is there
    known = opened(data).quality(batch=32)
    assert found.first_epoch is not None
    assert known.first_epoch is not None
    assert found.vr == pytest.approx(known.vr, rel=0.05)
    for name in ("distinct_chunks", "perfect_chunks", "distinct_shards", "perfect_shards"):
        assert getattr(found, name) == pytest.approx(getattr(known, name), rel=0.1), name
    told, real = found.first_epoch.segments, known.first_epoch.segments
    assert [each.num_shards for each in told] == [each.num_shards for each in real]
    assert [each.vr for each in told] == pytest.approx([each.vr for each in real], rel=0.05)
    assert json.loads(json.dumps(found.to_dict()))["first_epoch"]["batch"] == 32
    assert "first epoch, while shards are indexed: VR" in str(found)


def test_sorted_shards_are_found_by_a_key(data: Path) -> None:
    with gated(1):
        found = opened(data).quality(batch=32, key="shard")
    assert found.first_epoch is not None
    assert found.rho == pytest.approx(1.0)
    assert found.first_epoch.shard_rho == pytest.approx(1.0)
    assert "samples of a shard are alike (rho = 1 between its chunks)" in str(found)
    with gated(1):
        mixed = opened(data).quality(batch=32, key=np.arange(NUM_SHARDS * NUM_LINES) % 7)
    assert mixed.first_epoch is not None
    assert abs(mixed.first_epoch.shard_rho) < 0.01
    assert "alike" not in str(mixed)


def test_what_is_predicted_of_the_first_epoch_is_measured(data: Path) -> None:
    labels = np.repeat(np.arange(NUM_SHARDS), NUM_LINES)
    measured, predicted = [], 0.0
    for seed in range(12):
        ds = opened(data, seed=seed)
        measured.append(variance_ratio(labels[ds.ids()], 32))
        if not seed:
            found = ds.quality(batch=32, key=labels)
            assert found.first_epoch is not None
            predicted = found.first_epoch.vr
    assert predicted > 2 * found.vr[32]
    assert np.mean(measured) == pytest.approx(predicted, rel=0.1)


def test_a_key_of_too_few_samples(data: Path) -> None:
    with gated(1), pytest.raises(UsageError, match=r"key must have a label for each of \d+ indexed samples by id"):
        opened(data).quality(batch=32, key=[1, 2, 3])


def test_a_batch_larger_than_half_of_the_listing(data: Path) -> None:
    with gated(1), pytest.raises(UsageError, match=r"about 4[0-9]+ samples must make at least two"):
        opened(data).quality(batch=30_000)


@pytest.mark.parametrize("is_sorted", [True, False])
def test_shards_that_look_sorted_are_warned_of_once(
    is_sorted: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for shard in range(12):
        words = [9 + (shard if is_sorted else number) % 12 + number % 3 for number in range(100)]
        lines = [f'{{"text": "{"word " * count}"}}\n' for count in words]
        (tmp_path / f"{shard:03d}.jsonl").write_text("".join(lines))
    ds = shoal.open(tmp_path, index="grow").shuffle(seed=3, window="20KiB").batch(8)
    with caplog.at_level("WARNING", logger="shoal"):
        assert sum(len(batch["text"]) for batch in ds) == 1200
    told = [text for text in caplog.messages if "look sorted" in text]
    assert len(told) == is_sorted, caplog.messages


def test_few_shards_and_samples_of_one_size_tell_nothing() -> None:
    draw = np.random.default_rng(1)
    assert size_correlation(draw.integers(50, 90, 4000), [1000] * 4) < 0.02
    assert size_correlation([100] * 4000, [1000] * 4) == 0
    assert size_correlation(np.repeat([10, 500, 90], 100), [100] * 3) == 0
    assert size_correlation(np.repeat([10, 500, 90, 7], 10), [10] * 4) == 0
    assert size_correlation(np.repeat([10, 500, 90, 7], 100) + draw.integers(0, 3, 400), [100] * 4) > 0.9

"""The loss of trained models follows the predicted variance of four successive batches (bench/mixing_law.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
import shoal.pack
from shoal.errors import ShuffleWarning
from shoal.orders import Block, Buffer, Order, Window
from shoal.quality.curves import MOST_NEAR_RATIO, NEAR_BATCHES, near_variance_ratio
from shoal.quality.prediction import predicted_variance_ratio

_ROWS = 11_055  # of the trained text
_RECORDS = Path(__file__).parents[2] / "bench/mixing/h200.json"


def _trained(batch: int, rate: float) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads(_RECORDS.read_text())
    orders = {"window", "block", "buffer"}
    return [
        record
        for record in records
        if record["task"] == "text" and record["order"] in orders and (record["batch"], record["rate"]) == (batch, rate)
    ]


def _predicted(record: dict[str, Any], samples: int) -> float:
    """The variance ratio from the order's parameters alone, for chunks of equal rows."""
    chunk, memory = record["chunk_rows"], record["memory_rows"]
    orders: dict[str, Callable[[], Order]] = {
        "window": lambda: Window(memory // chunk, num_canonical_nodes=1),
        "block": lambda: Block(memory // chunk),
        "buffer": lambda: Buffer(memory),
    }
    return predicted_variance_ratio(orders[record["order"]](), [chunk] * (_ROWS // chunk), samples)


def _ranks(values: Any) -> Any:
    _, inverse, counts = np.unique(np.round(values, 6), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


@pytest.mark.parametrize(("batch", "rate"), [(16, 1e-3), (16, 2e-3)])
def test_the_prediction_ranks_the_losses_of_trained_models(batch: int, rate: float) -> None:
    records = _trained(batch, rate)
    assert len(records) >= 10
    gaps = _ranks([record["gap"] for record in records])
    four = np.corrcoef(_ranks([_predicted(record, NEAR_BATCHES * batch) for record in records]), gaps)[0, 1]
    one = np.corrcoef(_ranks([_predicted(record, batch) for record in records]), gaps)[0, 1]
    assert four >= 0.9
    assert four > one


def test_the_limit_separates_orders_that_cost_loss() -> None:
    for record in _trained(16, 1e-3):
        if record["order"] != "buffer":  # whole shards are no natural runs of this text
            costs_loss = record["gap"] > 0.3
            assert (_predicted(record, NEAR_BATCHES * 16) > MOST_NEAR_RATIO) >= costs_loss, record


def test_fewer_batches_stand_for_four_in_a_short_epoch() -> None:
    assert near_variance_ratio({8: 1.0, 16: 1.5, 32: 2.5, 64: 4.0}, 8) == 2.5
    assert near_variance_ratio({8: 1.0, 16: 1.5}, 8) == 1.5


@pytest.fixture
def sorted_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Shards of 1,600 samples, 8 in an extent."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    with shoal.pack.Writer(tmp_path / "data", format="jsonl", shard_bytes="16KiB", extent_bytes=8 * 64) as writer:
        for number in range(1600):
            writer.write({"text": f"{number:045d}"})
    return tmp_path / "data"


def _window(directory: Path) -> shoal.Dataset:
    """A window of 8 chunks of about 8 samples."""
    return shoal.open(directory).shuffle(Window(chunks=8, num_canonical_nodes=1), seed=0, chunk=8 * 64)


def test_quality_reports_four_batches(sorted_shards: Path) -> None:
    quality = _window(sorted_shards).quality(batch=8)
    assert quality.near_vr == quality.vr[32] > quality.vr[8]
    assert quality.to_dict()["near_vr"] == quality.near_vr
    assert f"{quality.near_vr:.2f} times (the loss follows this one)" in str(quality)


@pytest.mark.parametrize(("batch", "is_warned"), [(2, False), (8, True)])
def test_a_window_of_few_chunks_for_four_batches_is_warned_of(
    batch: int, is_warned: bool, sorted_shards: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """A window of 8 chunks: enough for single batches of 8, and for four batches of 2."""
    iter(_window(sorted_shards).batch(batch)).close()
    messages = [str(warning.message) for warning in recwarn if isinstance(warning.message, ShuffleWarning)]
    assert bool(messages) == is_warned
    if is_warned:
        assert "means of 4 successive batches vary" in messages[0]

"""A state's own numbers make its order again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.samples import write_tar_shards

import shoal
from shoal.errors import StateError
from shoal.order.state_dict import State
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.verbs.dataset_requests import request_of_state


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    write_tar_shards(tmp_path / "data", num_shards=6)
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("order", "keywords"),
    [
        ("window", {"window": 200_000, "chunk": "64KiB"}),
        ("full", {}),
        ("none", {}),
        (shoal.orders.Block(chunks=2), {"chunk": 65536}),
        (shoal.orders.Buffer(samples=20), {}),
        (shoal.orders.Buffer(samples=20), {"chunk": 65536}),
    ],
)
def test_the_order_of_a_state(data: Path, order: Any, keywords: dict[str, Any]) -> None:
    dataset = shoal.open(data).shuffle(order, seed=5, **keywords)
    state = State.from_dict(json.loads(json.dumps(dataset.state_dict())))
    again = ResolvedOrder(dataset.resolved.index, request_of_state(state))
    assert again.state_order == dataset.resolved.state_order
    for epoch in (0, 3):
        assert again.epoch(epoch).ids(0, dataset.num_samples).tolist() == dataset.ids(epoch).tolist()


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ({"name": "window", "version": 1, "stored": "00"}, "digest"),
        ({"name": "window", "version": 1, "delivered": "00"}, "digest"),
        ({"name": "mine", "version": 1}, "cannot be made"),
        ({"version": 1}, "cannot be made"),
        ({"name": "window", "version": 1, "chunks": "many"}, "cannot be made"),
        ({"name": "window", "version": 1, "chunks": 0}, "cannot be made"),
        ({"name": "window", "version": 1, "chunks": 8, "slabs": 2}, "slabs"),
        ({"name": "window", "version": 1, "chunks": 1}, "at least 2"),
    ],
)
def test_what_is_no_order_is_refused(order: dict[str, Any], message: str) -> None:
    with pytest.raises(StateError, match=message):
        request_of_state(State(0, 0, 0, order, "00"))

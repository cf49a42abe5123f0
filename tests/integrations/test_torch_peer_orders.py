"""Orders of other libraries in worker processes: the same batches as without, and states that go on with others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.samples import write_jsonl

import shoal
import shoal.torch


def batches_of(loader: Any) -> list[list[int]]:
    return [batch["__id__"].tolist() for batch in loader]


@pytest.mark.parametrize(
    ("order", "arguments"),
    [
        ("py1e", {"num_canonical_nodes": 2, "parity": True}),
        ("hf-reservoir", {"buffer_size": 20, "world_size": 2, "num_workers": 2, "batch_size": 8}),
        ("wds-detshuffle", {"bufsize": 20, "num_workers": 2, "batch_size": 8}),
        ("torch-random", {}),
    ],
)
def test_workers_change_nothing(order: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    for part in range(5):
        write_jsonl(tmp_path / "data" / f"{part}.jsonl", num_docs=23 + part)

    def batches() -> shoal.Dataset:
        return shoal.open(tmp_path / "data").shuffle(order, seed=9176, **arguments).with_ids().batch(16)

    expected = batches_of(batches())
    loader = shoal.torch.DataLoader(batches(), num_workers=2)
    iterator = iter(loader)
    begin = [next(iterator)["__id__"].tolist() for _ in range(3)]
    state = json.loads(json.dumps(loader.state_dict()))
    assert begin + batches_of(iterator) == expected
    again = shoal.torch.DataLoader(batches(), num_workers=1)
    again.load_state_dict(state)
    assert batches_of(again) == expected[3:]
    short = batches().reading(memory_limit="64KiB")
    assert batches_of(short) == expected

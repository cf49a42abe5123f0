"""Canonical nodes that were asked for, in segments that are too small for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.stream.growing.growing_data import growing, keys_of_all, write_shards


@pytest.mark.parametrize("nodes", [1, 2, 64])
def test_a_segment_has_as_many_canonical_nodes_as_its_window_allows(tmp_path: Path, nodes: int) -> None:
    data = write_shards(tmp_path / "data")
    batches = list(growing(data, num_canonical_nodes=nodes).batch(4))
    assert sorted(key for batch in batches for key in batch["key"]) == keys_of_all()
    again = list(growing(data, num_canonical_nodes=nodes).batch(4))
    assert [list(batch["key"]) for batch in again] == [list(batch["key"]) for batch in batches]

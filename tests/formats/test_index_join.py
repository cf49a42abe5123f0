"""Indexes of single shards put together are the index of all."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from shoal.errors import UsageError
from shoal.index.assembly import ScannedShard, assemble, joined, subset, validate
from shoal.index.shard_scan import ShardScan
from shoal.index.table import Index


def scanned(number: int, num_samples: int) -> ScannedShard:
    sizes = np.random.default_rng(number).integers(1, 5000, num_samples)
    starts = np.cumsum([7, *sizes])
    scan = ShardScan(starts, np.arange(num_samples, dtype=np.uint32), head={"n": number}, notes={"links": number})
    return ScannedShard(f"{number}.x", int(starts[-1]) + 3, f"v{number}", scan)


def same(one: Index, other: Index) -> None:
    for entry in fields(Index):
        left, right = getattr(one, entry.name), getattr(other, entry.name)
        if isinstance(left, np.ndarray):
            assert np.array_equal(left, right), entry.name
            assert left.dtype == right.dtype, entry.name
        elif entry.name != "metadata":
            assert left == right, entry.name


def test_the_parts_make_the_whole() -> None:
    shards = [scanned(number, count) for number, count in enumerate([100, 0, 1, 300])]
    whole = assemble("x", shards)
    parts = [assemble("x", [shard]) for shard in shards]
    same(joined(parts), whole)
    same(joined([joined(parts[:2]), joined(parts[2:])]), whole)
    same(subset(joined(parts), [3]), replace(parts[3], notes={}))
    validate(joined(parts))


def test_checksums_and_columns_are_kept_where_all_have_them() -> None:
    parts = [assemble("x", [scanned(number, 50)]) for number in range(3)]
    rich = [
        replace(part, extent_checksum=np.ones(part.num_extents, np.uint32), columns={"label": np.full(50, number)})
        for number, part in enumerate(parts)
    ]
    whole = joined(rich)
    assert whole.extent_checksum is not None
    assert whole.columns["label"].tolist() == [0] * 50 + [1] * 50 + [2] * 50
    with pytest.raises(UsageError, match="all shards need the same columns"):
        joined([*rich[:2], parts[2]])
    assert joined([replace(part, extent_checksum=None) for part in rich]).extent_checksum is None
    assert joined(parts, most_samples_with_sizes=149).sample_bytes is None


def test_other_formats_are_refused() -> None:
    with pytest.raises(UsageError, match=r"2 formats \(x, y\)"):
        joined([assemble("x", [scanned(0, 1)]), assemble("y", [scanned(1, 1)])])
    with pytest.raises(UsageError, match="0 formats"):
        joined([])

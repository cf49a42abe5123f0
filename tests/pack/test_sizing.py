"""Shards as large as waiting allows, as many as there are readers."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.pack.shards.shard_sizes import LARGEST_SHARD_BYTES, shard_sizing

MIB = 1 << 20


@given(
    num_bytes=st.integers(0, 1 << 50),
    num_readers=st.integers(1, 100_000),
    latency_seconds=st.floats(0, 1),
    bytes_per_second=st.floats(1e5, 1e11),
)
def test_the_two_rules(num_bytes: int, num_readers: int, latency_seconds: float, bytes_per_second: float) -> None:
    size = partial(shard_sizing, latency_seconds=latency_seconds, bytes_per_second=bytes_per_second)
    sizing, free, without = size(num_bytes, num_readers=num_readers), size(num_bytes), size(None)
    assert sizing.num_shards is not None
    assert sizing.shard_bytes % MIB == 0
    assert MIB <= sizing.shard_bytes <= LARGEST_SHARD_BYTES
    assert sizing.num_shards == max(1, -(-num_bytes // sizing.shard_bytes))
    waiting = latency_seconds / (latency_seconds + sizing.shard_bytes / bytes_per_second)
    assert sizing.overhead == pytest.approx(waiting)
    # Under 1 %, unless readers or the largest object forbid it; enough shards, unless they would be below 1 MiB.
    assert without.overhead <= 0.01 or without.shard_bytes == LARGEST_SHARD_BYTES
    if sizing.shard_bytes < without.shard_bytes:
        assert sizing.num_shards >= num_readers or sizing.shard_bytes == MIB
    else:
        assert sizing.num_shards >= num_readers or free.shard_bytes in (MIB, sizing.shard_bytes)
    assert sizing.shard_bytes <= free.shard_bytes


@given(num_bytes=st.integers(MIB, 1 << 45), num_readers=st.integers(1, 5000))
def test_no_reader_is_without_a_shard_where_data_suffice(num_bytes: int, num_readers: int) -> None:
    sizing = shard_sizing(num_bytes, num_readers=num_readers)
    assert sizing.num_shards is not None
    if num_bytes >= num_readers * MIB:
        assert sizing.num_shards >= num_readers
    assert str(sizing.num_shards) in sizing.reason


def test_the_textbook_example() -> None:
    """2e9 samples of 8 KB, 1 GB/s a connection, 20 ms a request: shards of 2 GB."""
    sizing = shard_sizing(2 * 10**9 * 8000, latency_seconds=0.02, bytes_per_second=1e9)
    assert 1.98e9 <= sizing.shard_bytes < 1.981e9
    assert sizing.overhead <= 0.01


def test_reasons_name_the_rule_that_decided() -> None:
    assert "waiting" in shard_sizing(None).reason
    assert shard_sizing(None).num_shards is None
    assert "1024 readers" in shard_sizing((50 << 30) + 5, num_readers=1024).reason
    assert "fewer shards than 1000 readers" in shard_sizing(10 * MIB, num_readers=1000).reason
    assert "one request" in shard_sizing(None, bytes_per_second=1e12).reason


@pytest.mark.parametrize(
    "wrong", [{"num_readers": 0}, {"latency_seconds": -1.0}, {"bytes_per_second": 0.0}, {"num_bytes": -1}]
)
def test_numbers_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        shard_sizing(**wrong)  # type: ignore[arg-type]

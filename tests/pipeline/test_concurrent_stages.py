"""Stages that process several samples at a time: the memory of waiting samples is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shoal.pipeline.concurrent_stages import ConcurrentStages
from shoal.pipeline.stages.concurrent_functions import as_function
from shoal.pipeline.stages.map_and_filter import Map


async def grown(sample: bytes) -> bytes:
    return sample * 4


@pytest.mark.parametrize(("limit_bytes", "most_ahead"), [(50_000, 10), (5_000, 1), (1, 1), (1 << 30, 64)])
def test_waiting_samples_hold_no_more_than_the_limit(limit_bytes: int, most_ahead: int) -> None:
    taken = 0

    def samples() -> Iterator[bytes]:
        nonlocal taken
        for taken in range(1, 301):  # noqa: B007  # read below
            yield bytes(1000)

    stage = Map(as_function("map()", grown, 16))
    stages: Any = ConcurrentStages(
        [stage], None, index=None, forgiving=False, limit_bytes=limit_bytes, timed=lambda stages: stages
    )
    try:
        ahead = []
        for number, sample in enumerate(stages.samples(samples(), range(300)), 1):
            assert len(sample) == 4000
            ahead.append(taken - number)
    finally:
        stages.close()
    assert len(ahead) == 300
    assert max(ahead[100:]) <= most_ahead  # once the first, smaller samples are taken
    assert max(ahead) <= limit_bytes // 1000 + 1  # until then, the size of stored samples is the estimate

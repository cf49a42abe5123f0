"""Where shards begin in a sorted table does not depend on how Spark has divided it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.pack.shards.shard_plan import plan_shards
from shoal.pack.spark.spark_order import spans_of_partition


@given(
    sizes=st.lists(st.integers(1, 100) | st.integers(1, 5000), min_size=1, max_size=60),
    shard_bytes=st.integers(1, 3000),
    data=st.data(),
)
def test_shards_are_those_that_a_plan_of_the_same_sizes_has(
    sizes: list[int], shard_bytes: int, data: st.DataObject
) -> None:
    total = sum(sizes)
    num_shards = max(1, min(len(sizes), -(-total // shard_bytes)))
    cuts = sorted({0, len(sizes), *data.draw(st.lists(st.integers(0, len(sizes)), max_size=6))})
    num_rows: dict[int, int] = {}
    num_bytes: dict[int, int] = {}
    for partition, (first, stop) in enumerate(pairwise(cuts)):
        own = np.array(sizes[first:stop], dtype=np.int64)
        spans = spans_of_partition(own, sum(sizes[:first]), total, num_shards, partition).tolist()
        assert [begin for _, _, begin, _, _ in spans] == [0, *(end for _, _, _, end, _ in spans[:-1])]
        assert spans[-1][3] == stop - first
        for shard, of, begin, end, size in spans:
            assert (of, size) == (partition, sum(sizes[first + begin : first + end]))
            num_rows[shard] = num_rows.get(shard, 0) + end - begin
            num_bytes[shard] = num_bytes.get(shard, 0) + size
    plan = plan_shards(np.array(sizes, dtype=np.int64), shard_bytes=shard_bytes)
    assert [num_rows[shard] for shard in sorted(num_rows)] == np.diff(plan.cuts).tolist()
    assert [num_bytes[shard] for shard in sorted(num_bytes)] == plan.shard_record_bytes.tolist()

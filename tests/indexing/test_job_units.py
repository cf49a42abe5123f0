"""Units of shards: every shard in one, in order, within limits, whatever the sizes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.indexing.jobs.job_units import cut_units, spans

GIB = 1 << 30


@settings(max_examples=200, deadline=None)
@given(sizes=st.lists(st.integers(0, 40 * GIB) | st.sampled_from([0, 1 << 20]), min_size=1, max_size=300))
def test_every_shard_is_in_one_unit_within_the_limits(sizes: list[int]) -> None:
    cuts = cut_units(sizes)
    assert (cuts[0], cuts[-1]) == (0, len(sizes))
    assert all(first < end for first, end in pairwise(cuts))
    limit_bytes = min(max(sum(sizes) // 512, 256 << 20), 16 * GIB)
    for first, end in pairwise(cuts):
        assert end - first <= 8
        assert end - first == 1 or sum(sizes[first:end]) <= limit_bytes
    for (first, end), (_, after) in pairwise(pairwise(cuts)):
        # No unit could have taken a shard of the next one.
        assert end - first == 8 or sum(sizes[first : end + 1]) > limit_bytes
        assert after > end


def test_many_shards_are_cut_into_about_as_many_units_as_few() -> None:
    for num_shards in (10_000, 100_000):
        assert 500 <= len(cut_units([1000] * num_shards)) <= 600
    assert len(cut_units([1000] * 1_000_000)) == 1_000_000 // 256 + 2
    assert len(cut_units([100 * GIB] * 10)) == 11


def test_numbers_as_text() -> None:
    assert spans([]) == ""
    assert spans([5]) == "5"
    assert spans(range(0, 40, 2)) == "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, ..."

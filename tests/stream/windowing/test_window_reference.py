"""Windows of random episodes, in random shards and extents, are those that a plain loop makes of the rows."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stream.windowing.rows_of_tests import assert_same, naive, open_rows, write_rows

from shoal.orders import Window
from shoal.pipeline.collate import collate
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

SHARDS = st.lists(st.lists(st.integers(1, 25), min_size=0, max_size=4), min_size=1, max_size=3).filter(any)
OFFSETS = st.lists(st.integers(-6, 6), min_size=1, max_size=4)
SHAPES = st.fixed_dictionaries(
    {"stride": st.integers(1, 5), "pad": st.sampled_from([None, "edge", 0, -7])},
).flatmap(
    lambda how: st.one_of(
        st.builds(lambda length: {**how, "length": length}, st.integers(1, 12)),
        st.builds(
            lambda offsets: {**how, "offsets": offsets},
            st.dictionaries(st.sampled_from(["state", "frame", "text"]), OFFSETS, min_size=1),
        ),
    )
)


def check(rows: Dataset, shape: dict[str, Any]) -> None:
    samples = [rows[number] for number in range(rows.num_samples)]
    expected = [*naive(samples, shape)]
    if not expected:
        with pytest.raises(Exception, match="no episode has a window"):
            rows.windows(**shape)
        return
    windows = rows.windows(**shape)
    assert windows.num_samples == len(expected)
    assert windows.index_column("anchor_row").tolist() == [anchor for anchor, _ in expected]
    assert_same(windows[-1], expected[-1][1])
    for number, (sample, (_, window)) in enumerate(zip(windows.with_ids(), expected, strict=True)):
        assert sample.pop("__id__") == number
        del sample["__epoch__"]
        assert_same(sample, window)
    index = windows.stream.opened.index
    chunk_bytes = 1 + int(index.extent_decoded_bytes.mean())
    shuffled = windows.with_ids().shuffle(Window(chunks=4, num_canonical_nodes=1), seed=1, chunk=chunk_bytes)
    in_batches = [(batch.pop("__id__").tolist(), batch) for batch in shuffled.batch(5)]
    assert sorted(itertools.chain(*(ids for ids, _ in in_batches))) == [*range(len(expected))]
    for ids, batch in in_batches:
        del batch["__epoch__"]
        assert_same(batch, collate([expected[number][1] for number in ids]))
    names = [name for name in expected[0][1] if name.startswith(("number", "frame", "state", "is_pad"))]
    of_numbers = windows.columns(*names).shuffle(Window(chunks=4, num_canonical_nodes=1), seed=1, chunk=chunk_bytes)
    for (ids, _), batch in zip(in_batches, of_numbers.batch(5), strict=True):  # gathered from columns, if they are
        assert_same(batch, collate([{name: expected[number][1][name] for name in names} for number in ids]))


@pytest.mark.parametrize("form", ["parquet", "jsonl", "tar"])
def test_windows_are_those_of_a_plain_loop(form: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    @settings(max_examples=10, deadline=None)
    @given(SHARDS, SHAPES, st.sampled_from([1, 600, 3000]), st.integers(1, 30))
    def run(shards: list[list[int]], shape: dict[str, Any], extent_bytes: int, group_rows: int) -> None:
        directory = write_rows(tmp_path_factory.mktemp(form) / "data", shards, form, group_rows=group_rows)
        rows = open_rows(directory, form, extent_bytes)
        check(rows, shape)

    run()

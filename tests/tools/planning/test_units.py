from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.index.assembly import ScannedShard, assemble
from shoal.index.cutting import cut_chunks
from shoal.index.shard_scan import ShardScan
from shoal.index.table import Index
from shoal.reading.schedule.units import ChunkUnits, RecordUnits, SlicedUnits, Units, starts_in


def made_index(*, keep_sample_bytes: bool = True) -> Index:
    """Three shards of samples of 100 to 899 bytes, one without any, cut into extents of about 1000 bytes."""
    dice = np.random.default_rng(3)
    shards = []
    for number, count in enumerate((40, 0, 33)):
        starts = 7 + np.concatenate([[0], np.cumsum(dice.integers(100, 900, count))]).astype(np.int64)
        scan = ShardScan(starts, np.arange(count, dtype=np.uint32))
        shards.append(ScannedShard(f"{number}.tar", int(starts[-1]) + 10, "", scan))
    return assemble("tar", shards, extent_bytes=1000, keep_sample_bytes=keep_sample_bytes)


INDEX = made_index()


def place_of(sample: int) -> tuple[int, int, int]:
    """Shard, first byte and end byte of a sample, counted naively."""
    shard, within = (0, sample) if sample < 40 else (2, sample - 40)
    first = 40 if shard else 0
    assert INDEX.sample_bytes is not None
    sizes = INDEX.sample_bytes[first : first + within + 1].astype(np.int64)
    return shard, 7 + int(sizes[:-1].sum()), 7 + int(sizes.sum())


@pytest.mark.parametrize("extents_per_chunk", [1, 2, 5, 100])
def test_a_chunk_holds_its_samples_where_they_lie(extents_per_chunk: int) -> None:
    table = cut_chunks(INDEX, extents_per_chunk=extents_per_chunk)
    check(ChunkUnits(table), INDEX)
    assert ChunkUnits(table).num_units == len(table)


def test_a_record_is_a_read_of_its_own() -> None:
    units = RecordUnits(INDEX)
    check(units, INDEX)
    assert units.num_units == 73
    assert all(read.num_samples == 1 for read in units.reads(np.arange(73)))


def test_without_sample_sizes_a_record_is_read_with_its_extent() -> None:
    index = made_index(keep_sample_bytes=False)
    assert index.sample_bytes is None
    reads = RecordUnits(index).reads(np.arange(73))
    for sample, read in enumerate(reads):
        shard, first_byte, end_byte = place_of(sample)
        assert read.first_sample <= sample < read.first_sample + read.num_samples
        assert read.shard == shard
        assert read.first_byte <= first_byte < end_byte <= read.end_byte
        assert starts_in(index, read) is None
    assert max(read.num_samples for read in reads) > 1


@pytest.mark.parametrize("sliced", [[], [0], [1, 2, 5], list(range(8))])
def test_a_sliced_chunk_is_read_sample_by_sample(sliced: list[int]) -> None:
    table = cut_chunks(INDEX, extents_per_chunk=5)
    assert len(table) == 8
    is_sliced = np.isin(np.arange(8), sliced)
    units = SlicedUnits(RecordUnits(INDEX), table, is_sliced)
    check(units, INDEX)
    assert units.num_units == 8 + int(table.num_samples[is_sliced].sum())
    numbers = units.of(np.arange(73))
    chunks = ChunkUnits(table).of(np.arange(73))
    for chunk, read in zip(chunks.tolist(), units.reads(numbers), strict=True):
        assert read.num_samples == (1 if chunk in sliced else table.num_samples[chunk])
    assert len(set(numbers.tolist())) == 8 - len(sliced) + int(table.num_samples[is_sliced].sum())
    assert numbers.max() < units.num_units


def check(units: Units, index: Index) -> None:
    ids = np.random.default_rng(1).permutation(index.num_samples)
    numbers = units.of(ids)
    for sample, read in zip(ids.tolist(), units.reads(numbers), strict=True):
        shard, first_byte, end_byte = place_of(sample)
        assert read.shard == shard
        assert read.num_bytes == read.end_byte - read.first_byte
        starts: Any = starts_in(index, read)
        assert len(starts) == read.num_samples + 1
        within = sample - read.first_sample
        assert (read.first_byte + starts[within], read.first_byte + starts[within + 1]) == (first_byte, end_byte)
        assert (starts[0], starts[-1]) == (0, read.num_bytes)
    assert [read.unit for read in units.reads(numbers)] == numbers.tolist()


def test_sizes_beyond_32_bits_add_up() -> None:
    index = replace(INDEX, sample_bytes=np.full(73, 2**32 - 1, dtype=np.uint32))
    table = cut_chunks(INDEX, extents_per_chunk=100)
    read = ChunkUnits(table).reads(np.array([0]))[0]
    starts = starts_in(index, read)
    assert starts is not None
    assert starts[-1] == 40 * (2**32 - 1)

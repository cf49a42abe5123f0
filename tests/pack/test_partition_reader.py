"""Datasets that engines read in partitions: every sample once, in order, by any process."""

from __future__ import annotations

import importlib.util
import pickle
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pack.files import make_files
from tests.samples import write_jsonl

import shoal.pack.ray
from shoal.errors import UsageError
from shoal.pack import pack
from shoal.pack.partitions.partition_reader import PartitionReader


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> PartitionReader:
    directory = tmp_path_factory.mktemp("read")
    pack(make_files(directory / "in"), directory / "out", shard_bytes=30_000, extent_bytes=5_000)
    return PartitionReader(directory / "out")


@given(count=st.integers(1, 100))
def test_spans_have_every_sample_once_and_divide_no_extent(reader: PartitionReader, count: int) -> None:
    spans = reader.spans(count)
    assert 1 <= len(spans) <= count
    assert (spans[0][0], spans[-1][1]) == (0, reader.num_samples)
    assert all(before[1] == after[0] for before, after in pairwise(spans))
    assert all(first < stop for first, stop in spans)
    with_all = dict(reader.spans(10_000))  # one for each extent
    assert {first for first, _ in spans} <= with_all.keys()


def test_another_process_reads_its_span(reader: PartitionReader) -> None:
    keys = [sample["__key__"] for sample in reader.samples(0, reader.num_samples)]
    assert len(set(keys)) == 95
    sent = pickle.dumps(reader)
    read_keys = [sample["__key__"] for span in reader.spans(5) for sample in pickle.loads(sent).samples(*span)]
    assert read_keys == keys


def test_fields_are_decoded_on_request(tmp_path: Path) -> None:
    pack(make_files(tmp_path / "in"), tmp_path / "out")
    plain, decoded = (next(PartitionReader(tmp_path / "out", decode=decode).samples(0, 1)) for decode in (False, True))
    assert plain["txt"].decode() == decoded["txt"]


def test_a_dataset_without_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    reader = PartitionReader(write_jsonl(tmp_path / "a.jsonl", num_docs=50))
    assert len(list(reader.samples(10, 30))) == 20
    assert reader.num_bytes == (tmp_path / "a.jsonl").stat().st_size


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed here")
@pytest.mark.parametrize("name", ["ShoalDatasink", "ShoalDatasource", "run"])
def test_without_ray_the_command_that_installs_it_is_named(name: str, tmp_path: Path) -> None:
    job = shoal.pack.plan(make_files(tmp_path / "in"), tmp_path / "out")
    with pytest.raises(UsageError, match="pip install ray"):
        getattr(shoal.pack.ray, name)(job)

"""Work that travels to other processes leaves a large index where it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray
from tests.stream.made import check_batch, flat, open_finely, write_tars

from shoal.errors import IndexFileError
from shoal.stats.counters import Counters
from shoal.storage.http.http_store import HttpStore
from shoal.stream.dataset import Dataset
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.iterating.iterator_specs import IteratorSpec, WorkerSpec
from shoal.stream.open_dataset import open_dataset
from shoal.stream.workers import packed_work
from shoal.stream.workers.worker_batches import add_counts, counts_since
from shoal.testing import RangeServer

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


def work_of(ds: Dataset) -> WorkerSpec:
    return ds.stream.iterator_spec().work


def ids_of(work: WorkerSpec) -> list[int]:
    iteration = Iteration(IteratorSpec(work, 0, 0))
    return flat(check_batch(batch) for batch in iteration)


@pytest.mark.parametrize("least", [0, 10**9])
def test_what_arrives_gives_the_same_batches(least: int, tars: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_work, "_SMALL_ROWS", least)
    work = work_of(tars.shuffle(seed=2).batch(7))
    arrived = packed_work.unpack(packed_work.pack(work)[0])[0]
    assert ids_of(arrived) == ids_of(work)
    assert arrived.opened.index is arrived.resolved.sample_index
    assert (len(packed_work.pack(work)[0]) < 4000) == (least == 0)


def test_part_of_an_index_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_work, "_SMALL_ROWS", 0)
    open_finely(write_tars(tmp_path / "data", [30, 40]))
    part = open_dataset(str(tmp_path / "data" / "s-001.tar"), index=tmp_path / "fine.index")
    arrived = packed_work.unpack(packed_work.pack(work_of(part.batch(4)))[0])[0]
    assert ids_of(arrived) == list(range(30, 70))


@pytest.mark.parametrize("has_version", [True, False])
def test_an_index_read_over_http_is_mapped_from_one_copy_in_every_process(
    has_version: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_work, "_SMALL_ROWS", 0)
    open_finely(write_tars(tmp_path / "data", [30, 40]))
    (tmp_path / "fine.index").rename(tmp_path / "data" / "shoal.index")
    if not has_version:
        stat = HttpStore.stat
        monkeypatch.setattr(HttpStore, "stat", lambda self, path: replace(stat(self, path), version=""))
    with RangeServer(tmp_path / "data") as server:
        work = work_of(open_dataset(f"{server.url}/shoal.index").batch(7))
        packed, _ = packed_work.pack(work)
        assert len(packed) < 6000
        arrived = packed_work.unpack(packed)[0]
        assert ids_of(arrived) == ids_of(work)
    (copy,) = (tmp_path / "cache" / "indexes").glob("*.copy")
    for opened in (*work.opened.parts, *arrived.opened.parts):
        assert mapped_file(opened.index.extent_first_byte) == str(copy)


def mapped_file(column: NDArray[Any]) -> str:
    """The file that holds the memory of a column."""
    address = column.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(text, 16) for text in line.split()[0].split("-"))
        if first <= address < last:
            return line.split(maxsplit=5)[-1]
    return ""


def test_an_index_that_changed_on_the_way_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_work, "_SMALL_ROWS", 0)
    packed, _ = packed_work.pack(work_of(open_finely(write_tars(tmp_path / "data", [30, 40])).batch(4)))
    (tmp_path / "fine.index").unlink()
    open_finely(write_tars(tmp_path / "data", [30, 41]))
    with pytest.raises(IndexFileError, match="now holds the index of dataset"):
        packed_work.unpack(packed)[0]


def test_heights_of_a_worker_are_its_highest_and_counts_are_added() -> None:
    counters = Counters()
    before: dict[str, Any] = {}
    for peak_held_bytes, num_samples in ((100, 3), (120, 5), (120, 9)):
        now = Counters(peak_held_bytes=peak_held_bytes, num_samples=num_samples).counts()
        add_counts(counters, counts_since(before, now))
        before = now
    assert (counters.peak_held_bytes, counters.num_samples) == (120, 9)

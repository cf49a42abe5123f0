"""Of what the system is told while reads are slow, and that it is not told when they are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.stream.made import open_finely, write_tars

import shoal
import shoal.pack
from shoal.errors import StorageError
from shoal.orders import Full, Window
from shoal.reading.local import local_readers, local_samples
from shoal.storage.files.local_store import LocalStore
from shoal.stream.dataset import Dataset

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.skipif(not LocalStore().reads_ahead, reason="this system reads nothing ahead"),
]

NUM_SAMPLES = 1100


@pytest.fixture
def ds(tmp_path: Path) -> Dataset:
    return open_finely(write_tars(tmp_path / "data", [500, 600]), extent_bytes=4096)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    places: list[tuple[str, int, int]] = []
    monkeypatch.setattr(LocalStore, "advise", lambda _, *place: places.append(place))
    return places


def all_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (local_samples, local_readers):
        monkeypatch.setattr(module, "SLOW_READ_SECONDS", -1.0)
        monkeypatch.setattr(module, "SLOW_SECONDS_PER_BYTE", 0.0)


def none_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (local_samples, local_readers):
        monkeypatch.setattr(module, "SLOW_READ_SECONDS", 1e9)


@pytest.mark.parametrize("order", [Full(), Window(chunks=16, num_canonical_nodes=2)], ids=lambda order: order.name)
def test_while_reads_are_slow_each_is_told_once_and_before_it_is_made(
    order: Any, ds: Dataset, told: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    all_slow(monkeypatch)
    shuffled = ds.shuffle(order, seed=1, chunk=None if order.name == "full" else "4KiB")
    for number, _ in enumerate(shuffled):
        assert number or told, "the first is told of too"
    assert len(told) == len(set(told)) == shuffled.stats()["num_reads"]


def test_samples_are_told_in_groups(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    all_slow(monkeypatch)
    sizes: list[int] = []
    give = local_readers.ReadAdvice.give

    def counted(advice: local_readers.ReadAdvice, reads: Any) -> None:
        sizes.append(len(reads))
        give(advice, reads)

    monkeypatch.setattr(local_readers.ReadAdvice, "give", counted)
    shuffled = ds.shuffle(Full(), seed=1)
    for _ in shuffled:
        pass
    assert sum(sizes) == shuffled.stats()["num_reads"] >= 10 * len(sizes)


def test_no_more_is_told_of_than_may_be_ahead(
    ds: Dataset, told: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    all_slow(monkeypatch)
    limit_bytes = 64 << 10
    stream: Any = iter(ds.shuffle(Full(), seed=1))
    source: Any = stream._source
    assert source.piece_batches is not None
    singles = source.piece_batches._readers.parts[0].reader
    assert isinstance(singles, local_samples.LocalSamples)
    monkeypatch.setattr(singles, "_ahead_limit_bytes", limit_bytes)
    for number in range(NUM_SAMPLES):
        next(stream)
        ahead = sum(end - first for _, first, end in told[number:])
        assert 0 < ahead <= limit_bytes
        assert len(told) > number + 2 or len(told) == NUM_SAMPLES, "across the borders of what is planned at once too"


@pytest.mark.parametrize("order", [Full(), Window(chunks=16, num_canonical_nodes=2)], ids=lambda order: order.name)
def test_while_reads_are_quick_nothing_is_told_after_the_first(
    order: Any, ds: Dataset, told: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    none_slow(monkeypatch)
    monkeypatch.setattr(local_readers, "_ADVISED_AFTER_A_SLOW_READ", 3)
    shuffled = ds.shuffle(order, seed=1, chunk=None if order.name == "full" else "4KiB")
    assert len(list(shuffled)) == NUM_SAMPLES
    assert 3 <= len(told) < shuffled.stats()["num_reads"]


def test_what_was_read_is_counted_as_it_is_read(ds: Dataset) -> None:
    shuffled = ds.shuffle(Full(), seed=1)
    stream = iter(shuffled)
    for _ in range(10):
        next(stream)
    stats = shuffled.stats()
    assert (stats["num_reads"], stats["num_requests"]) == (10, 10)
    sizes = ds.stream.opened.index.sample_bytes
    assert sizes is not None
    assert stats["read_bytes"] == stats["requested_bytes"] == int(sizes[shuffled.ids(epoch=0)[:10]].sum())


@pytest.mark.parametrize("batch", [None, 16])
@pytest.mark.parametrize("columns", [False, True])
def test_a_unit_that_cannot_be_read_is_an_error_at_its_sample(
    batch: int | None, columns: bool, tmp_path: Path, ds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the unit is read together with others, and some of these are used before it."""
    if columns:
        with shoal.pack.Writer(tmp_path / "numbers", format="mds") as writer:
            for number in range(NUM_SAMPLES):
                writer.write({"n": number, "x": np.arange(64)})
        (tmp_path / "numbers" / "index.json").unlink()
        ds = open_finely(tmp_path / "numbers", extent_bytes=4096)
    shuffled = ds.shuffle(Window(chunks=48, num_canonical_nodes=1), seed=1, chunk="4KiB")
    ids, chunks, paths = shuffled.ids().tolist(), shuffled.resolved.chunks, shuffled.stream.opened.paths
    shuffled = shuffled.with_ids() if batch is None else shuffled.with_ids().batch(batch)
    groups: list[int] = []
    read_all, fill = local_readers.LocalReaders.read_all, local_readers.LocalReaders._fill

    def counted(self: Any, reads: Any, buffers: Any) -> Any:
        groups.append(len(reads))
        return read_all(self, reads, buffers)

    def lost(self: Any, path: str, first_byte: int, end_byte: int) -> bytes:
        if (path, first_byte) == (paths[chunks.shard[unit]], chunks.first_byte[unit]):
            raise StorageError("the disk is broken")
        return read_range(self, path, first_byte, end_byte)

    def unfilled(self: Any, read: Any, buffer: Any) -> None:
        if (read.shard, read.first_byte) == (chunks.shard[unit], chunks.first_byte[unit]):
            raise StorageError("the disk is broken")
        fill(self, read, buffer)

    read_range = LocalStore.read_range
    next(iter(shuffled))  # looks at the shards
    monkeypatch.setattr(local_readers.LocalReaders, "read_all", counted)
    monkeypatch.setattr(local_readers.LocalReaders, "_fill", unfilled)
    monkeypatch.setattr(LocalStore, "read_range", lost)
    for unit in range(5, len(chunks), 9):
        got: list[int] = []
        with pytest.raises(StorageError, match="the disk is broken"):
            for item in shuffled:
                got += [item["__id__"]] if batch is None else item["__id__"].tolist()
        gone = range(chunks.first_sample[unit], chunks.first_sample[unit] + chunks.num_samples[unit])
        first = next(place for place, number in enumerate(ids) if number in gone)
        assert got == ids[: first if batch is None else first // batch * batch]
    assert max(groups) > 1

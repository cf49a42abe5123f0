"""Reads that are slow, late or fail: the stream is the same every time, and errors stand where they belong."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.samples import write_tar
from tests.stream.made import at, batches_of, check_sample, flat, ids_of, reading_threads

from shoal.errors import StorageError
from shoal.orders import Block, Buffer, Full, Sequential, Window
from shoal.reading.schedule import memory_division
from shoal.storage.files.local_store import LocalStore
from shoal.stream.dataset import Dataset
from shoal.stream.iterating import shares
from shoal.stream.open_dataset import open_dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

ORDERS = [Sequential(), Full(), Window(chunks=12, num_canonical_nodes=2), Block(chunks=6), Buffer(samples=40)]


@pytest.mark.usefixtures("readers")
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_the_stream_is_the_same_in_whatever_order_reads_finish(
    order: Any, tars: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, dice, seen = LocalStore.read_range, random.Random(1), set()

    def late(self: LocalStore, path: str, first_byte: int, end_byte: int) -> bytes:
        time.sleep(dice.choice([0, 0, 0.0005, 0.004]))
        seen.add(threading.get_ident())
        return read(self, path, first_byte, end_byte)

    ds = tars.shuffle(order, seed=8, chunk="6KiB" if order.name != "full" else None).with_ids()
    ds.set_epoch(2)
    monkeypatch.setattr(LocalStore, "read_range", late)
    assert ids_of(ds) == ds.ids(epoch=2).tolist()
    assert (threading.get_ident() in seen) == tars.stream.opened.store.reads_ahead


@pytest.mark.usefixtures("readers")
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
@pytest.mark.parametrize("batch", [None, 9])
def test_an_error_of_a_read_appears_at_the_first_sample_it_takes_away(
    order: Any, batch: int | None, tars: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = LocalStore.read_range
    ds = tars.shuffle(order, seed=8, chunk="6KiB" if order.name != "full" else None)
    ids = ds.ids().tolist()
    index = tars.stream.opened.index
    start = int(index.extent_first_byte[60])  # extents are never cut, whatever is read at once
    shard = tars.stream.opened.paths[int(index.extent_shard[60])]
    lost: set[int] = set()

    def failing(self: LocalStore, path: str, first_byte: int, end_byte: int) -> bytes:
        if path == shard and first_byte <= start < end_byte:
            lost.add(1)
            msg = f"{path}: the cable is out"
            raise StorageError(msg)
        return read(self, path, first_byte, end_byte)

    list(tars.take(1))  # looks at the shards, which is not to fail
    monkeypatch.setattr(LocalStore, "read_range", failing)
    stream = ds if batch is None else ds.batch(batch)
    iterator = iter(stream)
    got: list[int] = []
    with pytest.raises(StorageError, match="the cable is out") as caught:
        for item in iterator:
            got += [check_sample(item)] if batch is None else [int(number) for number in item["cls"]]
    assert any("reading bytes [" in note and shard in note for note in caught.value.__notes__)
    monkeypatch.undo()

    # What was read with the extent that failed: its chunk, or its first record.
    chunks = ds.resolved.chunks.first_sample
    first_lost = int(index.extent_first_sample[60])
    unit = np.searchsorted(chunks, first_lost, side="right") - 1
    gone = {first_lost} if order.name == "full" else set(range(int(chunks[unit]), int(chunks[unit + 1])))
    first = next(position for position, number in enumerate(ids) if number in gone)
    assert got == ids[: first if batch is None else first // batch * batch]
    assert lost
    assert at(iterator) == at(stream) == (0, len(got))
    assert not reading_threads()
    with pytest.raises(StorageError, match="the cable is out"):
        next(iterator)
    assert [check_sample(sample) for sample in ds] == ids


def test_what_is_read_ahead_stays_in_its_bounds(large: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that stops for a while finds no more in memory than may be read ahead."""
    monkeypatch.setattr(large.stream.opened.store, "reads_ahead", False)
    monkeypatch.setattr(memory_division, "ahead_limit_bytes", lambda *_, **__: 2 << 20)
    index_bytes = large.stream.opened.index.num_bytes
    for ds in (large, large.shuffle("full"), large.shuffle(window="2MiB", chunk="128KiB")):
        iterator = iter(ds)
        next(iterator)
        time.sleep(0.1)
        assert ds.stats()["read_bytes"] <= 3.5 * 2**20 < index_bytes
        for _ in iterator:
            pass
        assert ds.stats()["read_bytes"] == pytest.approx(index_bytes, rel=0.01)
        assert ds.stats()["num_rereads"] == 0
        assert ds.stats()["peak_held_bytes"] <= 4.5 * 2**20


def test_a_choice_of_large_samples_is_not_read_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for ahead is counted in bytes, however far these samples are from the mean."""
    samples = [{"__key__": str(i).encode(), "bin": bytes(10 if i % 50 else 1_000_000)} for i in range(1000)]
    write_tar(tmp_path / "a.tar", samples)
    ds = open_dataset(tmp_path / "a.tar").select(np.arange(0, 1000, 50)).shuffle("full")
    vars(ds.stream.opened.store)["reads_ahead"] = False
    monkeypatch.setattr(memory_division, "ahead_limit_bytes", lambda *_, **__: 2 << 20)
    iterator = iter(ds)
    next(iterator)
    assert ds.stats()["read_bytes"] <= 5e6
    assert len(list(iterator)) == 19
    assert ds.stats()["read_bytes"] >= 20e6
    assert ds.stats()["peak_held_bytes"] <= 5e6


def test_waiting_is_counted(tars: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    read = LocalStore.read_range

    def slow(self: LocalStore, path: str, first_byte: int, end_byte: int) -> bytes:
        time.sleep(0.03)
        return read(self, path, first_byte, end_byte)

    monkeypatch.setattr(LocalStore, "read_range", slow)
    ds = tars.shuffle("block", seed=1)
    list(ds)
    assert ds.stats()["wait_seconds"] > 0.03


@pytest.mark.usefixtures("readers")
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
@pytest.mark.parametrize("positions", [1, 7, 60])
def test_a_plan_in_many_short_spans_gives_the_same_stream(
    order: Any, positions: int, tars: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that are not met for two spans are let go and read again, and counted; the samples are the same."""
    monkeypatch.setattr(shares, "span_positions", lambda *_: positions)
    ds = tars.shuffle(order, seed=5, chunk="9000" if order.name != "full" else None)
    ids = ds.ids().tolist()
    assert ids_of(ds) == ids
    stats = ds.stats()
    if isinstance(order, (Sequential, Full)):
        assert stats["num_rereads"] == 0
    else:
        assert stats["num_reads"] == len(ds.resolved.chunks) + stats["num_rereads"]
        assert stats["num_rereads"] > 0 or positions > 1
    ranks = [ds.batch(4).partition(rank=rank, world_size=5) for rank in range(5)]
    assert sorted(flat(flat(batches_of(rank)) for rank in ranks)) == sorted(ids)
    assert all(rank.stats()["peak_held_bytes"] <= tars.stream.opened.index.num_bytes for rank in ranks)

"""Of what the system is told while reads are slow, and that it is not told when they are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.stream.made import open_finely, write_tars

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

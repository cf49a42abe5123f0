"""Values that own their bytes, and values that are views of those of their chunk."""

from __future__ import annotations

import gc
import io
import tarfile
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.samples import write_tar
from tests.stream.made import ids_of

from shoal.orders import Block, Full, Sequential, Window
from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

ORDERS = [Sequential(), Full(), Window(chunks=6, num_canonical_nodes=2), Block(chunks=4)]
MIB = 1 << 20


def owned(sample: dict[str, Any]) -> dict[str, Any]:
    """The sample with bytes where it has views, all of which it must have."""
    assert all(type(value) is memoryview and value.readonly for name, value in sample.items() if name != "__key__")
    return {name: bytes(value) if name != "__key__" else value for name, value in sample.items()}


@pytest.mark.usefixtures("readers")
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_views_hold_the_same_bytes(order: Any, tars: Dataset) -> None:
    ds = tars.shuffle(order, seed=1)
    views = ds.reading(copy=False)
    assert ids_of(map(owned, views)) == ds.ids().tolist()
    assert views.stats()["gives_views"] is True
    batched = [batch["bin"] for batch in ds.batch(9).reading(copy=False)]
    assert [[bytes(value) for value in batch] for batch in batched] == [batch["bin"] for batch in ds.batch(9)]


def test_unusual_and_large_samples_are_views_too(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(6):
            member = tarfile.TarInfo(f"{number}{'é' * 80 if number == 3 else ''}.txt")
            member.size = 50_000 if number == 4 else number
            tar.addfile(member, io.BytesIO(b"%d" % number * member.size))
    for order in ("none", "full"):
        ds = open_dataset(path).shuffle(order, seed=1)
        assert list(map(owned, ds.reading(copy=False))) == list(ds)


def test_decoding_views_is_decoding_bytes(tars: Dataset) -> None:
    ds = tars.decode({"bin": lambda data: (type(data), len(data))})
    assert list(ds.reading(copy=False)) == list(ds)


def test_a_format_without_views_copies_and_says_so(lines: Dataset) -> None:
    views = lines.reading(copy=False)
    assert list(views) == list(lines)
    assert views.stats()["gives_views"] is False
    assert views.stats()["peak_pinned_bytes"] == 0
    assert lines.stats()["gives_views"] is False


def test_a_repeat_is_a_view_like_the_rest(tars: Dataset) -> None:
    ds = tars.filter(lambda sample: int(bytes(sample["cls"])) < 5).batch(5).reading(copy=False)
    batches = list(ds)
    assert batches[1]["__pad__"].tolist() == [True]
    assert all(type(batch["bin"][0]) is memoryview for batch in batches)


# ---- what they keep


@pytest.mark.usefixtures("readers")
def test_what_views_keep_is_counted_until_it_is_freed(tars: Dataset) -> None:
    ds = tars.shuffle(Window(chunks=6), seed=1, chunk="20KB").reading(copy=False)
    chunks = ds.resolved.chunks
    kept = {}
    for sample in ds:
        number = int(sample["bin"].tobytes().partition(b":")[0])
        if number in (3, 150):
            kept[number] = sample["cls"][:1]  # a part of a part keeps all of it as well
    del sample
    gc.collect()
    units = {int(unit) for unit in ds.resolved.units.of(np.array([3, 150]))}
    sizes = [int(chunks.end_byte[unit] - chunks.first_byte[unit]) for unit in units]
    stats = ds.stats()
    assert len(sizes) == 2
    assert stats["pinned_bytes"] == sum(sizes)
    assert stats["peak_pinned_bytes"] >= stats["pinned_bytes"]
    first = kept.pop(3)
    thread = threading.Thread(target=first.release)
    thread.start()
    thread.join()
    assert ds.stats()["pinned_bytes"] in sizes
    kept.clear()
    assert ds.stats()["pinned_bytes"] == 0
    assert ds.stats()["peak_pinned_bytes"] == stats["peak_pinned_bytes"]


def test_nothing_kept_is_nothing_pinned(tars: Dataset) -> None:
    ds = tars.shuffle(Window(chunks=6), seed=1).reading(copy=False).batch(4)
    for batch in ds:
        del batch
    gc.collect()
    assert ds.stats()["pinned_bytes"] == 0
    copied = tars.shuffle(Window(chunks=6), seed=1)
    list(copied)
    assert copied.stats()["peak_pinned_bytes"] == 0


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("copy", [True, False])
def test_only_views_keep_their_chunk_in_memory(
    copy: bool, threads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [{"__key__": str(i).encode(), "bin": bytes(100_000), "cls": b"%d" % i} for i in range(120)]
    write_tar(tmp_path / "a.tar", samples)
    ds = open_dataset(tmp_path / "a.tar").shuffle(Window(chunks=2), seed=1, chunk="4MiB").reading(copy=copy)
    monkeypatch.setattr(ds.stream.opened.store, "reads_ahead", not threads)
    list(ds.take(3))  # what is made once is made now
    del samples
    tracemalloc.start()
    try:
        kept = [sample["cls"] for sample in ds][::30]
        gc.collect()
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [int(bytes(value)) for value in kept] == ds.ids().tolist()[::30]
    pinned_bytes = ds.stats()["pinned_bytes"]
    if copy:
        assert held_bytes < MIB
        assert pinned_bytes == 0
    else:  # threads read into mappings, which tracemalloc does not see
        assert pinned_bytes > 4 * MIB
        assert threads or held_bytes > 4 * MIB


def test_workers_copy(tars: Dataset) -> None:
    work = tars.batch(4).reading(copy=False).stream.iterator_spec().work
    assert work.options.copy is False
    assert work.of_worker(0, 2).options.copy is True

"""Memory that is limited: the same samples from less of it, read again where it must be; chunks that are too large."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.samples import write_tar
from tests.stream.faraway import Distant, far_away
from tests.stream.made import batches_of, described, flat, ids_of, open_finely

from shoal.errors import UsageError
from shoal.orders import Block, Buffer, Full, Sequential, Window
from shoal.reading.reading_options import ReadingOptions
from shoal.stream.dataset import Dataset
from shoal.stream.iterating import shares
from shoal.stream.open_dataset import open_dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

ORDERS: list[Any] = [
    Sequential(),
    Full(),
    Window(chunks=24, num_canonical_nodes=2),
    Block(chunks=20),
    Buffer(samples=60),
]


def limited(ds: Dataset, limit: int, **options: Any) -> Dataset:
    return described(ds, reading=ReadingOptions(memory_limit_bytes=limit, **options))


@pytest.mark.usefixtures("readers")
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
@pytest.mark.parametrize("limit", [45_000, 10**9])
@pytest.mark.parametrize("positions", [25, 1000])
def test_less_memory_gives_the_same_samples(
    order: Any, limit: int, positions: int, tars: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "span_positions", lambda *_: positions)
    ds = tars.shuffle(order, seed=8, chunk="6KiB" if order.name != "full" else None)
    small = limited(ds, limit)
    ids = ds.ids().tolist()
    assert ids_of(small) == ids
    stats = small.stats()
    assert stats["peak_held_bytes"] <= stats["peak_claimed_bytes"] <= limit
    if limit == 10**9 and positions == 1000:
        assert stats["num_rereads"] == 0
    if limit == 45_000 and order.name in ("window", "block", "buffer"):
        assert stats["num_rereads"] > 0
    ranks = [limited(ds, limit).batch(4).partition(rank=rank, world_size=3) for rank in range(3)]
    assert sorted(flat(flat(batches_of(rank)) for rank in ranks)) == sorted(ids)
    assert all(rank.stats()["peak_held_bytes"] <= limit for rank in ranks)


def test_far_away_the_limit_holds_for_all_that_is_under_way(tars: Dataset) -> None:
    store = Distant(latencies=(0.0, 0.001, 0.004))
    for order in ORDERS:
        ds = far_away(tars, store, memory_limit_bytes=40_000, hedge=True)
        ds = ds.shuffle(order, seed=2, chunk="6KiB" if order.name != "full" else None)
        assert ids_of(ds) == ds.ids().tolist()
        assert ds.stats()["peak_claimed_bytes"] <= 40_000
        assert store.peak_bytes <= 40_000


def test_the_limit_is_one_of_the_options_of_reading(tars: Dataset) -> None:
    ds = tars.shuffle(Window(chunks=24, num_canonical_nodes=2), chunk="6KiB")
    small = ds.reading(memory_limit="45KB")
    assert ids_of(small) == ids_of(ds)
    assert small.stats()["peak_claimed_bytes"] <= 45_000 < ds.stats()["peak_held_bytes"]
    assert small.stats()["num_rereads"] > ds.stats()["num_rereads"] == 0


def test_a_limit_that_is_too_small_says_what_is_needed(tars: Dataset) -> None:
    ds = tars.shuffle(Window(chunks=24, num_canonical_nodes=2), chunk="6KiB")
    with pytest.raises(UsageError, match=r"memory_limit=5000\): one read has up to \d+") as caught:
        next(iter(limited(ds, 5000)))
    needed = int(caught.value.hint.split("memory_limit=")[1].split()[0])
    assert ids_of(limited(ds, needed)) == ds.ids().tolist()
    with pytest.raises(UsageError):
        next(iter(limited(ds, needed - 1)))


# ---- chunks larger than half the window


def uneven(directory: Path, sizes: Sequence[int]) -> Path:
    """A shard of many samples of 1 KB, and others of samples of ``sizes``."""
    directory.mkdir()
    dice = random.Random(4)
    first = 0
    for shard, (count, num_bytes) in enumerate([(300, 1000), *((4, size) for size in sizes)]):
        samples = [
            {"__key__": f"{i:05d}".encode(), "bin": f"{i}:".encode() + dice.randbytes(num_bytes)}
            for i in range(first, first + count)
        ]
        write_tar(directory / f"s-{shard}.tar", samples)
        first += count
    return directory


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("memory_limit", [None, 600_000])
def test_a_chunk_of_more_than_half_the_window_is_read_sample_by_sample(
    is_remote: bool, memory_limit: int | None, tmp_path: Path
) -> None:
    ds = open_finely(uneven(tmp_path / "data", [70_000, 1000, 50_000]), extent_bytes=300_000)
    if is_remote:
        ds = far_away(ds)
    ds = ds.shuffle(Window(chunks=2, num_canonical_nodes=1), chunk="300KB", seed=1)
    ds = limited(ds, memory_limit) if memory_limit else ds
    chunks = ds.resolved.chunks
    sizes = chunks.end_byte - chunks.first_byte
    half = sizes.mean()  # of a window of two
    assert (sizes > half).any()
    assert (sizes < half).any()
    got = [int(sample["bin"].partition(b":")[0]) for sample in ds]
    assert got == ds.ids().tolist()
    stats = ds.stats()
    num_large = int(chunks.num_samples[sizes > half].sum())
    if memory_limit is None:
        assert stats["num_reads"] == num_large + int((sizes <= half).sum())
        assert stats["num_rereads"] == 0
    else:
        assert stats["peak_claimed_bytes"] <= memory_limit
        assert stats["num_reads"] > num_large


def test_without_sizes_of_samples_such_chunks_are_read_whole(tmp_path: Path) -> None:
    ds = open_finely(uneven(tmp_path / "data", [70_000]), extent_bytes=300_000)
    opened = ds.stream.opened
    ds = described(ds, source=replace(opened, index=replace(opened.index, sample_bytes=None)))
    ds = ds.shuffle(Window(chunks=2, num_canonical_nodes=1), chunk="300KB", seed=1)
    assert len(list(ds)) == 304
    assert ds.stats()["num_reads"] == len(ds.resolved.chunks)


def test_a_choice_of_a_few_samples_knows_how_large_they_are(tmp_path: Path) -> None:
    ds = open_dataset(uneven(tmp_path / "data", [90_000])).select(np.array([3, 301, 303])).shuffle("full")
    assert len(list(limited(ds, 300_000))) == 3
    with pytest.raises(UsageError, match="up to 9"):
        list(limited(ds, 200_000))


def test_what_is_held_is_counted_decoded(tmp_path: Path) -> None:
    for shard in range(6):
        lines = "".join(json.dumps({"id": number, "pad": "x" * 500}) + "\n" for number in range(200))
        (tmp_path / f"{shard}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    ds = open_dataset(tmp_path)
    decoded_bytes = int(ds.shuffle(seed=0).resolved.chunks.decoded_bytes.sum())
    assert decoded_bytes > 20 * sum(path.stat().st_size for path in tmp_path.iterdir())
    run = ds.shuffle(Window(chunks=4, num_canonical_nodes=1), seed=0)
    assert sorted(sample["id"] for sample in run) == sorted([*range(200)] * 6)
    held = run.stats()["peak_held_bytes"]
    assert 3 * decoded_bytes // 6 <= held <= decoded_bytes

"""``len(loader)`` is what comes, on every rank; there is none where that cannot be known."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.stream.growing.growing_data import COUNTS, gated, growing, write_shards

import shoal.torch
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


def loader_of(ds: Dataset) -> shoal.torch.DataLoader:
    return shoal.torch.DataLoader(ds, prefetch_factor=0)


def test_a_mixture_without_end_has_no_length(tars: Dataset) -> None:
    ds: Any = shoal.mix({"a": tars, "b": tars}, ends="forever").shuffle(seed=0).batch(16)
    loader = loader_of(ds)
    for sized in (ds, loader, loader.dataset, loader.sampler):
        with pytest.raises(TypeError, match=r"mix\(epoch_size=n\)"):
            len(sized)
    assert [len(batch["cls"]) for batch in itertools.islice(loader, 3)] == [16] * 3
    assert ds.num_samples == 2**60
    assert len(loader_of(shoal.mix({"a": tars, "b": tars}, epoch_size=100).batch(16))) == 7


def test_an_epoch_that_grows_has_no_length_that_ranks_would_not_share(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards")
    with gated(1):
        ds = growing(shards).batch(4)
        loader = loader_of(ds)
        for sized in (loader, loader.dataset, loader.sampler, shoal.torch.IterableDataset(ds)):
            with pytest.raises(TypeError, match='index="wait"'):
                len(sized)
        assert len(ds) > 0  # an estimate
    num_batches = sum(1 for _ in loader)
    assert num_batches == len(loader) == -(-sum(COUNTS) // 4)

    # All is indexed here, and perhaps not on other ranks.
    rank = growing(shards).batch(4).partition(rank=0, world_size=2)
    one = loader_of(rank)
    with pytest.raises(TypeError, match='index="wait"'):
        len(one)
    num_batches = sum(1 for _ in one)
    assert num_batches == len(one) == -(-sum(COUNTS) // 8)
    waiting = shoal.open(shards, index="wait").shuffle(seed=5).batch(4)
    assert len(loader_of(waiting.partition(rank=0, world_size=2))) == num_batches


def test_an_epoch_of_another_length_than_was_said_is_told_once(tars: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[str]:
        texts = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return texts

    caplog.set_level(logging.WARNING, logger="shoal")
    loader = loader_of(tars.batch(16).without(2, epoch=1))
    assert [sum(1 for _ in loader) for _ in range(3)] == [13, 12, 13]
    assert told() == []  # nobody asked
    for epoch in range(3):
        loader.set_epoch(epoch)
        assert sum(1 for _ in itertools.islice(loader, len(loader))) == (12 if epoch == 1 else 13)
    assert told() == []  # asked for each epoch
    loader.set_epoch(0)
    assert len(loader) == 13
    for epoch in (0, 1, 2, 1):  # as a framework that asks once
        loader.sampler.set_epoch(epoch)
        list(loader)
    (text,) = told()
    assert "epoch 1 has 12 batches on each rank, but len(loader) was 13" in text
    assert "reload_dataloaders_every_n_epochs=1" in text
    same = loader_of(tars.batch(16))
    assert len(same) == 13
    for _ in range(2):
        list(same)
    assert told() == []


def test_each_epoch_of_a_mixture_of_peers_has_the_length_that_is_said(
    tars: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    choice = shoal.mixing.Interleave([0.5, 0.5], stopping="first_exhausted")
    ds: Any = shoal.mix({"a": tars, "b": tars.take(100)}, choice=choice).shuffle(seed=0).batch(4)
    ranks = [loader_of(ds.partition(rank=rank, world_size=2)) for rank in range(2)]
    lengths = []
    for _ in range(4):
        said = [len(loader) for loader in ranks]
        assert said == [sum(1 for _ in loader) for loader in ranks]
        assert said[0] == said[1]
        lengths.append(said[0])
    assert len(set(lengths)) > 1
    assert "len(loader) was" not in caplog.text


def test_an_epoch_that_lightning_names_after_it_asked_for_an_iterator_is_compared(
    tars: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    loader = loader_of(tars.batch(16).without(2, epoch=0))
    assert len(loader) == 12
    batches = iter(loader)
    loader.sampler.set_epoch(1)
    assert sum(1 for _ in batches) == 13
    assert "epoch 1 has 13 batches on each rank, but len(loader) was 12" in caplog.text


def test_the_dataset_of_batches_by_length_counts_documents(tmp_path: Path) -> None:
    rows = ({"num_tokens": row % 7 + 1, "tokens": np.arange(row % 7 + 1)} for row in range(100))
    shoal.pack.pack(rows, tmp_path / "rows", format="mds", columns=("num_tokens",))
    ds = shoal.open(tmp_path / "rows").shuffle(seed=0)
    assert len(loader_of(ds.batch_by_length(10)).dataset) == 100
    assert len(loader_of(ds.batch_by_length(10).partition(rank=0, world_size=3))) == 4  # 10 batches
    assert len(loader_of(ds.pack_sequences(7, strategy="first_fit").batch(4)).dataset) == len(
        list(ds.pack_sequences(7, strategy="first_fit"))
    )

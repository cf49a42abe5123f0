"""Counts of samples and batches: at every batch those that the loop has received, whoever makes them, and how early."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integrations.stages import is_odd

import shoal
from shoal.stream.dataset import Dataset
from shoal.torch import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning", "ignore:a window of")

RECEIVED = ("num_samples", "num_batches", "num_repeats", "num_filtered", "num_refilled", "num_skipped", "skipped_ids",
            "num_padding_tokens", "num_cut_documents", "num_dropped_documents")  # fmt: skip


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("counts") / "documents"
    sizes = np.random.default_rng(1).integers(0, 50, 100).tolist()
    samples = ({"tokens": [*range(size)], "num_tokens": size} for size in sizes)
    shoal.pack.pack(samples, directory, format="jsonl", shard_bytes="8KiB", extent_bytes=512, columns=["num_tokens"])
    return directory


def packed(directory: Path, **how: Any) -> Dataset:
    documents = shoal.open(directory).shuffle(seed=1)
    return documents.pack_sequences(32, strategy="best_fit", **how)


def of_kind(kind: str, tars: Dataset, documents: Path) -> Dataset:
    """Return a dataset without batches."""
    match kind:
        case "shuffled":
            return tars.shuffle(seed=3)
        case "in order":
            return tars
        case "filtered":
            return tars.shuffle(seed=3).filter(is_odd)
        case "refilled":
            return tars.shuffle(seed=3).filter(is_odd, refill=True)
        case "packed":
            return packed(documents, lengths="num_tokens")
        case "packed as they come":
            return packed(documents, lengths=None, block=20)
    raise AssertionError(kind)


KINDS = ["shuffled", "in order", "filtered", "refilled", "packed", "packed as they come"]
REFILLED = ["refilled", "packed as they come"]


def passes(ds: Any, num_received: int) -> Iterator[dict[str, Any]]:
    """Yield the counts after each batch of two passes, both left after ``num_received`` at most."""
    for _ in range(2):
        with iter(ds) as batches:
            for _ in itertools.islice(batches, num_received):
                time.sleep(0.01)  # those made ahead are made
                yield {name: ds.stats()[name] for name in RECEIVED}
        yield {name: ds.stats()[name] for name in RECEIVED}


# Each kind with both prefetch factors, and each of these with whole passes and with passes that are left.
PASSES = [(kind, (4, 1000)[number % 2], 0) for number, kind in enumerate(KINDS)]
PASSES += [(kind, (1000, 4)[number % 2], 3) for number, kind in enumerate(KINDS)]


@pytest.mark.parametrize(("kind", "num_received", "prefetch_factor"), PASSES)
def test_counts_are_those_of_what_was_received(
    tars: Dataset, documents: Path, kind: str, num_received: int, prefetch_factor: int
) -> None:
    options: dict[str, Any] = {"steps": "apart"} if kind in REFILLED else {}
    here, ahead = (of_kind(kind, tars, documents).batch(7, **options) for _ in range(2))
    loader = DataLoader(ahead, num_workers=0, prefetch_factor=prefetch_factor)
    assert list(passes(loader, num_received)) == list(passes(here, num_received))


@pytest.mark.parametrize(("num_workers", "prefetch_factor"), [(0, 0), (0, 3), (2, 3)])
@pytest.mark.parametrize("kind", REFILLED)
def test_passes_of_some_steps_count_each_batch_once(
    tars: Dataset, documents: Path, kind: str, num_workers: int, prefetch_factor: int
) -> None:
    ds = of_kind(kind, tars, documents).batch(4, steps=5)
    loader = DataLoader(ds, num_workers=num_workers, prefetch_factor=prefetch_factor)
    for num_passes in range(1, 5):
        assert sum(1 for _ in loader) == 5
        stats = loader.stats()
        assert (stats["num_batches"], stats["num_samples"]) == (5 * num_passes, 20 * num_passes)
        assert kind != "refilled" or stats["num_filtered"] == stats["num_refilled"]

"""Damaged samples that are skipped by a loader, whoever makes its batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.test_skips import NUM, Shards, listed
from tests.stream.made import write_tars

from shoal.torch import DataLoader

DAMAGED = [0, *range(7, 14), 19, 20, 44, 60]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return Shards(tmp_path_factory.mktemp("tars"), write_tars)


def ids_of(loader: Any) -> list[list[tuple[int, bool]]]:
    """The ids of each batch, and which of them are repeats."""
    found = []
    for batch in loader:
        repeats = batch["__pad__"].tolist() if "__pad__" in batch else [False] * len(batch["__id__"])
        found.append(list(zip(batch["__id__"].tolist(), repeats, strict=True)))
    return found


def test_workers_skip_what_one_process_skips(shards: Shards, tmp_path: Path) -> None:
    with shards.damaged(DAMAGED):
        expected = None
        for num_workers in (0, 2):
            file = tmp_path / f"{num_workers}.jsonl"
            ds = shards.open().shuffle("full", seed=1).with_ids().batch(3)
            loader = DataLoader(ds.reading(on_error="skip", quarantine=file, copy=False), num_workers=num_workers)
            batches = ids_of(loader)
            expected = expected or batches
            assert batches == expected
            assert len(batches) == len(ds)
            delivered = sorted(number for batch in batches for number, again in batch if not again)
            assert delivered == [number for number in range(NUM) if number not in DAMAGED]
            assert listed(file) == set(DAMAGED)
            stats = loader.stats()
            assert (stats["num_skipped"], sorted(stats["skipped_ids"])) == (len(DAMAGED), DAMAGED)
            loader.close()

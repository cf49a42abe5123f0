"""Shards of ours have a checksum of each record: what is damaged costs that sample, to a run and to a repacking."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.index.table import locate
from shoal.pack import pack, repack
from shoal.reading.checks import checked_reads

NUM, WRONG = 200, {20, 141}


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Shards of extents of some 15 samples; a byte of one payload and one of a header are others."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(checked_reads, "_MOST_MISMATCHES", 2)
    samples = ({"__key__": f"{number:04d}", "txt": f"text {number} " * 20} for number in range(NUM))
    pack(samples, tmp_path / "data", shard_bytes="200KiB", extent_bytes="16KiB")
    index = shoal.open(tmp_path / "data").stream.opened.index
    shards, first_bytes, _ = locate(index, np.array(sorted(WRONG)))
    for shard, byte in zip(shards.tolist(), (first_bytes + np.array([600, 20])).tolist(), strict=True):
        path = tmp_path / "data" / index.shard_names[shard]
        found, content = path.stat(), bytearray(path.read_bytes())
        content[byte] ^= 1
        path.write_bytes(content)
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    return tmp_path / "data"


@pytest.mark.parametrize("order", ["none", "full", "window"])
@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("batch", [None, 1, 16])
def test_a_run_loses_what_is_damaged_and_nothing_beside_it(
    batch: int | None, is_remote: bool, order: str, damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = shoal.open(damaged).shuffle(order, seed=1).with_ids()
    monkeypatch.setattr(ds.stream.opened.store, "reads_ahead", not is_remote)
    ds = ds.reading(on_error="skip", verify="always", quarantine=damaged.parent / "damaged.jsonl")
    ds = ds if batch is None else ds.batch(batch)
    came = {int(number) for one in ds for number in np.atleast_1d(one["__id__"])}
    assert set(range(NUM)) - came == WRONG == set(ds.stats()["skipped_ids"])
    assert (damaged.parent / "damaged.jsonl").read_text().count("\n") == len(WRONG)


def test_a_repacking_leaves_out_what_is_damaged_and_nothing_beside_it(damaged: Path, tmp_path: Path) -> None:
    made = repack(damaged, tmp_path / "sound", on_error="skip", num_workers=1)
    assert [name for name, _ in made.summary.skipped] == [f"sample {number}" for number in sorted(WRONG)]
    assert made.summary.num_samples == NUM - len(WRONG)

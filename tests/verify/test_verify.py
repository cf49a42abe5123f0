"""`reading(verify=)`: a flipped byte is an error wherever the index has a checksum of it, also near, and read alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.stream.faraway import far_away
from tests.stream.made import check_sample, described, ids_of, open_finely, write_tars

from shoal.errors import ShardError
from shoal.indexing.checksums import extent_checksums
from shoal.orders import Block, Full, Sequential, Window
from shoal.reading.reading_options import ReadingOptions
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

ORDERS = [Sequential(), Full(), Window(chunks=6, num_canonical_nodes=1), Block(chunks=4)]
DAMAGED = 55


@pytest.fixture
def flipped(tmp_path: Path) -> Dataset:
    """A dataset with checksums, one byte of whose sample 55 was flipped after they were taken; nobody knows."""
    ds = open_finely(write_tars(tmp_path / "data", [30, 40]))
    opened = ds.stream.opened
    checksums = extent_checksums(opened.index, opened.paths, store=opened.store, check=opened.check.check)
    path = Path(opened.paths[1])
    data = bytearray(path.read_bytes())
    data[data.index(b"0055.bin") + 700] ^= 1
    path.write_bytes(data)
    opened.store.close()  # which forgets the file as it was
    made = described(ds, source=replace(opened, index=replace(opened.index, extent_checksum=checksums)))
    return accepted(made)


def accepted(ds: Dataset) -> Dataset:
    """Whose shards are taken for those that were indexed, as if their times had not changed."""
    ds.stream.opened.check._accepted[:2] = b"\1\1"
    return ds


def verifying(ds: Dataset, *, far: bool, **options: Any) -> Dataset:
    if far:
        return accepted(far_away(ds, verify="always", **options))
    return described(ds, reading=ReadingOptions(verify="always", **options))


def ordered(ds: Dataset, order: Any) -> Dataset:
    return ds.shuffle(order, seed=8, chunk="6KiB" if order.name != "full" else None)


@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_a_flipped_byte_is_an_error_in_every_order(order: Any, far: bool, flipped: Dataset) -> None:
    ds = ordered(verifying(flipped, far=far), order)
    got: list[int] = []
    with pytest.raises(ShardError, match=r"s-001\.tar, byte \d+: bytes \[\d+, \d+\) do not have the checksum"):
        for sample in ds:
            got.append(check_sample(sample))  # noqa: PERF401
    assert got == ds.ids().tolist()[: len(got)]
    assert DAMAGED not in got
    assert ds.stats()["num_corrupt"] >= 1


@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
def test_a_sample_by_its_id_is_read_with_all_that_its_checksum_covers(far: bool, flipped: Dataset) -> None:
    ds = verifying(flipped, far=far)
    with pytest.raises(ShardError, match="checksum"):
        ds[DAMAGED]
    with pytest.raises(ShardError, match="checksum"):
        ds.as_map()[DAMAGED]
    assert check_sample(ds[3]) == check_sample(ds.as_map()[3]) == 3


def test_without_it_files_are_believed(flipped: Dataset) -> None:
    ds = ordered(flipped, Block(chunks=4))
    assert len(list(ds)) == 70
    assert flipped[DAMAGED]


@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_sound_data_come_as_ever(order: Any, far: bool, tmp_path: Path) -> None:
    ds = open_finely(write_tars(tmp_path / "data", [30, 40]))
    opened = ds.stream.opened
    checksums = extent_checksums(opened.index, opened.paths, store=opened.store, check=opened.check.check)
    sound = described(ds, source=replace(opened, index=replace(opened.index, extent_checksum=checksums)))
    for limit in (None, 100_000):
        verified = ordered(verifying(sound, far=far, memory_limit_bytes=limit), order)
        assert ids_of(verified) == verified.ids().tolist()

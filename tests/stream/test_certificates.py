"""One certificate for one order, whoever delivered it; another as soon as a sample is missing, repeated or another."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.samples import write_tar_shards

import shoal
from shoal.errors import StateError, UsageError
from shoal.index.table import Index, locate
from shoal.indexing.checksums import extent_checksums
from shoal.indexing.index_files import save_index
from shoal.reading.checks.record_checksums import RECORD_CRCS
from shoal.storage.files.local_store import LocalStore
from shoal.stream.states.certificate import Certificate
from shoal.stream.states.delivery_sums import RecordHashes

NUM_SAMPLES = 130


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    os.environ["SHOAL_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    directory = tmp_path_factory.mktemp("data")
    write_tar_shards(directory, num_shards=5, samples_per_shard=26)
    shoal.open(directory)
    return directory


def stream(data: Path, **window: Any) -> shoal.Dataset:
    return shoal.open(data).shuffle(shoal.orders.Window(8, 2), seed=7, chunk=4096, **window)


def drain(ds: Any, steps: int | None = None) -> Any:
    """Iterate over so many steps, or to the end; the iterator is left behind as it is."""
    iterator = iter(ds)
    for _ in range(1 << 30 if steps is None else steps):
        if next(iterator, None) is None:
            break
    return iterator


def of_epoch(data: Path) -> dict[str, Any]:
    ds = stream(data).batch(13).partition(rank=0, world_size=1)
    drain(ds)
    return ds.certificate()


def test_single_samples_and_batches_agree(data: Path) -> None:
    parts = []
    for rank in range(3):
        ds = stream(data).partition(rank=rank, world_size=3)
        drain(ds)
        parts.append(ds.certificate())
    assert shoal.merge_certificates(parts) == of_epoch(data)


def test_every_step_is_counted_when_it_was_yielded(data: Path) -> None:
    for ds in (stream(data).batch(16), stream(data)):
        whole = ds.num_samples
        iterator = iter(ds)
        given = 0
        for batch in iterator:
            given += len(batch["__key__"]) if isinstance(batch["__key__"], list) else 1
            (part,) = ds.certificate()["epochs"].values()
            assert (part["start"], part["end"], part["num_samples"]) == (0, given, given)
            ds.check_certificate(ds.certificate())
        assert given == whole


def test_epochs_are_told_apart(data: Path) -> None:
    ds = stream(data).batch(20)
    drain(ds)
    drain(ds)
    epochs = ds.certificate()["epochs"]
    assert list(epochs) == ["0", "1"]
    assert epochs["0"]["sum"] != epochs["1"]["sum"]
    ds.check_certificate(ds.certificate())


def test_a_look_is_forgotten(data: Path) -> None:
    ds = stream(data).batch(13)
    assert ds.certificate()["epochs"] == {}
    drain(ds, 3)
    drain(ds)
    assert ds.certificate() == of_epoch(data)
    ds.set_epoch(0)
    drain(ds, 2)  # epoch 0 once more: what counts is what lies behind the newest iterator
    assert ds.certificate()["epochs"]["0"]["num_samples"] == 26


def test_what_was_lost_after_a_state_is_not_counted(data: Path) -> None:
    ds = stream(data).batch(10)
    iterator = iter(ds)
    for _ in range(4):
        next(iterator)
    state, kept = json.loads(json.dumps(ds.state_dict())), json.loads(json.dumps(ds.certificate()))
    for _ in range(3):
        next(iterator)  # these are lost in the crash
    again = stream(data).batch(21)
    again.load_state_dict(state)
    drain(again)
    assert shoal.merge_certificates([kept, again.certificate()]) == of_epoch(data)
    # Who does not go back to the certificate that belongs to the state has samples twice, and sees it.
    twice = shoal.merge_certificates([ds.certificate(), again.certificate()])
    with pytest.raises(StateError, match=r"160 samples were delivered, 30 more than expected"):
        ds.check_certificate(twice)


def test_drop_ends_where_the_last_batch_does(data: Path) -> None:
    ds = stream(data).batch(50, remainder="drop")
    drain(ds)
    (part,) = ds.certificate()["epochs"].values()
    assert (part["end"], part["num_samples"]) == (100, 100)
    ds.check_certificate(ds.certificate())


@pytest.mark.parametrize("batched", [False, True])
def test_dropped_samples_are_not_delivered(data: Path, batched: bool) -> None:
    def keeps(sample: dict[str, Any]) -> bool:
        return int(sample["__key__"]) % 10 != 3

    totals = []
    for world_size in (1, 3):
        parts = []
        for rank in range(world_size):
            ds = stream(data).filter(keeps)
            ds = (ds.batch(12) if batched else ds).partition(rank=rank, world_size=world_size)
            drain(ds)
            parts.append(ds.certificate())
        totals.append(shoal.merge_certificates(parts))
    assert totals[0] == totals[1]
    assert totals[0]["epochs"]["0"]["num_samples"] == NUM_SAMPLES - 13
    with pytest.raises(StateError, match="13 fewer"):
        stream(data).check_certificate(totals[0])


def test_damaged_samples_are_not_delivered(tmp_path: Path) -> None:
    copied = tmp_path / "copy"
    write_tar_shards(copied, num_shards=5, samples_per_shard=26)
    index = write_index(copied, tmp_path / "some.index", records=False)
    path = copied / "train-000002.tar"
    times = path.stat().st_mtime_ns
    damage(path)
    os.utime(path, ns=(times, times))  # or the shard would be refused as a whole
    ds = shoal.open(copied, index=index).shuffle(shoal.orders.Window(8, 2), seed=7, chunk=4096)
    ds = ds.reading(on_error="skip", verify="always").batch(20)
    drain(ds)
    lost = ds.stats()["num_skipped"]
    assert lost > 0
    with pytest.raises(StateError, match=f"{lost} fewer"):
        ds.check_certificate(ds.certificate())


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[1024 * 4 + 520] ^= 1
    path.write_bytes(data)


def change(certificate: dict[str, Any], **values: Any) -> dict[str, Any]:
    part = certificate["epochs"]["0"] | values
    return certificate | {"epochs": {"0": part}}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"num_samples": 129}, "1 fewer"),
        ({"num_samples": 131}, "1 more"),
        ({"sum": "0123456789abcdef"}, "samples were replaced or moved"),
        ({"end": 131}, "an epoch has 130"),
    ],
)
def test_what_is_wrong_is_told(data: Path, values: dict[str, Any], said: str) -> None:
    with pytest.raises(StateError, match=said):
        stream(data).check_certificate(change(of_epoch(data), **values))


def test_every_sample_counts_by_place_id_and_checksum() -> None:
    """Of the sums over a few samples, one is changed at a time: any change changes the sum."""
    rng = np.random.default_rng(1)
    index = index_with(rng.integers(0, 2**32, 1000).astype(np.uint32))
    hashes = RecordHashes(index)
    positions, ids = np.arange(300, 400), rng.permutation(1000)[:100]

    def total(epoch: int, positions: Any, ids: Any, hashes: RecordHashes = hashes) -> int:
        return int(hashes.of(epoch, positions, ids).sum(dtype=np.uint64))

    first = total(0, positions, ids)
    order = rng.permutation(100)
    assert total(0, positions[order], ids[order]) == first
    swapped = ids.copy()
    swapped[[3, 60]] = swapped[[60, 3]]
    others = {
        total(1, positions, ids),
        total(0, positions + 1, ids),
        total(0, positions, swapped),
        total(0, positions[1:], ids[1:]),
        total(0, np.append(positions, 300), np.append(ids, ids[0])),
    }
    changed = index.columns[RECORD_CRCS].copy()
    changed[ids[5]] ^= 1
    others.add(total(0, positions, ids, RecordHashes(index_with(changed))))
    assert len(others - {first}) == 6


def test_sums_do_not_meet_by_chance() -> None:
    """Sums of neighbouring positions and ids differ in about half of their bits, so that they do not cancel."""
    hashes = RecordHashes(index_with(None))
    grid = np.stack([hashes.of(0, np.full(64, place), np.arange(64)) for place in range(64)])
    assert len(np.unique(grid)) == 64 * 64
    differences = grid[1:, 1:] - grid[:-1, 1:] - grid[1:, :-1] + grid[:-1, :-1]  # two swapped samples
    assert len(np.unique(differences)) == 63 * 63
    bits = np.unpackbits((grid[1:] ^ grid[:-1]).view(np.uint8)).mean()
    assert abs(bits - 0.5) < 0.01


@given(counts=st.lists(st.integers(0, 40), min_size=1, max_size=60).filter(any))
def test_the_extent_of_a_sample_is_found_without_a_search(counts: list[int]) -> None:
    first = np.concatenate([[0], np.cumsum(counts)])
    index = replace(
        index_with(None), extent_first_sample=first, extent_checksum=np.arange(len(counts)).astype(np.uint32)
    )
    ids = np.arange(sum(counts))[::-1]
    by_record = index_with(np.repeat(np.arange(len(counts)), counts).astype(np.uint32))
    assert np.array_equal(RecordHashes(index).of(0, ids, ids), RecordHashes(by_record).of(0, ids, ids))


def index_with(crcs: Any) -> Index:
    columns = {} if crcs is None else {RECORD_CRCS: crcs}
    zero, one = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint32)
    return Index(
        "tar", (), zero, (), {}, zero.astype(np.int32), zero, zero, zero, zero, one, None, None, "x", columns=columns
    )


def write_index(data: Path, path: Path, *, records: bool) -> Path:
    """An index with checksums, of each record or of each extent."""
    ds = shoal.open(data)
    index, paths = ds.resolved.index, sorted(str(one) for one in data.glob("*.tar"))
    if records:
        shard, first, end = (part.tolist() for part in locate(index, np.arange(index.num_samples)))
        shards = [Path(one).read_bytes() for one in paths]
        crcs = [crc32(shards[s][a:b]) for s, a, b in zip(shard, first, end, strict=True)]
        index = replace(index, columns={RECORD_CRCS: np.array(crcs, dtype=np.uint32)})
    else:
        sums = extent_checksums(index, paths, store=LocalStore(), check=lambda _: None)
        index = replace(index, extent_checksum=sums)
    save_index(index, path, store=LocalStore())
    return path


@pytest.mark.parametrize(("records", "kind"), [(True, "records"), (False, "extents")])
def test_a_changed_record_changes_it(data: Path, tmp_path: Path, records: bool, kind: str) -> None:
    copied = tmp_path / "copy"
    write_tar_shards(copied, num_shards=5, samples_per_shard=26)
    damage(copied / "train-000002.tar")
    made = []
    for directory in (data, copied):
        index = write_index(directory, tmp_path / f"{directory.name}.index", records=records)
        ds = shoal.open(directory, index=index).shuffle(seed=1).batch(32)
        drain(ds)
        ds.check_certificate(ds.certificate())
        made.append((ds, ds.certificate()))
    assert made[0][1]["checksums"] == kind
    assert made[0][1]["epochs"]["0"]["sum"] != made[1][1]["epochs"]["0"]["sum"]
    assert made[0][1]["index"] == made[1][1]["index"]
    with pytest.raises(StateError, match="samples were replaced or moved"):
        made[0][0].check_certificate(made[1][1])
    with pytest.raises(StateError, match=f"checksums of {kind}; this index has checksums of none"):
        shoal.open(data).shuffle(seed=1).check_certificate(made[0][1])


def test_chosen_samples(data: Path) -> None:
    def chosen(ds: shoal.Dataset) -> shoal.Dataset:
        return ds.select(np.arange(0, 130, 3)).shuffle("full", seed=2).take(30)

    ds = chosen(shoal.open(data)).batch(7)
    drain(ds)
    chosen(shoal.open(data)).check_certificate(ds.certificate())
    with pytest.raises(StateError, match="positions chosen"):
        shoal.open(data).shuffle("full", seed=2).check_certificate(ds.certificate())


STRANGERS: list[tuple[Callable[[shoal.Dataset], shoal.Dataset], str]] = [
    (lambda ds: ds.shuffle(seed=8), "seed is 7 and 8"),
    (lambda ds: ds.shuffle("full", seed=7), "order is"),
]


@pytest.mark.parametrize(("make", "said"), STRANGERS)
def test_strangers_are_not_merged(data: Path, make: Callable[[shoal.Dataset], shoal.Dataset], said: str) -> None:
    other = make(shoal.open(data)).batch(10)
    drain(other)
    with pytest.raises(StateError, match=said):
        shoal.merge_certificates([of_epoch(data), other.certificate()])


def test_things_that_are_none(data: Path) -> None:
    with pytest.raises(StateError, match="not a certificate"):
        shoal.merge_certificates([stream(data).state_dict()])
    with pytest.raises(StateError, match="version 2"):
        shoal.merge_certificates([of_epoch(data) | {"version": 2}])
    with pytest.raises(StateError, match="was changed"):
        Certificate.from_dict(change(of_epoch(data), sum="no hex"))
    with pytest.raises(UsageError, match="no certificates"):
        shoal.merge_certificates([])


def test_it_is_small_and_json(data: Path) -> None:
    certificate = of_epoch(data)
    assert json.loads(json.dumps(certificate)) == certificate
    assert len(json.dumps(certificate)) < 500


def test_a_check_says_how_much_of_each_epoch_it_covered(data: Path) -> None:
    ds = stream(data).batch(13).partition(rank=0, world_size=1)
    assert ds.check_certificate(ds.certificate()) == "nothing was delivered"
    drain(ds)
    drain(ds, 3)
    covered = "epoch 0: all of 130 samples; epoch 1, not whole: positions [0, 39) of 130"
    assert ds.check_certificate(ds.certificate()) == covered
    shorter = ds.without(positions=[(20, 30)])
    drain(shorter)
    assert shorter.check_certificate(shorter.certificate()) == "epoch 0: all of 130 samples but 10 left out"

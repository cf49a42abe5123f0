"""Shards that were damaged, replaced or deleted: an error that names them, never a wrong sample."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.stream.made import at, check_sample, ids_of, write_lines, write_tars

from shoal.errors import ShardError, ShoalError, StorageError
from shoal.orders import Window
from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

COUNTS = [40, 40, 40]


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def shortened_by_one(path: Path) -> None:
    """By a byte of the last line; or by padding at the end of a tar, which is no part of a sample."""
    os.truncate(path, path.stat().st_size - (2048 if path.suffix == ".tar" else 1))


def replaced(path: Path) -> None:
    """By a whole shard of other samples: those of the first, put before it."""
    write = write_tars if path.suffix == ".tar" else write_lines
    other = write(path.parent.parent / "other", [25])
    next(other.iterdir()).replace(path)


def replaced_in_place(path: Path) -> None:
    """By the same number of other bytes."""
    data = path.read_bytes()
    path.write_bytes(data[2048:] + data[:2048] if path.suffix == ".tar" else data[1:] + data[:1])


def deleted(path: Path) -> None:
    path.unlink()


DAMAGES = [truncated, shortened_by_one, replaced, replaced_in_place, deleted]


@pytest.fixture(params=["tar", "jsonl"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write = write_tars if request.param == "tar" else write_lines
    return write(tmp_path / "data", COUNTS)


@pytest.fixture
def victim(data: Path) -> Path:
    return sorted(data.iterdir())[1]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("order", ["none", "full", "window"])
@pytest.mark.parametrize("threads", [False, True])
def test_damage_while_streaming(damage: Callable, order: str, threads: bool, data: Path, victim: Path) -> None:
    ds = open_dataset(data).shuffle(order if order != "window" else Window(chunks=2), seed=3)
    vars(ds.stream.opened.store)["reads_ahead"] = not threads
    iterator = iter(ds)
    got = [check_sample(next(iterator)) for _ in range(10)]
    damage(victim)
    try:
        for sample in iterator:
            got.append(check_sample(sample))  # noqa: PERF401  # what came before the error is looked at
    except ShoalError as error:
        assert victim.name in str(error) + "".join(error.__notes__)  # noqa: PT017
        assert error.hint  # noqa: PT017
        assert at(iterator) == (0, len(got))
    else:
        assert threads or order != "full"  # only if all of it was in memory before
    assert got == ds.ids().tolist()[: len(got)]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("order", ["none", "full", "window"])
def test_damage_between_opening_and_reading(damage: Callable, order: str, data: Path, victim: Path) -> None:
    ds = open_dataset(data).shuffle(order, seed=3)
    damage(victim)
    got: list[int] = []
    with pytest.raises((ShardError, StorageError)) as caught:
        for sample in ds:
            got.append(check_sample(sample))  # noqa: PERF401
    assert victim.name in str(caught.value)
    assert caught.value.hint
    if isinstance(caught.value, ShardError):
        assert caught.value.byte is not None
    assert got == ds.ids().tolist()[: len(got)]
    assert all(number // 40 != 1 for number in got)
    with pytest.raises((ShardError, StorageError)):
        ds[45]
    assert check_sample(ds[5]) == 5


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_after_indexing_and_before_opening(damage: Callable, data: Path, victim: Path) -> None:
    from shoal.indexing.index_files import save_index

    first = open_dataset(data)
    index = save_index(first.stream.opened.index, data.parent / "kept.index", store=first.stream.opened.store)
    damage(victim)
    got: list[int] = []
    if damage is shortened_by_one and victim.suffix == ".tar":
        assert ids_of(open_dataset(data, index=index)) == list(range(120))  # no sample lies there
        return
    with pytest.raises(ShoalError) as caught:
        for sample in open_dataset(data, index=index).shuffle("full"):
            got.append(check_sample(sample))  # noqa: PERF401
    assert victim.name in str(caught.value)
    assert all(number // 40 != 1 for number in got)


def test_a_flipped_header_byte_is_an_error_with_its_byte(tmp_path: Path) -> None:
    data = write_tars(tmp_path / "data", COUNTS)
    ds = open_dataset(data).shuffle("full", seed=1)
    start = int(ds.stream.opened.index.extent_first_byte[1])
    shard = int(ds.stream.opened.index.extent_shard[1])
    path = Path(ds.stream.opened.paths[shard])
    times = path.stat()
    raw = bytearray(path.read_bytes())
    raw[start + 3] ^= 1
    path.write_bytes(raw)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # so that nothing about the file tells
    with pytest.raises(ShardError) as caught:
        list(ds)
    assert caught.value.shard == path.name
    assert caught.value.byte == start


def test_a_copied_or_touched_dataset_is_the_same(data: Path, tmp_path: Path) -> None:
    from shoal.indexing.index_files import save_index

    ds = open_dataset(data).shuffle("window", seed=4).batch(7)
    index = save_index(ds.stream.opened.index, tmp_path / "kept.index", store=ds.stream.opened.store)
    iterator = iter(ds)
    for _ in range(5):
        next(iterator)
    state = ds.state_dict()
    copy = tmp_path / "elsewhere" / "again"
    shutil.copytree(data, copy, copy_function=shutil.copyfile)
    for path in data.iterdir():
        os.utime(path, (1, 1))
    for other in (open_dataset(data), open_dataset(copy), open_dataset(data, index=index)):
        assert other.stream.opened.index.fingerprint == ds.stream.opened.index.fingerprint
        stream = other.shuffle("window", seed=4).batch(11)
        stream.load_state_dict(state)
        assert [check_sample(s) for s in _unbatched(stream)] == ds.ids(start=35).tolist()
        assert ids_of(other) == list(range(120))


def _unbatched(stream: Dataset) -> list[dict]:
    samples = []
    for batch in stream:
        names = list(batch)
        samples += [dict(zip(names, row, strict=True)) for row in zip(*batch.values(), strict=True)]
    return samples

"""`shoal.jax` on four CPU devices of one process; `test_frameworks` runs this where jax is installed."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from tests.samples import write_tar, write_tar_shards
from tests.stream.interrupting import alarms_interrupt, epoch_of_interrupts
from tests.stream.made import reading_threads

import shoal
import shoal.jax
from shoal.errors import StateError, UsageError
from shoal.order.state_dict import State
from shoal.stream.iterating import progress_line

ROWS = PartitionSpec("data")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def ds(tmp_path: Path) -> shoal.Dataset:
    """200 samples in shuffled order."""
    write_tar_shards(tmp_path / "data")
    return shoal.open(tmp_path / "data").shuffle("full", seed=3).with_ids().columns("__id__")


@pytest.fixture
def sharding() -> Any:
    return NamedSharding(jax.make_mesh((4,), ("data",)), ROWS)


def ids_of(batches: Any) -> list[list[int]]:
    return [np.asarray(batch["__id__"]).tolist() for batch in batches]


def test_batches_are_those_of_the_dataset_as_arrays(ds: shoal.Dataset) -> None:
    loader = shoal.jax.DataLoader(ds.batch(16))
    batches = list(loader)
    assert all(isinstance(batch["__id__"], jax.Array) for batch in batches)
    assert ids_of(batches) == [batch["__id__"].tolist() for batch in ds.batch(16)]
    assert len(loader) == len(batches) == 13
    received = iter(shoal.jax.DataLoader(described := ds.batch(16)))
    next(received)
    assert described.certificate()["epochs"]["0"]["num_samples"] == 16  # not what was made ahead
    described.check_certificate(described.certificate())


def test_the_epoch_nested_values_and_the_line_of_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(progress_line, "_LOG_EVERY_SECONDS", 1e-9)
    write_tar_shards(tmp_path / "data")
    ds = shoal.open(tmp_path / "data").with_ids().map(lambda sample: {"x": (sample["__epoch__"], sample["__id__"])})
    loader = shoal.jax.DataLoader(ds.batch(100).reading(progress=True), num_epochs=2)
    for epoch, batch in zip((0, 0, 1, 1), loader, strict=True):
        epochs, ids = batch["x"]
        assert isinstance(ids, jax.Array)
        assert epochs.tolist() == [epoch] * 100
    assert [line.split()[2:4] for line in log.getvalue().splitlines()] == [
        ["0", "50%"], ["0", "100%"], ["1", "50%"], ["1", "100%"],
    ]  # fmt: skip


def test_a_sharding_makes_arrays_over_all_devices(ds: shoal.Dataset, sharding: Any) -> None:
    loader = shoal.jax.DataLoader(ds.batch(global_batch_size=16, remainder="drop"), sharding=sharding)
    batches = list(loader)
    assert [batch["__id__"].sharding for batch in batches] == [sharding] * 12
    assert all(part.data.shape == (4,) for part in batches[0]["__id__"].addressable_shards)
    assert ids_of(batches) == [ds.ids(0, at, at + 16).tolist() for at in range(0, 192, 16)]


@pytest.mark.parametrize("batch", [16, 48])
def test_padded_batches_mark_repeats_in_all_of_them(batch: int, ds: shoal.Dataset, sharding: Any) -> None:
    loader = shoal.jax.DataLoader(ds.batch(global_batch_size=batch, remainder="pad"), sharding=sharding)
    step = jax.jit(lambda part: jax.numpy.where(part["__pad__"], 0, part["__id__"] + 1).sum())
    batches = list(loader)
    assert sum(int(step(each)) for each in batches) == sum(range(1, 201))
    assert step._cache_size() == 1  # one structure and one shape: compiled once
    assert [int(each["__pad__"].sum()) for each in batches] == [0] * (200 // batch) + [-200 % batch]


def test_an_iterator_goes_on_where_its_state_says(ds: shoal.Dataset, sharding: Any) -> None:
    described = ds.batch(global_batch_size=16, remainder="drop")
    whole = ids_of(shoal.jax.DataLoader(described, sharding=sharding, num_epochs=3))
    assert len(whole) == 36
    for taken in (0, 1, 12, 13, 30, 35):
        iterator = iter(shoal.jax.DataLoader(described.map(dict), sharding=sharding, num_epochs=3))
        seen = ids_of(itertools.islice(iterator, taken))
        state = iterator.get_state()
        assert len(json.dumps(state)) < 1024
        next(iterator)  # whatever it gives after its state does not count
        iterator.set_state(json.loads(json.dumps(state)))
        assert seen + ids_of(iterator) == whole
        other = shoal.jax.DataLoader(ds.batch(16, remainder="drop"), num_epochs=3, prefetch=0)
        other.load_state_dict(state)
        assert ids_of(other) == whole[taken:]


def test_epochs_are_counted_over_stops(ds: shoal.Dataset) -> None:
    loader = shoal.jax.DataLoader(ds.batch(40), num_epochs=2)
    assert len(list(loader)) == 10
    assert list(loader) == []
    with pytest.raises(StopIteration):
        next(iter(loader))
    one_by_one = shoal.jax.DataLoader(ds.batch(40))
    assert [ids_of(one_by_one), ids_of(one_by_one)] == [
        [ds.ids(epoch, at, at + 40).tolist() for at in range(0, 200, 40)] for epoch in (0, 1)
    ]


def test_a_state_of_another_stream_leaves_the_iterator_where_it_was(ds: shoal.Dataset) -> None:
    iterator = iter(shoal.jax.DataLoader(ds.batch(40)))
    first = next(iterator)
    with pytest.raises(StateError, match="seed=9"):
        iterator.set_state(replace(State.from_dict(iterator.get_state()), seed=9).to_dict())
    assert ids_of([first, *iterator]) == [ds.ids(0, at, at + 40).tolist() for at in range(0, 200, 40)]


def test_an_error_is_raised_again_and_again(ds: shoal.Dataset) -> None:
    def refuse(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["__id__"] == int(ds.ids(0, 100, 101)[0]):
            msg = "this one"
            raise LookupError(msg)
        return sample

    iterator = iter(shoal.jax.DataLoader(ds.map(refuse).batch(40)))
    assert len(list(itertools.islice(iterator, 2))) == 2
    for _ in range(2):
        with pytest.raises(LookupError, match="this one"):
            next(iterator)
    assert iterator.get_state()["position"] == 80


def test_integers_that_jax_would_cut_are_refused(ds: shoal.Dataset) -> None:
    large = ds.map(lambda sample: {"token": np.int64(2**40 + sample["__id__"])}).batch(8)
    with pytest.raises(UsageError, match=r"'token' has integers from .* but JAX would truncate them to int32"):
        next(iter(shoal.jax.DataLoader(large)))
    with jax.enable_x64(True):
        assert int(next(iter(shoal.jax.DataLoader(large, prefetch=0)))["token"].min()) >= 2**40


def test_what_is_no_number_stays_as_it_is(tmp_path: Path, ds: shoal.Dataset) -> None:
    named = shoal.open(tmp_path / "data").decode().to_tuple("cls", "txt").batch(4)
    classes, texts = next(iter(shoal.jax.DataLoader(named)))
    assert isinstance(classes, jax.Array)
    assert texts == [f"sample {number:04d}" for number in range(4)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"global_batch_size": 16}, "remainder='keep' may leave less than 16"),
        ({"global_batch_size": 18, "remainder": "drop"}, "a global batch of 18 cannot be split into the 4"),
    ],
)
def test_batches_that_make_no_arrays_of_a_sharding_are_refused(
    options: dict[str, Any], says: str, ds: shoal.Dataset, sharding: Any
) -> None:
    with pytest.raises(UsageError, match=says):
        shoal.jax.DataLoader(ds.batch(**options), sharding=sharding)


def test_other_mistakes_are_refused_with_a_remedy(ds: shoal.Dataset, sharding: Any) -> None:
    batched = ds.batch(16, remainder="drop")
    with pytest.raises(UsageError, match=r"ds\.batch"):
        shoal.jax.DataLoader(ds)
    with pytest.raises(UsageError, match="filter"):
        shoal.jax.DataLoader(ds.filter(bool).batch(16, remainder="drop"), sharding=sharding)
    with pytest.raises(UsageError, match=r"part 0 of 1, but the dataset has rank 1 of 2"):
        shoal.jax.DataLoader(batched.partition(rank=1, world_size=2), sharding=sharding)
    with pytest.raises(UsageError, match="JAX splits sequences itself"):
        shoal.jax.DataLoader(batched.partition(rank=0, world_size=2, context_parallel=2), sharding=sharding)
    plane = NamedSharding(jax.make_mesh((2, 2), ("data", "model")), PartitionSpec("data", "model"))
    with pytest.raises(UsageError, match="does not split the rows of a batch"):
        shoal.jax.DataLoader(batched, sharding=plane)
    with pytest.raises(UsageError, match="every array of a batch must have a row"):
        next(iter(shoal.jax.DataLoader(batched.map(lambda batch: {"sum": np.ones(3)}), sharding=sharding)))
    with pytest.raises(UsageError, match="no epoch has a batch"):
        iter(shoal.jax.DataLoader(ds.batch(400, remainder="drop"), num_epochs=2))


class Device:
    """A device of some process."""

    def __init__(self, process_index: int) -> None:
        self.process_index = process_index


class Sharding:
    """A sharding of processes that are not there: which rows the devices of each hold."""

    def __init__(self, rows: list[tuple[int, tuple[int, int]]]) -> None:
        self._held = {Device(process): (slice(*part),) for process, part in rows}
        self.device_set = set(self._held)

    def devices_indices_map(self, _: tuple[int]) -> dict[Device, tuple[slice]]:
        return self._held


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ([(0, (0, 1)), (0, (1, 2)), (1, (2, 3)), (1, (3, 4))], [(0, 2), (1, 2)]),
        ([(0, (0, 2)), (1, (0, 2)), (2, (2, 4)), (3, (2, 4))], [(0, 2), (0, 2), (1, 2), (1, 2)]),  # model parallel
        ([(0, (2, 4)), (1, (0, 2))], [(1, 2), (0, 2)]),  # devices in another order than processes
        ([(0, (0, 1)), (0, (2, 3)), (1, (1, 2)), (1, (3, 4))], [(0, 2), (1, 2)]),
        ([(0, (0, 2)), (1, (0, 2))], [(0, 1), (0, 1)]),  # the same samples everywhere
    ],
)
def test_the_devices_of_a_process_say_its_part(
    rows: list[tuple[int, tuple[int, int]]],
    parts: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    ds: shoal.Dataset,
) -> None:
    for process, part in enumerate(parts):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        assert shoal.jax.partition(ds, Sharding(rows)).stream.spec.ranks.resolve() == part


def test_processes_that_share_some_rows_have_no_part(monkeypatch: pytest.MonkeyPatch, ds: shoal.Dataset) -> None:
    with pytest.raises(UsageError, match="some rows in common"):
        shoal.jax.partition(ds, Sharding([(0, (0, 1)), (0, (1, 2)), (1, (1, 2)), (1, (2, 3))]))
    monkeypatch.setattr(jax, "process_index", lambda: 7)
    with pytest.raises(UsageError, match="no device of process 7"):
        shoal.jax.partition(ds, Sharding([(0, (0, 1)), (1, (1, 2))]))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_images_are_decoded_in_threads(prefetch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    members = []
    for number in range(40):
        image.new("RGB", (8, 8), (number, 0, 0)).save(stream := io.BytesIO(), "png")
        members.append({"__key__": b"%02d" % number, "png": stream.getvalue()})
    write_tar(tmp_path / "a.tar", members)
    images = shoal.open(tmp_path / "a.tar").shuffle("full", seed=1).decode("rgb8")
    expected = [batch["png"][:, 0, 0, 0].tolist() for batch in images.batch(8)]
    monkeypatch.setattr("shoal.pipeline.decode_pool.usable_processors", lambda: 3)
    loader = shoal.jax.DataLoader(images.batch(8), prefetch=prefetch)
    assert loader.decoding.startswith("3 threads: 3 processors for this rank")
    assert repr(loader).endswith(f"decoded in {loader.decoding}>")
    batches = iter(loader)
    received = [np.asarray(next(batches)["png"])[:, 0, 0, 0].tolist()]
    assert any("decode" in name for name in reading_threads())
    received += [np.asarray(batch["png"])[:, 0, 0, 0].tolist() for batch in batches]
    assert received == expected
    assert reading_threads() == []


def test_no_thread_is_left(ds: shoal.Dataset) -> None:
    import threading

    before = threading.active_count()
    iterator = iter(shoal.jax.DataLoader(ds.batch(8)))
    next(iterator)
    iterator.close()
    assert list(iterator) == []
    another = iter(shoal.jax.DataLoader(ds.batch(8)))
    next(another)
    del another
    assert threading.active_count() == before


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_interrupted_loop_goes_on_where_it_was(ds: shoal.Dataset, prefetch: int) -> None:
    dice = random.Random(prefetch)
    batched = ds.batch(5)
    loader = shoal.jax.DataLoader(batched, prefetch=prefetch)
    with alarms_interrupt():
        num_inside = epoch_of_interrupts(batched, lambda: iter(loader), dice, most_seconds=0.003, batch_size=5)
    assert num_inside


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_loop_that_is_stopped_ends_and_goes_on_from_its_state(ds: shoal.Dataset, prefetch: int) -> None:
    batched = ds.batch(5)
    loader = shoal.jax.DataLoader(batched, prefetch=prefetch)
    received: list[int] = []
    iterator = iter(loader)
    for number, batch in enumerate(iterator):
        received += batch["__id__"].tolist()
        if number == 3:
            iterator.stop()
    assert len(received) == 20
    loader.load_state_dict(loader.state_dict())
    received += [i for batch in loader for i in batch["__id__"].tolist()]
    assert received == ds.ids().tolist()

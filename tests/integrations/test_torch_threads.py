"""`shoal.torch.DataLoader` without workers: several threads decode, and the batches are those of ``iter(dataset)``."""

from __future__ import annotations

import io
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integrations import stages
from tests.samples import write_tar
from tests.stream.faraway import Distant, far_away
from tests.stream.made import at, flat, reading_threads

from shoal.errors import UsageError
from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset
from shoal.torch import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")
NUM_IMAGES = 120
DAMAGED = [0, 41, 42, 99]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of noise, four of which are cut off."""
    images = pytest.importorskip("PIL.Image")
    directory = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(0)
    samples: dict[str, list[Any]] = {"good": [], "damaged": []}
    for number in range(NUM_IMAGES):
        buffer = io.BytesIO()
        images.fromarray(draw.integers(0, 255, (24, 32, 3), dtype=np.uint8)).save(buffer, "PNG")
        data = buffer.getvalue()
        key = f"{number:03d}".encode()
        samples["good"].append({"__key__": key, "png": data, "cls": b"%d" % number})
        data = data[:200] if number in DAMAGED else data
        samples["damaged"].append({"__key__": key, "png": data, "cls": b"%d" % number})
    for name, some in samples.items():
        (directory / name).mkdir()
        write_tar(directory / name / "a.tar", some)
    return directory


def same(these: Any, those: Any) -> bool:
    """Whether batches have equal images and classes in equal order."""
    return all(
        (np.asarray(a["png"]) == np.asarray(b["png"])).all() and a["cls"].tolist() == b["cls"].tolist()
        for a, b in zip(these, those, strict=True)
    )


def drawn(sample: dict[str, Any]) -> dict[str, Any]:
    """As a function that draws random numbers: it must not be called by two threads at a time."""
    assert not _inside.locked()
    with _inside:
        time.sleep(0.0001)
        return sample


_inside = threading.Lock()


@pytest.mark.parametrize("num_threads", [None, 1, 3])
def test_the_batches_are_those_of_one_thread(num_threads: int | None, images: Path) -> None:
    ds = open_dataset(images / "good").shuffle("full", seed=1).decode("rgb8").with_ids().batch(7)
    if num_threads is None:
        ds = open_dataset(images / "good").shuffle("full", seed=1).decode("rgb8").map(drawn).with_ids().batch(7)
    expected = list(ds)
    ds.set_epoch(0)
    loader = DataLoader(ds, num_threads=num_threads)
    iterator = iter(loader)
    first = next(iterator)
    assert any("decode" in name for name in reading_threads()) == (num_threads != 1)
    assert same([first, *iterator], expected)
    assert reading_threads() == []
    assert loader.stats()["num_samples"] == 2 * NUM_IMAGES
    assert loader.stats()["decoding"] == loader.decoding
    assert repr(loader).endswith(f", decoded in {loader.decoding}>")
    assert at(ds) == (1, 0)


def test_damage_is_skipped_as_without_threads(images: Path) -> None:
    def skipping() -> Dataset:
        ds = open_dataset(images / "damaged").shuffle("full", seed=1).decode("rgb8").with_ids().batch(4)
        return ds.reading(on_error="skip")

    here = skipping()
    loader = DataLoader(skipping(), num_threads=3)
    assert same(loader, here)
    assert sorted(loader.stats()["skipped_ids"]) == sorted(here.stats()["skipped_ids"]) == DAMAGED


def test_damage_is_raised_at_its_place(images: Path) -> None:
    ds = open_dataset(images / "damaged").skip(1).decode("rgb8").with_ids().batch(4)
    received = []
    with pytest.raises(Exception, match="image") as caught:
        for batch in DataLoader(ds, num_threads=3):
            received.append(batch["__id__"].tolist())  # noqa: PERF401  # what came before the error counts
    assert flat(received) == list(range(1, 41))
    assert "the sample with id 41" in str(caught.value)
    assert at(ds) == (0, 40)
    assert reading_threads() == []


def test_ready_batches_are_bounded_in_bytes(tars: Dataset) -> None:
    made: list[int] = []
    ready = threading.Semaphore(0)

    def note(batch: dict[str, Any]) -> dict[str, Any]:
        made.append(len(made))
        ready.release()
        return batch

    ds = tars.batch(10).map(note)
    iterator = iter(DataLoader(ds, prefetch_factor=8, prefetch_bytes=1))
    for number in range(1, 6):
        next(iterator)
        for _ in range(number + 1 - len(made)):
            assert ready.acquire(timeout=20)
        assert len(made) <= number + 1
    iterator.close()
    assert len(made) <= 7


@pytest.mark.parametrize("num_threads", [None, 4])
def test_closing_does_not_wait_for_the_rest_of_a_batch(num_threads: int | None, tars: Dataset) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()
    num_made: list[int] = []

    def wait(sample: dict[str, Any]) -> dict[str, Any]:
        begun.release()
        go_on.wait(30)
        num_made.append(1)
        return sample

    iterator = iter(DataLoader(tars.map(wait).batch(100), num_threads=num_threads))
    assert begun.acquire(timeout=20)
    threading.Timer(0.1, go_on.set).start()  # closing comes first, and then waits for the samples in work
    iterator.close()
    assert len(num_made) <= 2 * (num_threads or 1)
    assert reading_threads() == []


def test_closing_does_not_wait_for_a_server_that_is_silent(tars: Dataset) -> None:
    asked, over = threading.Event(), threading.Event()

    class Silent(Distant):
        def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
            asked.set()
            over.wait(100)
            return super().read_range(path, first_byte, end_byte)

    silent: Any = Silent()
    iterator = iter(DataLoader(far_away(tars, silent).shuffle("full").batch(10)))
    assert asked.wait(20)
    began = time.monotonic()
    iterator.close()
    assert time.monotonic() - began < 50, "it waited for the answer"
    over.set()
    for _ in range(1000):
        if not reading_threads():
            break
        time.sleep(0.01)
    assert reading_threads() == []


def test_functions_of_the_user_run_in_threads_only_where_that_was_asked(tars: Dataset) -> None:
    names: set[str] = set()

    def note(sample: dict[str, Any]) -> dict[str, Any]:
        names.add(threading.current_thread().name.rpartition("_")[0])
        time.sleep(0.0005)
        return sample

    for num_threads, expected in ((None, {"shoal-make"}), (3, {"shoal-decode"})):
        names.clear()
        assert len(list(DataLoader(tars.map(note).batch(20), num_threads=num_threads))) == 10
        assert names == expected


@pytest.mark.parametrize("options", [{"num_threads": 0}, {"num_threads": 2, "num_workers": 1}])
def test_threads_that_cannot_be_are_refused(options: dict[str, Any], tars: Dataset) -> None:
    with pytest.raises(UsageError, match="num_threads"):
        DataLoader(tars.batch(4), **options)
    with pytest.raises(UsageError, match="prefetch_bytes"):
        DataLoader(tars.batch(4), prefetch_bytes="much")


def test_threads_and_filters(tars: Dataset) -> None:
    ds = tars.filter(stages.is_odd).with_ids().batch(30)
    here = [batch["__id__"].tolist() for batch in ds]
    ds.set_epoch(0)
    assert [batch["__id__"].tolist() for batch in DataLoader(ds, num_threads=2)] == here

"""Few samples of a dataset are read alone where that is less, and by their chunks where many of them lie in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.orders import Full, Sequential
from shoal.pack import Writer
from shoal.pack.from_shards.repack_settings import RepackRequest, reading_spec
from shoal.pack.from_shards.span_reader import SpanReader
from shoal.reading.order_request import OrderRequest
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.dataset import Dataset

NUM_SAMPLES = 10_000


@pytest.fixture(scope="module", params=["jsonl", "arrow", "jsonl.gz"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    if request.param == "arrow":
        pytest.importorskip("pyarrow")
    directory = tmp_path_factory.mktemp("data")
    options = {"group_bytes": 20_000} if request.param == "arrow" else {}
    with Writer(directory, format=request.param, shard_bytes="50KB", extent_bytes=20_000, options=options) as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"number": number, "text": "x" * 100})
    return shoal.open(directory).partition(rank=0, world_size=1)


def bytes_read(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> int:
    def read() -> list[int]:
        return sorted(sample["number"] for sample in dataset)

    return bytes_read_by(read, sorted(dataset.ids(epoch=0).tolist()), dataset, monkeypatch)


def bytes_read_by(
    read: Callable[[], list[Any]], wanted: list[int], dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> int:
    """How many bytes of shards were read; a number is that of the sample."""
    reads: list[int] = []
    store = type(dataset.stream.opened.store)
    original = store.read_range

    def counted(self: Any, path: str, first_byte: int, end_byte: int) -> Any:
        if path.rpartition("/")[2].startswith("shard"):
            reads.append(end_byte - first_byte)
        return original(self, path, first_byte, end_byte)

    with monkeypatch.context() as patched:
        patched.setattr(store, "read_range", counted)
        assert read() == wanted
    return sum(reads)


def test_a_span_is_read_once_however_short(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bytes_read(data, monkeypatch)
    span = np.arange(3000, 3450)
    for chosen in (data.select(span), data.skip(3000).take(450), data.select(span).shuffle(seed=1)):
        assert bytes_read(chosen, monkeypatch) < 0.1 * whole


def test_scattered_samples_cost_no_more_than_their_chunks(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bytes_read(data, monkeypatch)
    scattered = data.select(np.arange(0, NUM_SAMPLES, 50))
    read = bytes_read(scattered, monkeypatch)
    assert read <= whole
    if data.stream.opened.index.sample_bytes is not None:  # lines, each of which can be read alone
        assert read < 0.1 * whole
    # An order that mixes all of them comes back to a chunk for each: there is nothing to keep.
    assert scattered.shuffle(Full(), seed=1).resolved.by_singles


def test_spans_read_each_for_itself_read_the_whole_about_once(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """As processes that repack do."""
    opened = data.stream.opened
    source = ResolvedOrder(opened.index, OrderRequest(order=Sequential()))
    reader = SpanReader(reading_spec(opened, source, RepackRequest()), needs_keys=False, continues=False)

    def numbers(first: int, stop: int) -> list[int]:
        return [sample["number"] for sample in reader.samples(first, stop) if isinstance(sample, dict)]

    def read(first: int, stop: int) -> int:
        return bytes_read_by(lambda: numbers(first, stop), list(range(first, stop)), data, monkeypatch)

    whole = sum(int(count) for count in opened.index.shard_bytes)
    assert sum(read(first, first + 500) for first in range(0, NUM_SAMPLES, 500)) < 3 * whole

"""The work of the demonstration, without output: shuffles shards, measures the mixing, stops and resumes."""

from __future__ import annotations

import itertools
import json
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal import Dataset, orders
from shoal.errors import ShoalError
from shoal.quality.metrics import distinct_per_batch, position_correlation, variance_ratio

Told = Callable[[str, int, int], None]
"""Callback with the name of the task, the amount done and the total."""

_PICTURED_BATCHES = (8, 16, 32, 64, 128, 256, 512, 1024)
BATCH = 64
"""Samples per streamed batch; labels are counted in batches of this size too."""


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """One order, streamed for one epoch and measured over several.

    ``held_bytes`` is the peak of shard bytes in memory; ``correlation`` is the root mean square over the epochs, since
    its sign says nothing; ``ids`` is what the streamed epoch delivered.
    """

    name: str
    call: str
    held_bytes: int
    num_reads: int
    read_bytes: int
    samples_per_second: float
    ids: NDArray[np.int64]
    variance_ratios: dict[int, float]
    distinct: float
    correlation: float


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """The orders none, buffer, window and full; the buffer has as many samples as fill what the window held."""

    orders: tuple[Measured, ...]
    num_buffer_samples: int
    buffer_bytes: int
    num_window_chunks: int

    def __getitem__(self, name: str) -> Measured:
        return next(order for order in self.orders if order.name == name)


@dataclass(frozen=True, slots=True, eq=False)
class Resumed:
    """The batches after a stop, on the ranks that resumed, compared with those of the uninterrupted run."""

    state: dict[str, Any]
    global_batch: int
    world_size: int
    num_before: int
    num_after: int
    num_batches: int
    num_equal_batches: int
    every_sample_once: bool

    @property
    def exact(self) -> bool:
        """True if the resumed run continues the stopped run exactly."""
        return self.num_equal_batches == self.num_batches and self.every_sample_once


def measure_orders(
    dataset: Dataset, labels: NDArray[Any], *, window: str, chunk: int, sample_bytes: float, num_epochs: int, told: Told
) -> Comparison:
    """Stream every file in each order, and measure how well it is mixed.

    The buffer of a typical loader holds records, not the chunks they came in. So it gets as many samples as fill the
    bytes that the window really held, read-ahead included. ``chunk`` is the size of all other reads in bytes.

    Raises
    ------
    ShoalError
        An order did not deliver every file once with its own bytes.
    """
    streamed = {"none": _stream(dataset.shuffle("none", chunk=chunk), told, "none")}
    streamed["window"] = _stream(dataset.shuffle(seed=0, window=window, chunk=chunk), told, "window")
    num_held = max(1, int(streamed["window"].held_bytes / sample_bytes))
    streamed["buffer"] = _stream(dataset.shuffle(orders.Buffer(samples=num_held)), told, "buffer")
    streamed["full"] = _stream(dataset.shuffle("full", chunk=chunk), told, "full")
    reference = streamed["none"].contents
    numbers = np.unique(labels, return_inverse=True)[1]  # sorting numbers is 20 times as fast as sorting texts
    for name, stream in streamed.items():
        if not np.array_equal(stream.contents, reference):
            msg = f"the order {name!r} delivered other files than storage order: this is a bug of shoal"
            raise ShoalError(msg, hint="please report it, with this message")
    names = ("none", "buffer", "window", "full")
    measured = (_measure(name, streamed[name], numbers, num_epochs=num_epochs, told=told) for name in names)
    chunks = streamed["window"].dataset.resolved.order.parameters["chunks"]
    return Comparison(tuple(measured), num_held, round(num_held * sample_bytes), chunks)


@dataclass(frozen=True, slots=True, eq=False)
class _Streamed:
    """A streamed epoch; ``contents`` has a checksum of each sample's bytes, by sample id."""

    dataset: Dataset
    ids: NDArray[np.int64]
    contents: NDArray[np.int64]
    elapsed_seconds: float
    held_bytes: int
    num_reads: int
    read_bytes: int


def _stream(shuffled: Dataset, told: Told, name: str) -> _Streamed:
    """Stream all bytes of one epoch on one rank."""
    batched = _batched(shuffled, BATCH).partition(rank=0, world_size=1)
    num_samples = shuffled.num_samples
    ids: list[NDArray[np.int64]] = []
    contents = np.full(num_samples, -1, dtype=np.int64)
    begun = time.perf_counter()
    done = 0
    for batch_ids, checksums in batched:
        ids.append(batch_ids)
        contents[batch_ids] = checksums
        done += len(batch_ids)
        told(f"streaming, order {name}", done, num_samples)
    elapsed_seconds = time.perf_counter() - begun
    stats = batched.stats()
    joined = np.concatenate(ids)
    _check_once(joined, num_samples, name)
    counts = (stats["peak_held_bytes"], stats["num_reads"], stats["read_bytes"])
    return _Streamed(shuffled, joined, contents, elapsed_seconds, *counts)


def _batched(shuffled: Dataset, size: int) -> Dataset:
    """Return the dataset as global batches of ids and content checksums."""
    return shuffled.with_ids().map(_id_and_checksum).batch(global_batch_size=size)


def _id_and_checksum(sample: dict[str, Any]) -> tuple[int, int]:
    checksum = 0
    for name, value in sample.items():
        if not name.startswith("__"):
            checksum = zlib.crc32(value, zlib.crc32(name.encode(), checksum))
    return sample["__id__"], checksum


def _check_once(ids: NDArray[np.int64], num_samples: int, name: str) -> None:
    if not np.array_equal(np.sort(ids), np.arange(num_samples)):
        msg = f"the order {name!r} did not deliver each of {num_samples} samples once: this is a bug of shoal"
        raise ShoalError(msg, hint="please report it, with this message")


def _measure(name: str, stream: _Streamed, labels: NDArray[Any], *, num_epochs: int, told: Told) -> Measured:
    """Measure how well an order mixes: over several epochs, as one has few large batches. It reads no data."""
    epochs = np.empty((num_epochs, len(labels)), dtype=np.int64)
    for epoch in range(num_epochs):
        epochs[epoch] = stream.dataset.ids(epoch=epoch)
        told(f"measuring, order {name}", epoch + 1, num_epochs)
    emitted = labels[epochs]
    sizes = [size for size in _PICTURED_BATCHES if 2 * size <= len(labels)]
    squares = [position_correlation(ids) ** 2 for ids in epochs]
    return Measured(
        name=name,
        call=str(stream.dataset.resolved),
        held_bytes=stream.held_bytes,
        num_reads=stream.num_reads,
        read_bytes=stream.read_bytes,
        samples_per_second=len(labels) / stream.elapsed_seconds,
        ids=stream.ids,
        variance_ratios={size: variance_ratio(emitted, size) for size in sizes},
        distinct=distinct_per_batch(emitted, min(BATCH, len(labels) - 1)),
        correlation=float(np.sqrt(np.mean(squares))),
    )


def resume_elsewhere(open_again: Callable[[], Dataset], *, global_batch: int, world_size: int) -> Resumed:
    """Stop one rank in the middle of an epoch, resume on several, and compare with the uninterrupted run.

    ``open_again`` opens and shuffles the dataset anew, as every process of a job would. The ranks of the second job
    run one after another here.
    """
    alone = _batched(open_again(), global_batch).partition(rank=0, world_size=1)
    running = iter(alone)
    before = [_pairs(next(running)) for _ in range(len(alone) // 2)]
    state = alone.state_dict()
    followed = [_pairs(batch) for batch in running]
    carried = json.dumps(state)
    ranks = []
    for rank in range(world_size):
        part = _batched(open_again(), global_batch).partition(rank=rank, world_size=world_size)
        part.load_state_dict(json.loads(carried))
        ranks.append([_pairs(batch) for batch in part])
    resumed = [sorted(pair for part in parts for pair in part) for parts in itertools.zip_longest(*ranks, fillvalue=[])]
    wanted = [sorted(pairs) for pairs in followed]
    equal = sum(theirs == ours for theirs, ours in zip(resumed, wanted, strict=False))
    ids = [number for pairs in (*before, *resumed) for number, _ in pairs]
    return Resumed(
        state=state,
        global_batch=global_batch,
        world_size=world_size,
        num_before=sum(map(len, before)),
        num_after=sum(map(len, resumed)),
        num_batches=max(len(wanted), len(resumed)),
        num_equal_batches=equal,
        every_sample_once=sorted(ids) == list(range(alone.num_samples)),
    )


def _pairs(batch: Iterable[Any]) -> list[tuple[int, int]]:
    """Return the id and checksum of each sample of a batch; a repeat would show as a sample that comes twice."""
    ids, checksums = batch
    return list(zip(ids.tolist(), checksums.tolist(), strict=True))

"""Stream shards in several orders, measure the mixing, stop and resume, for the demonstration."""

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
from shoal.cli.display.progress_bar import Progress
from shoal.errors import ShoalError
from shoal.quality.metrics import distinct_per_batch, position_correlation, variance_ratio
from shoal.tools.reports.mixing_picture import MeasuredOrder

_PICTURED_BATCHES = (8, 16, 32, 64, 128, 256, 512, 1024)
BATCH = 64
"""Samples of a batch, for streaming and for counting labels."""


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """One order, streamed for one epoch, and its mixing, measured over several epochs.

    ``held_bytes`` is the peak of shard bytes in memory. The correlation is the root mean square over the epochs,
    because its sign has no meaning.
    """

    call: str
    held_bytes: int
    num_reads: int
    read_bytes: int
    samples_per_second: float
    mixing: MeasuredOrder


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """The orders "none", "buffer", "window" and "full"; the buffer fills the memory of the window."""

    orders: dict[str, Measured]
    num_buffer_samples: int
    buffer_bytes: int
    num_window_chunks: int


@dataclass(frozen=True, slots=True, eq=False)
class Resumed:
    """The batches of the resumed ranks, compared with the uninterrupted run."""

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
    dataset: Dataset, labels: NDArray[Any], *, window: str, chunk: int, sample_bytes: float, num_epochs: int
) -> Comparison:
    """Stream every file in each order, and measure the mixing.

    The buffer of a typical loader holds records instead of chunks. So the buffer gets as many samples as fit into the
    memory of the window and its read-ahead. ``chunk`` is the size of other reads in bytes.

    Raises
    ------
    ShoalError
        An order did not deliver every file once with its own bytes.
    """
    numbers = np.unique(labels, return_inverse=True)[1]  # sorting numbers is 20 times as fast as sorting texts
    reference: list[NDArray[np.int64]] = []

    def measured(name: str, shuffled: Dataset) -> Measured:
        order, contents = _measured(name, shuffled, numbers, num_epochs=num_epochs)
        reference.append(contents)
        if not np.array_equal(contents, reference[0]):
            msg = f"the order {name!r} and storage order delivered different files: this is a bug of shoal"
            raise ShoalError(msg, hint="please report it, with this message")
        return order

    in_window = dataset.shuffle(seed=0, window=window, chunk=chunk)
    none, window_order = measured("none", dataset.shuffle("none", chunk=chunk)), measured("window", in_window)
    num_held = max(1, int(window_order.held_bytes / sample_bytes))
    buffer = measured("buffer", dataset.shuffle(orders.Buffer(samples=num_held)))
    full = measured("full", dataset.shuffle("full", chunk=chunk))
    chunks = in_window.resolved.order.parameters["chunks"]
    by_name = {"none": none, "buffer": buffer, "window": window_order, "full": full}
    return Comparison(by_name, num_held, round(num_held * sample_bytes), chunks)


def _measured(
    name: str, shuffled: Dataset, labels: NDArray[Any], *, num_epochs: int
) -> tuple[Measured, NDArray[np.int64]]:
    """Stream an epoch on one rank; return its measurements, and the checksum of each sample by id.

    The mixing is measured over several epochs, without reading data, because one epoch has few large batches.
    """
    num_samples = shuffled.num_samples
    batched = _batched(shuffled, BATCH).partition(rank=0, world_size=1)
    contents = np.full(num_samples, -1, dtype=np.int64)
    streamed: list[NDArray[np.int64]] = []
    began_seconds = time.perf_counter()
    with Progress(total=num_samples, label=f"streaming, order {name}") as progress:
        for batch_ids, checksums in batched:
            streamed.append(batch_ids)
            contents[batch_ids] = checksums
            progress.advance(len(batch_ids))
    elapsed_seconds = time.perf_counter() - began_seconds
    ids = np.concatenate(streamed)
    if not np.array_equal(np.sort(ids), np.arange(num_samples)):
        msg = f"the order {name!r} did not deliver each of {num_samples} samples once: this is a bug of shoal"
        raise ShoalError(msg, hint="please report it, with this message")
    epochs = np.empty((num_epochs, num_samples), dtype=np.int64)
    with Progress(total=num_epochs, label=f"measuring, order {name}", unit="epochs") as progress:
        for epoch in range(num_epochs):
            epochs[epoch] = shuffled.ids(epoch=epoch)
            progress.advance()
    emitted = labels[epochs]
    sizes = [size for size in _PICTURED_BATCHES if 2 * size <= num_samples]
    mixing = MeasuredOrder(
        name=name,
        detail="",
        ids=ids,
        variance_ratios={size: variance_ratio(emitted, size) for size in sizes},
        distinct=distinct_per_batch(emitted, min(BATCH, num_samples - 1)),
        correlation=float(np.sqrt(np.mean([position_correlation(ids) ** 2 for ids in epochs]))),
    )
    stats = batched.stats()
    counts = (stats["peak_held_bytes"], stats["num_reads"], stats["read_bytes"])
    return Measured(str(shuffled.resolved), *counts, num_samples / elapsed_seconds, mixing), contents


def _batched(shuffled: Dataset, size: int) -> Dataset:
    """Return global batches of ids and checksums."""
    return shuffled.with_ids().map(_id_and_checksum).batch(global_batch_size=size)


def _id_and_checksum(sample: dict[str, Any]) -> tuple[int, int]:
    checksum = 0
    for name, value in sample.items():
        if not name.startswith("__"):
            checksum = zlib.crc32(value, zlib.crc32(name.encode(), checksum))
    return sample["__id__"], checksum


def resume_elsewhere(open_again: Callable[[], Dataset], *, global_batch: int, world_size: int) -> Resumed:
    """Stop one rank in the middle of an epoch, resume on several ranks, and compare with the uninterrupted run.

    ``open_again`` opens and shuffles the dataset, as every process of a job does. The resumed ranks run one after
    another.
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
    expected = [sorted(pairs) for pairs in followed]
    num_equal = sum(batch == other for batch, other in zip(resumed, expected, strict=False))
    ids = [number for pairs in (*before, *resumed) for number, _ in pairs]
    return Resumed(
        state=state,
        global_batch=global_batch,
        world_size=world_size,
        num_before=sum(map(len, before)),
        num_after=sum(map(len, resumed)),
        num_batches=max(len(expected), len(resumed)),
        num_equal_batches=num_equal,
        every_sample_once=sorted(ids) == list(range(alone.num_samples)),
    )


def _pairs(batch: Iterable[Any]) -> list[tuple[int, int]]:
    """Return the id and the checksum of each sample of a batch."""
    ids, checksums = batch
    return list(zip(ids.tolist(), checksums.tolist(), strict=True))

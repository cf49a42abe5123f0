"""Checksums of the contents of shards: the bytes of every extent, read once by a few threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.index.table import Index, own_bytes
from shoal.storage.store_protocol import Store

# A read of several extents, or of a part of a large extent. Small: many reads at once take little beside a window.
_READ_BYTES = 4 << 20
_MOST_THREADS = 8
_REMOTE_THREADS = 16  # that wait for responses, not for the processor


class _Run(NamedTuple):
    """Consecutive extents ``[first, end)`` of one shard for one read, or a single extent larger than a read."""

    shard: int
    first: int
    end: int


def extent_checksums(
    index: Index,
    paths: Sequence[str],
    *,
    store: Store,
    check: Callable[[int], None],
    progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.uint32]:
    """Return the CRC-32 of the bytes of every extent, as stored in `Index.extent_checksum`; shape (num_extents,).

    ``paths`` has one path per shard; ``check`` (`ShardCheck.check`) is called before the first read of a shard.
    ``progress`` is called in this thread with bytes done and bytes in total. At most 24 reads of 4 MiB are in memory at
    a time, 48 from a remote store. Raises `ShardError`: a shard has changed; `StorageError`: bytes could not be read.
    """
    checksums = np.zeros(index.num_extents, dtype=np.uint32)
    new_bytes = own_bytes(index)
    total_bytes, done_bytes = int(new_bytes.sum()), 0
    num_threads = min(_MOST_THREADS, os.cpu_count() or 1) if store.reads_ahead else _REMOTE_THREADS
    in_flight: deque[tuple[_Run, Future[list[int]]]] = deque()

    def finish_oldest() -> None:
        nonlocal done_bytes
        run, answer = in_flight.popleft()
        checksums[run.first : run.end] = answer.result()
        done_bytes += int(new_bytes[run.first : run.end].sum())
        if progress is not None:
            progress(done_bytes, total_bytes)

    with ThreadPoolExecutor(num_threads, thread_name_prefix="shoal-checksum") as threads:
        try:
            for run in _runs(index):
                in_flight.append((run, threads.submit(_checksums_of, index, paths, store, check, run)))
                if len(in_flight) >= 3 * num_threads:
                    finish_oldest()
            while in_flight:
                finish_oldest()
        finally:
            for _, answer in in_flight:
                answer.cancel()
    return checksums


def record_checksums(index: Index, paths: Sequence[str], *, store: Store) -> NDArray[np.uint32] | None:
    """Return the CRC-32 of the bytes of every sample, shape (num_samples,); None if the index lacks sample offsets.

    Runs of extents are read in turn, each of up to 4 MiB or a single larger extent.
    """
    if index.sample_bytes is None:
        return None
    checksums = np.zeros(index.num_samples, dtype=np.uint32)
    for run in _runs(index):
        begin, end = int(index.extent_first_byte[run.first]), int(index.extent_end_byte[run.end - 1])
        view = memoryview(store.read_range(paths[run.shard], begin, end))
        for extent in range(run.first, run.end):
            first, after = index.extent_first_sample[[extent, extent + 1]].tolist()
            at = int(index.extent_first_byte[extent]) - begin
            for sample, num_bytes in enumerate(index.sample_bytes[first:after].tolist(), first):
                checksums[sample] = crc32(view[at : at + num_bytes])
                at += num_bytes
    return checksums


def _runs(index: Index) -> Iterator[_Run]:
    shard_first = index.shard_first_extent.tolist()
    for shard in range(index.num_shards):
        first, end = shard_first[shard], shard_first[shard + 1]
        at, ends = first, index.extent_end_byte[first:end]
        while at < end:
            limit = int(index.extent_first_byte[at]) + _READ_BYTES
            after = max(at + 1, first + int(np.searchsorted(ends, limit, side="right")))
            yield _Run(shard, at, after)
            at = after


def _checksums_of(
    index: Index, paths: Sequence[str], store: Store, check: Callable[[int], None], run: _Run
) -> list[int]:
    check(run.shard)
    path = paths[run.shard]
    starts = index.extent_first_byte[run.first : run.end].tolist()
    ends = index.extent_end_byte[run.first : run.end].tolist()
    if ends[-1] - starts[0] > _READ_BYTES:
        crc = 0
        for first_byte in range(starts[0], ends[-1], _READ_BYTES):
            crc = crc32(store.read_range(path, first_byte, min(first_byte + _READ_BYTES, ends[-1])), crc)
        return [crc]
    view = memoryview(store.read_range(path, starts[0], ends[-1]))
    return [crc32(view[start - starts[0] : end - starts[0]]) for start, end in zip(starts, ends, strict=True)]

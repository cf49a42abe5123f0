"""A chunk cache shared by the workers of a loader of remote shards: each chunk comes to this machine once.

Worker ``w`` of ``m`` makes every ``m``-th batch, so all of them want nearly all chunks at about the same time.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from shoal.errors import StorageError, UsageError
from shoal.figures import format_bytes
from shoal.reading.cached_ranges import chunk_cache_of, expect_windows
from shoal.stream.iterating.iterator_specs import WorkerSpec

_log = logging.getLogger("shoal")
_LEAST_BYTES = 1 << 30
_WINDOWS = 2  # workers are not at exactly the same position


def sharing_chunks(work: WorkerSpec, *, num_workers: int) -> WorkerSpec:
    """Add a cache of this machine, for the time of the work, to work that reads remote shards and has none.

    Local files are shared by the page cache. If there is no room for a cache, workers read for themselves, and a
    warning says what that costs. They do not divide the window: to hold only a part of it, each worker would read
    chunks again, and over the network.
    """
    opened, resolved = work.opened, work.resolved
    if opened.cache is not None or opened.store.reads_ahead or not len(resolved.chunks):
        return work
    chunks = min(resolved.order.parameters.get("chunks", 0), len(resolved.chunks))
    window_bytes = chunks * resolved.index.num_bytes // len(resolved.chunks)
    asked = {"budget": max(_LEAST_BYTES, _WINDOWS * window_bytes), "keep": False}
    try:
        shared = replace(opened, cache=chunk_cache_of(asked, dataset=opened.index.fingerprint))
        expect_windows(shared, resolved, work.pipeline.partition.world_size)
    except (UsageError, StorageError) as error:
        _log.warning(
            "workers read every chunk for themselves, since they cannot share: %s; %d workers hold a window of %s "
            "each, and every chunk comes over the network up to %d times",
            error,
            num_workers,
            format_bytes(window_bytes),
            num_workers,
        )
        return work
    return replace(work, opened=shared)

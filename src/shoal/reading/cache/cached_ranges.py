"""Parsing of `shoal.open(cache=)`, and reads of shard bytes through the cache of this machine."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.figures import parse_bytes
from shoal.hints import did_you_mean
from shoal.indexing.opened_dataset import Opened
from shoal.reading.cache.large_chunks import too_large
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.schedule.units import UnitRead
from shoal.storage.chunk_cache.cache_status import record_chunk_cache
from shoal.storage.chunk_cache.chunk_cache import ChunkCache
from shoal.storage.chunk_cache.directory import shared_directory
from shoal.storage.urls import scheme_of, without_secrets

_SHARING_BYTES = 1 << 30
_SPILLED_BY_DECODED = 1.1  # size of a spill file per decoded byte: it also has offsets and checksums
_KEYS = ("directory", "budget", "keep")


def chunk_cache_of(asked: Any, *, dataset: str) -> ChunkCache | None:
    """Create the cache that ``cache=`` asks for: none, a path, True, or a dict of directory, budget and keep.

    Raises
    ------
    UsageError
        ``cache=`` is something else, or the directory cannot be used.
    """
    if asked is None or asked is False:
        return None
    given = _given(asked)
    budget = given.get("budget")
    budget_bytes = None if budget is None else parse_bytes(budget, 'cache["budget"]')
    directory = given.get("directory")
    if isinstance(directory, str) and scheme_of(directory):
        msg = f"cache= is a directory of this machine; got {without_secrets(directory)}"
        raise UsageError(msg, hint='for example cache="/nvme/cache"')
    if directory is None:  # a temporary place, kept only as long as the run lasts
        budget_bytes = budget_bytes or _SHARING_BYTES
        directory = shared_directory(budget_bytes)
        keep = given.get("keep", False)
    else:
        keep = given.get("keep", True)
    cache = ChunkCache(directory, budget_bytes=budget_bytes, dataset=dataset, keep=keep)
    record_chunk_cache(cache.path)
    return cache


def _given(asked: Any) -> Mapping[str, Any]:
    if asked is True:
        return {}
    if isinstance(asked, str | os.PathLike) and os.fspath(asked):
        return {"directory": asked}
    if isinstance(asked, Mapping):
        if unknown := [key for key in asked if key not in _KEYS]:
            msg = f"cache= has {', '.join(map(repr, unknown))}; it may have {', '.join(map(repr, _KEYS))}"
            raise UsageError(msg, hint=did_you_mean(unknown[0], _KEYS).rstrip())
        if not isinstance(asked.get("keep", True), bool):
            raise UsageError(f'cache["keep"] is True or False; got {asked["keep"]!r}')
        directory = asked.get("directory")
        if directory is None or (isinstance(directory, str | os.PathLike) and os.fspath(directory)):
            return asked
    msg = f"cache= is a directory, True, or a dict; got {asked!r}"
    raise UsageError(msg, hint='for example cache={"directory": "/nvme/cache", "budget": "200GiB"}')


def read_cached(
    opened: Opened, byte_range: tuple[int, int, int], fetch: Callable[[], bytes], *, again: bool = False
) -> bytes:
    """Return the bytes at ``byte_range`` (shard, first byte, end byte) from the cache, else from ``fetch``.

    With ``again`` they are fetched anew and replace those in the cache. The shard must have been checked: bytes are
    cached for the version of the shard that this process saw. Bytes of shards without a version are never cached, since
    nothing would tell when they are stale.
    """
    cache = opened.cache
    if cache is None:
        return fetch()
    shard, first_byte, end_byte = byte_range
    if not opened.check.version(shard):
        cache.counts.num_bypasses += 1
        return fetch()
    read = cache.read_again if again else cache.read
    return read(range_key(opened, byte_range), end_byte - first_byte, fetch)


def is_cached(opened: Opened, read: UnitRead) -> bool:
    """True if the cache has a file for these bytes."""
    byte_range = (read.shard, read.first_byte, read.end_byte)
    return opened.cache is not None and opened.cache.has(range_key(opened, byte_range))


def range_key(opened: Opened, byte_range: tuple[int, int, int]) -> str:
    """Return the cache key of these bytes of a shard, in the version that this process saw."""
    shard, first_byte, end_byte = byte_range
    size = int(opened.index.shard_bytes[shard])
    return "\n".join(map(str, (opened.paths[shard], opened.check.version(shard), size, first_byte, end_byte)))


def expect_windows(
    opened: Opened, resolved: ResolvedOrder, world_size: int, memory_limit_bytes: int | None = None
) -> None:
    """Tell the cache how many bytes the windows of this machine's ranks hold at a time.

    Raises
    ------
    UsageError
        The budget of the cache is smaller.
    """
    if opened.cache is None:
        return
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    ranks_here = min(world_size, int(local)) if local.isdecimal() and int(local) else 1
    table = resolved.chunks
    chunks = min(resolved.order.parameters.get("chunks", 0), len(table))
    window_bytes = chunks * resolved.index.num_bytes / max(1, len(table))
    largest_bytes = 0.0
    if resolved.spills:  # spilled chunks are in the cache decoded
        stored, is_spilled = table.end_byte - table.first_byte, too_large(resolved, memory_limit_bytes)
        if opened.store.reads_ahead:  # those of a remote store are there as stored, too; local ones are not
            stored = np.zeros_like(stored)
        decoded = np.where(is_spilled, table.decoded_bytes * _SPILLED_BY_DECODED + stored, 0)
        window_bytes += chunks * float(decoded.sum()) / max(1, len(table))
        # Two of the largest may be in use at a time, however rare they are.
        largest_bytes = float(np.sort(decoded)[-2:].sum()) * world_size / ranks_here
        window_bytes = max(window_bytes, largest_bytes)
    try:
        opened.cache.expect(math.ceil(window_bytes * ranks_here / world_size))
    except UsageError as error:
        if largest_bytes:
            here_bytes = math.ceil(largest_bytes * ranks_here / world_size)
            error.hint += f"; of that, the largest chunks take {here_bytes:,}, decoded, whatever the window: "
            error.hint += "`shoal repack` makes smaller row groups or shards"
        raise


def cache_counts(caches: Iterable[ChunkCache | None], of_workers: dict[str, int] | None = None) -> dict[str, int]:
    """Return the counts of caches for `Dataset.stats`, of this process and its workers; empty if there is no cache."""
    distinct = {id(cache): cache for cache in caches if cache is not None}.values()
    counts = [*map(_own_counts, distinct), of_workers or {}]
    return {name: sum(each.get(name, 0) for each in counts) for name in dict.fromkeys(itertools.chain(*counts))}


def _own_counts(cache: ChunkCache) -> dict[str, int]:
    counts, spills = cache.counts, cache.spills
    return {
        "num_cache_hits": counts.num_hits,
        "num_cache_fills": counts.num_fills,
        "num_cache_bypasses": counts.num_bypasses,
        "num_cache_failures": cache.num_failures,
        "num_cache_damaged": counts.num_damaged,
        "num_spills": spills.num_fills,
        "spilled_bytes": spills.num_bytes,
        "num_spill_reads": spills.num_reads,
        "num_spill_bypasses": spills.num_bypasses,
    }

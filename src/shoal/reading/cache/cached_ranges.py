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
from shoal.formats.shard_format import Format
from shoal.hints import did_you_mean
from shoal.indexing.opened_dataset import Opened
from shoal.reading.cache.large_chunks import too_large
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.schedule.memory_division import local_ranks
from shoal.reading.schedule.units import UnitRead
from shoal.storage.chunk_cache.cache_status import record_chunk_cache
from shoal.storage.chunk_cache.chunk_cache import ChunkCache
from shoal.storage.chunk_cache.directory import shared_directory
from shoal.storage.urls import scheme_of, without_secrets

_SHARING_BYTES = 1 << 30
_SPILLED_BY_DECODED = 1.1  # size of a spill file per decoded byte: it also has offsets and checksums
_KEYS = ("directory", "budget", "keep")


def chunk_cache_of(cache: Any, *, dataset: str) -> ChunkCache | None:
    """Create the cache for the argument ``cache=``: None, a path, True, or a dict of directory, budget and keep.

    Raises `UsageError`: the argument is something else, or the directory cannot be used.
    """
    if cache is None or cache is False:
        return None
    settings = _settings(cache)
    budget, directory = settings.get("budget"), settings.get("directory")
    budget_bytes = None if budget is None else parse_bytes(budget, 'cache["budget"]')
    if isinstance(directory, str) and scheme_of(directory):
        msg = f"cache= is a directory of this machine; got {without_secrets(directory)}"
        raise UsageError(msg, hint='for example cache="/nvme/cache"')
    keep = settings.get("keep", directory is not None)  # a temporary directory lasts as long as the run
    if directory is None:
        budget_bytes = budget_bytes or _SHARING_BYTES
        directory = shared_directory(budget_bytes)
    chunk_cache = ChunkCache(directory, budget_bytes=budget_bytes, dataset=dataset, keep=keep)
    record_chunk_cache(chunk_cache.path)
    return chunk_cache


def check_cacheable(format: Format) -> None:  # noqa: A002
    """Raise `UsageError` if a chunk cache would stay empty, because the format reads by itself."""
    if not format.needs_bytes:
        msg = f"cache= keeps the bytes of shards, but the library of {format.name} reads its samples by itself"
        raise UsageError(msg, hint="leave out cache=, or copy the table to a local disk")


def _settings(cache: Any) -> Mapping[str, Any]:
    if cache is True:
        return {}
    if isinstance(cache, str | os.PathLike) and os.fspath(cache):
        return {"directory": cache}
    if isinstance(cache, Mapping):
        if unknown := [key for key in cache if key not in _KEYS]:
            msg = f"cache= has {', '.join(map(repr, unknown))}; it may have {', '.join(map(repr, _KEYS))}"
            raise UsageError(msg, hint=did_you_mean(unknown[0], _KEYS).rstrip())
        if not isinstance(cache.get("keep", True), bool):
            raise UsageError(f'cache["keep"] is True or False; got {cache["keep"]!r}')
        directory = cache.get("directory")
        if directory is None or (isinstance(directory, str | os.PathLike) and os.fspath(directory)):
            return cache
    msg = f"cache= is a directory, True, or a dict; got {cache!r}"
    raise UsageError(msg, hint='for example cache={"directory": "/nvme/cache", "budget": "200GiB"}')


def read_cached(
    opened: Opened, byte_range: tuple[int, int, int], fetch: Callable[[], bytes], *, again: bool = False
) -> bytes:
    """Return the bytes at ``byte_range`` (shard, first byte, end byte) from the cache, else from ``fetch``.

    With ``again``, fetch the bytes again and replace them in the cache. The caller checks the shard before: bytes are
    cached for the version that this process saw. A shard without a version is never cached, since nothing tells when
    its bytes are stale.
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
    """Tell the cache how many bytes the windows of the ranks on this machine hold at a time.

    Raises `UsageError`: the budget of the cache is smaller.
    """
    if opened.cache is None:
        return
    num_local = local_ranks(world_size)
    table = resolved.chunks
    chunks = min(resolved.order.parameters.get("chunks", 0), len(table))
    window_bytes = chunks * resolved.index.num_bytes / max(1, len(table))
    largest_bytes = 0.0
    if resolved.spills:  # the cache has spilled chunks decoded, and from a remote store as stored, too
        stored = 0 if opened.store.reads_ahead else table.end_byte - table.first_byte
        spilled = table.decoded_bytes * _SPILLED_BY_DECODED + stored
        spilled_bytes = np.where(too_large(resolved, memory_limit_bytes), spilled, 0)
        window_bytes += chunks * float(spilled_bytes.sum()) / max(1, len(table))
        # The two largest may be in use at a time, however rare they are.
        largest_bytes = float(np.sort(spilled_bytes)[-2:].sum()) * world_size / num_local
        window_bytes = max(window_bytes, largest_bytes)
    try:
        opened.cache.expect(math.ceil(window_bytes * num_local / world_size))
    except UsageError as error:
        if largest_bytes:
            local_bytes = math.ceil(largest_bytes * num_local / world_size)
            error.hint += f"; the largest chunks alone take {local_bytes:,} of that, decoded, at any window size: "
            error.hint += "`shoal repack` makes smaller row groups or shards"
        raise


def cache_counts(caches: Iterable[ChunkCache | None], of_workers: dict[str, int] | None = None) -> dict[str, int]:
    """Return the counts of caches for `Dataset.stats`, of this process and its workers; empty if there is no cache."""
    distinct = {id(cache): cache for cache in caches if cache is not None}.values()
    counts = [*map(_own_counts, distinct), of_workers or {}]
    return {name: sum(count.get(name, 0) for count in counts) for name in dict.fromkeys(itertools.chain(*counts))}


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

"""All samples of a shard's bytes, read as a stream reads them."""

from __future__ import annotations

import itertools

from shoal.formats.format_registry import format_named
from shoal.formats.shard_format import Sample
from shoal.storage.memory_store import MemoryStore

_numbers = itertools.count()


def read_back(format_name: str, data: bytes) -> list[Sample]:
    """The samples of the shard, in their order."""
    import shoal

    suffix = format_named(format_name).suffixes[0]
    url = f"memory://read-back/{next(_numbers)}{suffix}"
    store = MemoryStore()
    store.put(url, data)
    try:
        dataset = shoal.open(url)
        return [dataset[number] for number in range(len(dataset))]
    finally:
        store.delete(url)

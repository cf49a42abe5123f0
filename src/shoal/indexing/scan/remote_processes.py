"""Several processes that scan remote shards: how many, how many requests of each, and the store that they read.

Threads of one process parse some 300 MB/s of small samples, whatever the network brings, since they take turns.
"""

from __future__ import annotations

import pickle
import pickletools
from typing import Any

from shoal.indexing.scan.remote_scans import NUM_REQUESTS
from shoal.storage.http.http_store import HttpStore
from shoal.storage.objects.object_store import ObjectStore
from shoal.storage.retry import RetryingStore

# From so many bytes or shards on, several processes scan remote shards, if there are so many for each: starting them
# takes half a second, and a shard of nothing 0.7 ms.
MUCH_BYTES, MANY_SHARDS, SHARDS_EACH = 1 << 30, 8192, 8
# Requests in flight of all processes, and the least of each.
_MOST_REQUESTS, _LEAST_REQUESTS_EACH = 128, 8

_OURS = ("shoal", "builtins", "__builtin__", "copyreg", "copy_reg")


def num_remote_processes(most: int, *, num_shards: int, num_bytes: int) -> int:
    """Return how many processes scan remote shards if there may be ``most``; 0 if threads of this one do."""
    number = min(most, num_shards // SHARDS_EACH, _MOST_REQUESTS // _LEAST_REQUESTS_EACH)
    is_much = num_bytes >= MUCH_BYTES or num_shards >= MANY_SHARDS
    return number if number > 1 and is_much else 0


def num_requests_in_all(num_processes: int) -> int:
    """Return the number of requests in flight of so many processes; 0 means threads of this one."""
    return max(1, num_processes) * num_requests_each(num_processes)


def num_requests_each(num_processes: int) -> int:
    """Return the number of requests in flight of each of so many processes."""
    return min(NUM_REQUESTS, _MOST_REQUESTS // max(1, num_processes))


def store_for_processes(store: object) -> bytes | None:
    """Return a pickled store for processes that import nothing of the user's; None if this one is no use elsewhere.

    Objects in memory are in one process alone, and so are the filesystems and credential providers that users pass.
    """
    if not isinstance(store.store if isinstance(store, RetryingStore) else store, HttpStore | ObjectStore):
        return None
    try:
        data = pickle.dumps(store, protocol=2)  # the last one whose operation GLOBAL names what is imported
    except (pickle.PicklingError, TypeError, AttributeError):
        return None
    modules = {_top_of(argument) for operation, argument, _ in pickletools.genops(data) if operation.name == "GLOBAL"}
    return data if modules <= {*_OURS} else None


def _top_of(argument: Any) -> str:
    return str(argument).partition(" ")[0].partition(".")[0]

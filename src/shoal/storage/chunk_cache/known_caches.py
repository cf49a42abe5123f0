"""The chunk caches that this user has, so that they can be shown and cleared: a file with the path of each."""

# Paths are strings here, as they are for every other store.
# ruff: noqa: PTH107, PTH110, PTH112, PTH118, PTH123, PTH208

from __future__ import annotations

import contextlib
import hashlib
import os

from shoal.storage.atomic.whole_files import write_whole
from shoal.storage.index_cache.place import cache_directory

_FOLDER = "chunk-caches"


def remember(path: str) -> None:
    """Record that there is a cache in the folder ``path``; if that cannot be written, it is shown only by its name."""
    name = hashlib.blake2b(os.fsencode(path), digest_size=8).hexdigest()
    note = os.path.join(cache_directory(), _FOLDER, name)
    with contextlib.suppress(OSError):
        if not os.path.exists(note):
            write_whole(note, [os.fsencode(path)], durable=False)


def known_caches() -> list[str]:
    """Return the folders of all recorded caches that still exist, sorted; records of others are deleted."""
    folder, found = os.path.join(cache_directory(), _FOLDER), []
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith("."):
                continue
            note = os.path.join(folder, name)
            with contextlib.suppress(OSError), open(note, "rb") as file:
                path = os.fsdecode(file.read())
                if os.path.isdir(path):
                    found.append(path)
                else:
                    os.remove(note)
    return sorted(found)

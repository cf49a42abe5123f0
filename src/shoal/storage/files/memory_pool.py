"""Anonymous memory mappings, reused as soon as nothing refers to them.

Buffers of many sizes fragment the heap of a process: the heap takes unpredictably more memory than the buffers. A
new mapping for each buffer would cost a fifth of the CPU time of reading: the system zeroes its pages one by one.
"""

from __future__ import annotations

import mmap
import sys

_MOST_TRIED = 256
_SPARE_PART = 16  # memory is reused if it is larger than needed by up to one 16th
# Without the GIL, a count of references may be out of date when it is used.
_COUNTS = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
_UNUSED_REFERENCES = 3  # a list and a name here, and the argument of `sys.getrefcount`

# Private to this process; only systems that need these flags have them.
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}


class MemoryPool:
    """Memory mappings, reused as soon as nothing refers to them; not thread-safe, used by the consumer alone.

    >>> pool = MemoryPool()
    >>> first = memoryview(pool.take(200_000)); second = pool.take(200_000)
    >>> first.obj is second
    False
    >>> del second; pool.take(200_000) is first.obj, pool.num_mapped
    (False, 2)
    """

    def __init__(self) -> None:
        self._known: list[mmap.mmap] = []  # the oldest first: chunks are released roughly in order
        self.num_mapped = 0

    def take(self, num_bytes: int) -> mmap.mmap:
        """Return memory of at least ``num_bytes`` bytes, at least one, with arbitrary contents.

        A view refers to its memory, and so does an array or a slice of the view: memory without references is free.
        """
        known = self._known
        index = 0
        while _COUNTS and index < min(len(known), _MOST_TRIED):
            memory = known[index]
            if sys.getrefcount(memory) > _UNUSED_REFERENCES:
                index += 1
                continue
            del known[index]
            if num_bytes <= len(memory) <= num_bytes + num_bytes // _SPARE_PART:
                known.append(memory)
                return memory
            # A mapping of the wrong size goes back to the system.
        memory = mmap.mmap(-1, num_bytes, **_PRIVATE)
        self.num_mapped += 1
        if _COUNTS:
            known.append(memory)
        return memory

    def clear(self) -> None:
        """Forget all mappings: each is freed when nothing else refers to it."""
        self._known.clear()

"""Memory of the system's, used again as soon as nobody can see it.

Where answers come and go, the heap of a process is left with holes that do not fit the next one: its memory is more
than what is held, by another number each time. New mappings for each would cost a fifth of the processor time of
reading, for pages that come zeroed one by one.
"""

from __future__ import annotations

import mmap
import sys

__all__ = ["Memories"]

_MOST_LOOKED_AT = 256
_SPARE_PART = 16  # of what is wanted: memory is used again that is up to so much larger
# Where threads run side by side, a count of references is not what it was when it is looked at.
_COUNTS = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
_REFERENCES_OF_NOBODY = 3  # a list and a name here, and the argument of what counts them


class Memories:
    """Memory from the system, used again as soon as nobody refers to it; not safe for threads, the consumer has it.

    >>> memories = Memories()
    >>> first = memoryview(memories.take(200_000)); second = memories.take(200_000)
    >>> first.obj is second
    False
    >>> del second; memories.take(200_000) is first.obj, memories.num_mapped
    (False, 2)
    """

    def __init__(self) -> None:
        self._known: list[mmap.mmap] = []  # the longest in use first: chunks are let go about as they came
        self.num_mapped = 0

    def take(self, num_bytes: int) -> mmap.mmap:
        """Memory of at least so many bytes, one at least, with anything in it.

        A view of it refers to it, and an array or a slice of the view does: so nobody can see it that counts for none.
        """
        known = self._known
        place = 0
        while _COUNTS and place < min(len(known), _MOST_LOOKED_AT):
            memory = known[place]
            if sys.getrefcount(memory) > _REFERENCES_OF_NOBODY:
                place += 1
                continue
            del known[place]
            if num_bytes <= len(memory) <= num_bytes + num_bytes // _SPARE_PART:
                known.append(memory)
                return memory
            # Else it is of another size, and goes back to the system.
        memory = mmap.mmap(-1, num_bytes, **_PRIVATE)
        self.num_mapped += 1
        if _COUNTS:
            known.append(memory)
        return memory

    def clear(self) -> None:
        """Know of none any more: each goes when nobody else refers to it."""
        self._known.clear()


# Of this process alone; the system where that has to be said is the one where it can be.
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}

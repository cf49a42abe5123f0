"""The memory of a batch is kept for the next one, where the allocator would give it back to the system in between.

glibc gives the top of its heap back when more lies free there than twice the largest mapping that was ever freed, 128
KiB at first (``mallopt(3)``, M_TRIM_THRESHOLD and M_MMAP_THRESHOLD). Values below that size lie in the heap: each batch
of them is given back and comes again page by page, zeroed. With 64 values of 100 KB that took half of the time.
"""

from __future__ import annotations

__all__ = ["keep_for_next"]

_MOST_BYTES = (32 << 20) - (64 << 10)  # a mapping of 32 MiB moves no threshold, and has a head besides these bytes
_LEAST_BYTES = 128 << 10


def keep_for_next(num_bytes: int) -> None:
    """Let so much memory that is free stay with the process; O(1), and a hint: other allocators do as they like."""
    if num_bytes > _LEAST_BYTES:
        bytes(min(num_bytes, _MOST_BYTES))  # a mapping of zeros that nobody touches, freed at once

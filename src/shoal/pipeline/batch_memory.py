"""A hint to keep the memory of a batch for the next one; the allocator would return it to the system in between.

glibc trims the top of its heap when more than twice the largest mapping ever freed lies free there, 128 KiB at first
(``mallopt(3)``, M_TRIM_THRESHOLD and M_MMAP_THRESHOLD). Values below that size live in the heap: each batch of them is
returned and faulted in again page by page, zeroed. With 64 values of 100 KB that took half of the time.
"""

from __future__ import annotations

_MOST_BYTES = (32 << 20) - (64 << 10)  # a mapping of 32 MiB changes no threshold, and has a header besides these bytes
_LEAST_BYTES = 128 << 10


def keep_for_next(num_bytes: int) -> None:
    """Ask the allocator to keep so much free memory in the process; O(1), and allocators may ignore it."""
    if num_bytes > _LEAST_BYTES:
        bytes(min(num_bytes, _MOST_BYTES))  # a mapping of zeros that is never touched, freed at once

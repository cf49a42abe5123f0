"""Grouping of reads that are requested together: as many as make a group, as soon as there is room for one.

Shared by reading and by planning, so that a plan predicts the actual requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shoal.reading.schedule.memory_budget import MemoryBudget
from shoal.reading.schedule.units import UnitRead


def groups_with_room(
    ledger: MemoryBudget, group_bytes: int, *, first: Callable[[], UnitRead | None], take: Callable[[], UnitRead]
) -> Iterator[list[UnitRead]]:
    """Yield groups of reads while there is room; the caller reserves each before the next one is formed.

    ``first`` peeks at the next read, None if there is none for now; ``take`` removes it. A group ends with the read
    that makes it ``group_bytes`` or more, or before the one for which there is no room.
    """
    while ledger.has_room(group_bytes):
        group: list[UnitRead] = []
        num_bytes, room_bytes = 0, ledger.room_bytes
        while num_bytes < group_bytes and (read := first()) is not None and num_bytes + read.num_bytes <= room_bytes:
            group.append(take())
            num_bytes += read.num_bytes
        if not group:
            return
        yield group

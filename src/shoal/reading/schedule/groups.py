"""Which reads are asked for together: as many as make a group, as soon as there is room for one.

Used by who reads and by who plans, so that a plan says of requests what will be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shoal.reading.schedule.memory_budget import MemoryBudget
from shoal.reading.schedule.units import UnitRead

__all__ = ["groups_with_room"]


def groups_with_room(
    ledger: MemoryBudget, group_bytes: int, *, first: Callable[[], UnitRead | None], take: Callable[[], UnitRead]
) -> Iterator[list[UnitRead]]:
    """The next groups of reads, each to be reserved before the next one is formed, while there is room for a group.

    ``first`` looks at the read that would be next, None where there is none for now; ``take`` takes it. A group ends
    with the read that makes it ``group_bytes`` or more, or before the one for which there is no room.
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

"""The rank of a process among the processes of its job."""

from __future__ import annotations

from typing import NamedTuple


class JobRank(NamedTuple):
    """The rank of a process, the number of ranks in its job, and the number of ranks on its machine."""

    rank: int
    world_size: int
    local_size: int

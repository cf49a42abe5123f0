"""The rank of a process among the processes of its job."""

from __future__ import annotations

from typing import NamedTuple


class JobRank(NamedTuple):
    """The rank of a process, the number of ranks in its job, and the number of ranks on its machine."""

    rank: int
    world_size: int
    local_size: int


def local_size_of(job_rank: JobRank | None) -> int:
    """Return the number of ranks on this machine; 1 without a job."""
    return 1 if job_rank is None else job_rank.local_size

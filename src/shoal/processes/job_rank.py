"""The rank of a process among the processes of its job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

# Ranks on this machine, by torchrun, Open MPI, MVAPICH, Intel MPI and SLURM.
LOCAL_SIZES = (
    "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
    "SLURM_NTASKS_PER_NODE",
)  # fmt: skip


class JobRank(NamedTuple):
    """The rank of a process, the number of ranks in its job, and the number of ranks on its machine."""

    rank: int
    world_size: int
    local_size: int


def local_size_of(job_rank: JobRank | None) -> int:
    """Return the number of ranks on this machine; 1 without a job."""
    return 1 if job_rank is None else job_rank.local_size


def is_alone_on_machine(job_rank: JobRank, environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if a launcher says that all ranks of the job are on this machine."""
    is_told = any(environment.get(name, "").isdecimal() for name in LOCAL_SIZES)
    return is_told and job_rank.local_size == job_rank.world_size

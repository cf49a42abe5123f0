"""Four ranks of a job: those of a tensor parallel group share samples, and one that was started differently is found.

Usage: torchrun --nproc-per-node 4 agree_torch.py DATA
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from tests.integration.laws.notes import GLOBAL_BATCH, dataset
from torch.distributed.device_mesh import init_device_mesh

import shoal
import shoal.torch
from shoal.errors import UsageError


def gathered(own: Any, group: Any = None) -> list[Any]:
    """What every rank of a group has."""
    everybody: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everybody, own, group=group)
    return everybody


def check_sharing(ds: shoal.Dataset, mesh: Any, whole: list[list[int]]) -> None:
    """Ranks of a tensor parallel group have the same batches, and groups share the global ones out."""
    loader = shoal.torch.DataLoader(ds)
    shoal.torch.compare_ranks(loader)
    batches = [batch["ids"].tolist() for batch in loader]
    assert gathered(batches, mesh.get_group("tp")) == [batches] * 2
    parts = gathered(batches, mesh.get_group("dp"))
    assert parts[0] != parts[1]
    assert [sorted(one + other) for one, other in zip(*parts, strict=True)] == whole


def refusal(ask: Callable[[], object]) -> str:
    """What an error says that must come."""
    try:
        ask()
    except UsageError as error:
        return str(error)
    return "nobody refused"


def main() -> None:
    dist.init_process_group("gloo")
    rank, ds = dist.get_rank(), dataset(sys.argv[1], remainder="drop")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    whole = [sorted(ds.ids(0, at, at + GLOBAL_BATCH).tolist()) for at in range(0, 468, GLOBAL_BATCH)]
    check_sharing(shoal.torch.partition(ds, mesh, "dp"), mesh, whole)
    check_sharing(ds.partition(replicate=2), mesh, whole)  # ranks 0 and 1, 2 and 3: the same groups as in the mesh
    other = shoal.open(sys.argv[1]).shuffle(seed=12 if rank == 2 else 11).batch(4)
    assert "seed: 11 on ranks 0, 1, 3, but 12 on rank 2" in refusal(lambda: shoal.torch.compare_ranks(other))
    assert gathered(torch.ones(1).item()) == [1.0] * 4  # all of them are here, and none waits
    os.write(1, f"rank {rank} agrees\n".encode())  # at once: four processes share the pipe
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

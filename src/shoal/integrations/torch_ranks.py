"""What ranks of a torch job must agree on, compared once; and which ranks share samples, from a device mesh."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed

from shoal.errors import UsageError
from shoal.integrations.torch_loader import DataLoader
from shoal.stream.dataset import Dataset

__all__ = ["compare_ranks", "partition"]


def partition(dataset: Dataset, mesh: Any, dims: str | Sequence[str] | None = None) -> Dataset:
    """The part of this process in a device mesh: ranks that differ in ``dims`` get different samples.

    Ranks that differ in other dimensions only (tensor, pipeline, sequence parallel ones) get the same samples.

    Parameters
    ----------
    mesh
        A `torch.distributed.device_mesh.DeviceMesh` that has this process.
    dims
        The data parallel dimensions by name, outermost first; may be left out where the mesh has one dimension.

    Raises
    ------
    UsageError
        The mesh has no such dimension, or this process is not in it.
    """
    names = tuple(mesh.mesh_dim_names or ())
    if dims is None and mesh.ndim == 1:
        chosen = [0]
    else:
        wanted = [dims] if isinstance(dims, str) else list(dims or ())
        if not wanted or any(name not in names for name in wanted):
            msg = (
                f"the data parallel dimensions {dims!r} of a mesh that has {', '.join(map(repr, names)) or 'no names'}"
            )
            raise UsageError(msg, hint='name them: partition(ds, mesh, "dp") or partition(ds, mesh, ["pod", "dp"])')
        chosen = [names.index(name) for name in wanted]
    here = mesh.get_coordinate()
    if here is None:
        msg = "this process is not in the mesh"
        raise UsageError(msg, hint="iterate in the processes of the mesh only")
    rank, world_size = 0, 1
    for dim in chosen:
        rank = rank * mesh.size(dim) + here[dim]
        world_size *= mesh.size(dim)
    return dataset.partition(rank=rank, world_size=world_size)


def compare_ranks(source: Dataset | DataLoader, group: Any = None) -> None:
    """Compare what all ranks are about to train on, once; call it on every rank, before the loop.

    Compared are dataset, seed, order, epoch, position, batch size and the number of ranks; and that each part of the
    samples is somebody's, the same number of times. One collective call with some hundred bytes from each rank; without
    a process group there is nothing to compare.

    Raises
    ------
    UsageError
        Ranks differ: on all of them, naming the ranks, the fields and both sides.
    """
    distributed: Any = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return
    dataset = source.dataset if isinstance(source, DataLoader) else source
    run = dataset._pass()  # noqa: SLF001  # what the next iterator does, before it begins
    shares = run.work.recipe.partition
    state = dataset.state_dict()
    told = {
        "dataset": state["index"],
        "seed": state["seed"],
        "order": state["order"],
        "epoch": run.epoch,
        "position": run.start,
        "global batch": shares.global_batch if shares.batched else "none",
        "remainder": shares.remainder,
        "world size": shares.world_size,
    }
    everybody: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(everybody, (told, run.work.recipe.rank), group=group)
    _compare([fields for fields, _ in everybody])
    _check_parts([part for _, part in everybody], shares.world_size)


def _compare(told: Sequence[Mapping[str, Any]]) -> None:
    differences = []
    for name in told[0]:
        sides: dict[str, list[int]] = {}
        for rank, fields in enumerate(told):
            sides.setdefault(str(fields[name]), []).append(rank)
        if len(sides) > 1:
            texts = [f"{value} on {_ranks(ranks)}" for value, ranks in sides.items()]
            differences.append(f"{name}: {', but '.join(texts)}")
    if differences:
        msg = f"the ranks of this job would train on different things; {'; '.join(differences)}"
        raise UsageError(msg, hint="open, shuffle and batch alike on all ranks, and load the same state on all")


def _check_parts(parts: Sequence[int], world_size: int) -> None:
    counts = Counter(parts)
    missing = [part for part in range(world_size) if part not in counts]
    if missing or len(set(counts.values())) > 1:
        owners = {part: [rank for rank, own in enumerate(parts) if own == part] for part in sorted(counts)}
        told = ", ".join(f"{part} is had by {_ranks(ranks)}" for part, ranks in list(owners.items())[:4])
        lost = f"; nobody has {missing[:8]}" if missing else ""
        msg = f"the samples of this job are in {world_size} parts, of which {told}{lost}"
        hint = "each part must be had by equally many ranks; look at .partition() and the launcher's variables"
        raise UsageError(msg, hint=hint)


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"

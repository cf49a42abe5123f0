"""The part of a rank in a device mesh, and the comparison of the settings of all ranks of a torch job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed

from shoal.errors import UsageError
from shoal.integrations.torch.torch_loader import DataLoader
from shoal.stream.dataset import Dataset
from shoal.stream.ranks import check_agreement


def partition(
    dataset: Dataset,
    mesh: Any,
    dims: str | Sequence[str] | None = None,
    *,
    context: str | None = None,
    context_slices: str = "zigzag",
) -> Dataset:
    """Return the part of this process in a device mesh: ranks that differ in ``dims`` get different samples.

    Ranks that differ only in ``context`` get slices of the same sequences. Ranks that differ only in other dimensions
    (tensor, pipeline, sequence parallel) get the same batches.

    Parameters
    ----------
    mesh
        A `torch.distributed.device_mesh.DeviceMesh` that contains this process.
    dims
        The data parallel dimensions by name, outermost first; may be omitted if the mesh has one dimension.
    context
        The context parallel dimension by name.
    context_slices
        The kind of slices, as in `Dataset.partition`.

    Raises
    ------
    UsageError
        The mesh has no such dimension, or this process is not in it.

    Examples
    --------
    >>> from torch.distributed.device_mesh import init_device_mesh
    >>> mesh = init_device_mesh("cuda", (16, 8), mesh_dim_names=("dp", "tp"))  # doctest: +SKIP
    >>> loader = shoal.torch.DataLoader(shoal.torch.partition(ds, mesh, "dp").batch(32))  # doctest: +SKIP
    >>> mesh = init_device_mesh("cuda", (4, 4, 8), mesh_dim_names=("dp", "cp", "tp"))  # doctest: +SKIP
    >>> packed = docs.pack_sequences(65_536).batch(1)
    >>> part = shoal.torch.partition(packed, mesh, "dp", context="cp")  # doctest: +SKIP
    """
    names = tuple(mesh.mesh_dim_names or ())
    if dims is None and mesh.ndim == 1:
        chosen = [0]
    else:
        dim_names = [dims] if isinstance(dims, str) else list(dims or ())
        if not dim_names or any(name not in names for name in dim_names):
            msg = f"unknown data parallel dimensions {dims!r}; the mesh has {', '.join(map(repr, names)) or 'no names'}"
            raise UsageError(msg, hint='name them: partition(ds, mesh, "dp") or partition(ds, mesh, ["pod", "dp"])')
        chosen = [names.index(name) for name in dim_names]
    if context is not None and (context not in names or names.index(context) in chosen):
        msg = f"context={context!r} must be a dimension of the mesh beside {dims!r}; the mesh has "
        raise UsageError(
            f"{msg}{', '.join(map(repr, names)) or 'no names'}", hint='partition(ds, mesh, "dp", context="cp")'
        )
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise UsageError("this process is not in the mesh", hint="iterate only in the processes of the mesh")
    rank, world_size = 0, 1
    for dim in chosen if context is None else [*chosen, names.index(context)]:
        rank = rank * mesh.size(dim) + coordinate[dim]
        world_size *= mesh.size(dim)
    num_slices = 1 if context is None else mesh.size(names.index(context))
    return dataset.partition(
        rank=rank, world_size=world_size, context_parallel=num_slices, context_slices=context_slices
    )


def compare_ranks(source: Dataset | DataLoader, group: Any = None) -> None:
    """Check once, on every rank before the loop, that all ranks will train on the same data.

    The check compares dataset, seed, order, epoch, position, batch size and the number of ranks, and makes sure that
    each part of the samples has an owner, and that all parts have equally many owners. The check is one collective call
    with some hundred bytes from each rank; without a process group, no call is made.

    Raises
    ------
    UsageError
        Ranks differ; raised on all ranks, with the ranks, the fields and both values.

    Examples
    --------
    >>> shoal.torch.compare_ranks(loader)  # raises an error on all ranks if they differ
    """
    distributed: Any = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return
    dataset = source.dataset if isinstance(source, DataLoader) else source
    own = dataset.stream.iterator_spec().settings()
    settings: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(settings, own, group=group)
    check_agreement(settings)

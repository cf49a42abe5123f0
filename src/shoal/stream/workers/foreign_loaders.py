"""Checks against loaders of other libraries that would silently read the wrong samples from a dataset.

A DataLoader treats any object with ``len`` and ``[]`` as a list, and would ignore the shuffle and the rank; each worker
would iterate over the whole dataset; and wrappers that deal samples to ranks would deal a rank's share again. torch is
inspected only if other code has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

from shoal.errors import UsageError
from shoal.stream.dataset_spec import DatasetSpec

_HINT = (
    "shoal.torch.DataLoader(ds.batch(...), num_workers=...) is exact; for a loader of another library use "
    "shoal.torch.IterableDataset(ds)"
)

# Wrappers that give each rank a part of an iterable; the iterable must be identical on all ranks.
_DEALERS = {"BatchSamplerShard", "DataLoaderDispatcher", "IterableDatasetShard"}


def refuse_as_list(depth: int = 2) -> None:
    """Raise `UsageError` if torch's DataLoader requests a sample by id."""
    caller = sys._getframe(depth).f_globals.get("__name__", "")  # noqa: SLF001  # there is no other way to know
    if caller.startswith("torch.utils.data"):
        msg = "torch's DataLoader was given a shoal dataset, and reads it like a list: in storage order, on every rank"
        raise UsageError(msg, hint=_HINT)


def refuse_followed(spec: DatasetSpec, loader: str) -> None:
    """Raise `UsageError` if each worker of a loader would look for new shards by itself, and see other shards."""
    if any(spec.follows):
        msg = (
            f"open(follow=True) looks for new shards at the beginning of each epoch, but each worker of {loader} would "
        )
        msg += "look by itself, and samples would be lost or repeated"
        hint = "shoal.torch.DataLoader(ds, num_workers=...) looks once for all workers; or leave out follow=, and make "
        raise UsageError(msg, hint=f"{hint}the loader of ds.extended() anew between epochs")


def refuse_in_worker() -> None:
    """Raise `UsageError` in a worker process of torch's DataLoader: every worker would yield every sample."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and torch_data.get_worker_info() is not None:
        msg = "a shoal dataset was iterated in a worker of torch's DataLoader: each worker would yield every sample"
        raise UsageError(msg, hint=_HINT)


def refuse_second_dealing(world_size: int) -> None:
    """Raise `UsageError` if a wrapper that deals samples to ranks iterates over the share of a single rank.

    The wrapper is among the callers; a forked worker still has the stack of its parent.
    """
    if world_size == 1:
        return
    for frame in _callers():
        kind, library = type(frame.f_locals.get("self")).__name__, frame.f_globals.get("__name__", "").partition(".")[0]
        if kind in _DEALERS and library in {"accelerate", "transformers"}:
            msg = f"{library}'s {kind} deals samples to ranks, but this dataset already yields the part of one of "
            msg += f"{world_size} ranks: most samples would be lost"
            hint = "use shoal.torch.DataLoader: wrappers leave it alone; or .partition(rank=0, world_size=1): every "
            raise UsageError(msg, hint=hint + "rank reads everything")


def refuse_batches_of_batches() -> None:
    """Raise `UsageError` if torch's DataLoader is about to batch a dataset that has batches already."""
    for frame in _callers():
        if frame.f_code.co_name == "__init__" and frame.f_globals.get("__name__", "").startswith("torch"):
            if frame.f_locals.get("auto_collation"):
                msg = "torch's DataLoader would make batches of batches: this dataset has batches"
                raise UsageError(msg, hint="DataLoader(..., batch_size=None)")
            return


def _callers() -> Iterator[FrameType]:
    frame = sys._getframe(1)  # noqa: SLF001  # there is no other way to know
    while frame.f_back is not None:
        frame = frame.f_back
        yield frame

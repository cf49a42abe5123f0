"""Refuses what torch's DataLoader would make of a dataset: other samples than were asked for, without a word.

A DataLoader takes anything with ``len`` and ``[]`` for a list, and so would ignore the shuffle and the rank; and each
of its workers would iterate over the whole of a dataset. torch is only looked at where somebody else has imported it.
"""

from __future__ import annotations

import sys

from shoal.errors import UsageError

__all__ = ["refuse_as_list", "refuse_in_worker"]

_HINT = (
    "iterate over the dataset itself, with .batch(); or give DataLoader(..., batch_size=None, num_workers=0) a torch "
    "IterableDataset whose __iter__ returns iter(ds)"
)


def refuse_as_list(depth: int = 2) -> None:
    """`UsageError` if what asks for one sample by id is torch's DataLoader."""
    caller = sys._getframe(depth).f_globals.get("__name__", "")  # noqa: SLF001  # there is no other way to know
    if caller.startswith("torch.utils.data"):
        msg = "torch's DataLoader was given a shoal dataset, and reads it like a list: in storage order, on every rank"
        raise UsageError(msg, hint=_HINT)


def refuse_in_worker() -> None:
    """`UsageError` in a worker process of torch's DataLoader, where every worker would yield every sample."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and torch_data.get_worker_info() is not None:
        msg = "a shoal dataset was iterated in a worker of torch's DataLoader: each worker would yield every sample"
        raise UsageError(msg, hint=_HINT)

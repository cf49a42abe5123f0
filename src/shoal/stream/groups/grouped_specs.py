"""The call ``batch(by=)``: arguments that exclude each other, and earlier calls that it cannot follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoal.errors import UsageError
from shoal.pipeline.stages.map_and_filter import Filter
from shoal.reading.mixture.mix_request import FOREVER
from shoal.stream.dataset_spec import CHOSEN, DatasetSpec
from shoal.stream.groups.group_requests import GroupRequest
from shoal.stream.verbs.dataset_requests import Batching


def refuse_without_column(size: Any, each: Any) -> None:
    """Raise `UsageError` for arguments that need ``by``."""
    if each is not None:
        msg = f"batch({size!r}, {each!r}) takes {size!r} classes with {each!r} samples each, but got no column"
        raise UsageError(msg, hint=f'batch({size!r}, {each!r}, by="label"), with a column of the index')
    if isinstance(size, Mapping):
        msg = f"batch({size!r:.80}) has sizes by value, but got no column"
        raise UsageError(msg, hint='batch({...}, by="bucket"), with a column of the index')


def refuse_with_column(**others: Any) -> None:
    """Raise `UsageError` for arguments that batches by column do not have."""
    hints = {
        "global_batch_size": "a size for each rank, with alike= the number of ranks: they share a group at each step",
        "balance": "leave balance= out: a rank gets a whole batch",
        "steps": "leave steps= out: all ranks yield the same number of batches",
    }
    for name, value in others.items():
        if value is not None:
            raise UsageError(f"batch(by=) got {name}={value!r}, which does not apply to it", hint=hints[name])


def grouped(spec: DatasetSpec, request: GroupRequest, remainder: str) -> DatasetSpec:
    """Return a dataset with batches by column."""
    if any(isinstance(stage, Filter) for stage in spec.stages):
        msg = "batch(by=) counts samples by the index, but was called after filter(), which counts as it reads"
        raise UsageError(msg, hint="select() by columns of the index instead of filter()")
    spec.refuse(request.verb, CHOSEN)
    if spec.num_samples > FOREVER // 2:
        msg = "batch(by=) counts the batches of an epoch, but this mixture has no end"
        raise UsageError(msg, hint="mix(epoch_size=...)")
    batching = replace(Batching.of_arguments(1, None, remainder), verb=request.verb, kind=request.kind)
    return replace(spec, rows=request).in_batches(batching)

"""The calls of `Dataset.batch`: cut by number, by column, or within limits; and arguments that exclude each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoal.errors import UsageError
from shoal.pipeline.stages.map_and_filter import Filter
from shoal.reading.mixture.mix_request import FOREVER
from shoal.stream.dataset_spec import CHOSEN, DatasetSpec
from shoal.stream.groups.balanced_costs import balanced_by_column
from shoal.stream.groups.cost_requests import CostRequest
from shoal.stream.groups.group_requests import GroupRequest
from shoal.stream.verbs.dataset_requests import Batching

_ONLY_BY_NUMBER = {
    "global_batch_size": "a size for each rank; with by=, alike= the number of ranks gives them one group at each step",
    "balance": "leave balance= out: a rank gets a whole batch",
    "steps": "leave steps= out: all ranks yield the same number of batches",
}
_NEEDS = {"by": ("each", "alike", "look_ahead", "too_small"), "limits": ("too_large", "block")}


def batched(
    spec: DatasetSpec, by: Any, limits: Any, *, grouping: Mapping[str, Any], cutting: Mapping[str, Any]
) -> DatasetSpec:
    """Return a dataset with batches.

    ``cutting`` are the arguments of all batches, and ``grouping`` the arguments that only batches by column or within
    limits take; arguments that are not None are checked.
    """
    given = {name: value for name, value in grouping.items() if value is not None}
    _refuse_arguments(given, cutting, by=by, limits=limits)
    size, remainder = cutting["size"], cutting["remainder"]
    if limits is not None:
        return _grouped(spec, CostRequest.of_arguments(limits, size, **given), remainder)
    if by is not None:
        return _grouped(spec, GroupRequest.of_arguments(size, by, remainder, **given), remainder)
    return balanced_by_column(spec, cutting["balance"]).in_batches(Batching.of_arguments(**cutting))


def _refuse_arguments(given: Mapping[str, Any], cutting: Mapping[str, Any], *, by: Any, limits: Any) -> None:
    """Raise `UsageError` for arguments that do not apply together."""
    size, each = cutting["size"], given.get("each")
    if by is not None and limits is not None:
        msg = f"batch() got by={by!r} and limits={limits!r:.80}: batches are of one group, or within limits"
        raise UsageError(msg, hint="sizes by value limit the costs of groups: batch({value: size}, by=...)")
    if by is None and each is not None:
        msg = f"batch({size!r}, {each!r}) takes {size!r} classes with {each!r} samples each, but got no column"
        raise UsageError(msg, hint=f'batch({size!r}, {each!r}, by="label"), with a column of the index')
    if by is None and isinstance(size, Mapping):
        msg = f"batch({size!r:.80}) has sizes by value, but got no column"
        raise UsageError(msg, hint='batch({...}, by="bucket"), with a column of the index')
    for needed, value in (("by", by), ("limits", limits)):
        if value is None and (lost := [name for name in _NEEDS[needed] if name in given]):
            msg = f"batch({lost[0]}={given[lost[0]]!r}) applies only with {needed}="
            raise UsageError(msg, hint=f"leave {lost[0]}= out, or add {needed}=")
        if value is not None:
            for name, hint in _ONLY_BY_NUMBER.items():
                if cutting[name] is not None:
                    msg = f"batch({needed}=) got {name}={cutting[name]!r}, which does not apply to it"
                    raise UsageError(msg, hint=hint)


def _grouped(spec: DatasetSpec, request: GroupRequest | CostRequest, remainder: str) -> DatasetSpec:
    """Return a dataset with batches that the index determines."""
    if any(isinstance(stage, Filter) for stage in spec.stages):
        msg = f"{request.verb} counts samples by the index, but was called after filter(), which counts as it reads"
        raise UsageError(msg, hint="select() by columns of the index instead of filter()")
    spec.refuse(request.verb, CHOSEN)
    if spec.num_samples > FOREVER // 2:
        msg = f"{request.verb} counts the batches of an epoch, but this mixture has no end"
        raise UsageError(msg, hint="mix(epoch_size=...)")
    batching = replace(Batching.of_arguments(1, None, remainder), verb=request.verb, kind=request.kind)
    return replace(spec, rows=request).in_batches(batching)

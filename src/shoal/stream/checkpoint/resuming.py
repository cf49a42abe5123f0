"""States of a dataset at a chosen position, and resumption from a saved state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoal.errors import UsageError
from shoal.order.state import State
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.dataset_requests import count_of
from shoal.stream.spec import DatasetSpec


def state_for(arrangement: ResolvedOrder, position: int, epoch: int) -> dict[str, Any]:
    """Return the state at a position of an epoch; at the end of an epoch, that of the start of the next."""
    number, in_epoch = count_of(position, "state_at(position)"), count_of(epoch, "state_at(epoch=)")
    if number > arrangement.num_samples:
        msg = f"state_at() was asked for position {number} of an epoch of {arrangement.num_samples} samples"
        raise UsageError(msg, hint="positions count samples over all ranks: steps times the global batch")
    if number == arrangement.num_samples:
        number, in_epoch = 0, in_epoch + 1
    return replace(State.from_dict(arrangement.state_at(in_epoch, 0)), position=number).to_dict()


def resumed(
    described: DatasetSpec, arrangement: ResolvedOrder, state: Mapping[str, Any]
) -> tuple[State, ResolvedOrder]:
    """Return a saved state, and the order of a dataset that resumes from it.

    Raises
    ------
    StateError
        The state belongs to another dataset, seed or order, or is not a state.
    """
    saved = State.from_dict(state)
    request = described.order_request.adopting(saved)
    arrangement = replace(arrangement, request=request, gaps=described.gaps.plus(saved.gaps), _epochs={})
    index, num_samples = arrangement.index.fingerprint, arrangement.num_samples
    saved.check(seed=request.seed, order=arrangement.state_order, index=index, num_samples=num_samples)
    return saved, arrangement

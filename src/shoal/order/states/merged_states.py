"""Merging the states of all ranks into one state, if each rank has its own state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from shoal.errors import StateError, UsageError
from shoal.figures import shown
from shoal.order.state_dict import State
from shoal.order.states.deals import Deal


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    r"""Merge the states of all ranks of a stream with ``filter(refill=True)`` into one state that every rank can load.

    At the same world size and batch size, each rank continues as if the run had not stopped. Otherwise, the undelivered
    samples of the epoch are divided among the new ranks: no sample is lost or repeated.

    Parameters
    ----------
    states
        The states of all ranks (`Dataset.state_dict`) after the same step, in any order. Ranks with the same samples
        (``partition(replicate=k)``) may give one state or all. Without ``refill=True`` all states of a stream are
        equal, and the result equals them.

    Returns
    -------
    dict
        A state of about six bytes for each rank: less than 1 KB for 100 ranks, 6 KB for 1000.

    Raises
    ------
    StateError
        The state of a rank is missing, or the states belong to several runs.
    UsageError
        There are no states, or the states belong to a live stream.

    Examples
    --------
    >>> cats = ds.shuffle(seed=0).filter(lambda sample: b"cat" in sample["txt"], refill=True).batch(8, steps="apart")
    >>> runs = [iter(cats.partition(rank=rank, world_size=2)) for rank in range(2)]
    >>> batches = [next(run) for run in runs]
    >>> resumed = cats.partition(rank=0, world_size=1)
    >>> resumed.load_state_dict(shoal.merge_states(run.state_dict() for run in runs))
    >>> sum(len(batch["txt"]) for batch in resumed)  # of 120
    104
    """
    listed: list[Any] = list(states)
    if any(isinstance(state, Mapping) and "live" in state for state in listed):
        msg = "these are states of a live stream, and such states cannot be merged"
        raise UsageError(msg, hint="give LiveDataset.load_state_dict() the list of states")
    loaded = [State.from_dict(state) for state in listed]
    if not loaded:
        raise UsageError("there are no states to merge", hint="give the states of all ranks")
    first = loaded[0]
    for other in loaded[1:]:
        for name in ("index", "seed", "order", "gaps"):
            if getattr(first, name) != getattr(other, name):
                msg = f"these states are from different runs: {name} is {shown(getattr(first, name))} and "
                raise StateError(msg + shown(getattr(other, name)), hint="give the states of the ranks of one run")
    if any(deal.rank is not None for state in loaded for deal in state.deals):
        return _merged(_by_rank(loaded)).to_dict()
    if any(other != first for other in loaded):
        msg = "these states belong to no rank, and their positions differ"
        raise StateError(msg, hint="every state resumes all ranks: load one of these states")
    return first.to_dict()


def _by_rank(states: list[State]) -> list[State]:
    """Return the state of each rank, by rank."""
    of_rank: dict[int, State] = {}
    world_sizes = set()
    for number, state in enumerate(states):
        own = [deal for deal in state.deals if deal.rank is not None]
        if not own or own[0].rank is None:
            msg = f"state {number} belongs to no rank, but other states do"
            raise StateError(msg, hint="give the result of state_dict() on each rank, after the same step")
        world_sizes.add(own[0].world_size)
        if of_rank.setdefault(own[0].rank, state) != state:
            msg = f"there are two different states of rank {own[0].rank}"
            raise StateError(msg, hint="give one state per rank, all after the same step")
    world_size = max(world_sizes)
    if len(world_sizes) > 1:
        msg = f"these states are of runs on {' and '.join(map(str, sorted(world_sizes)))} ranks"
        raise StateError(msg, hint="give the states of the ranks of one run")
    if missing := sorted({*range(world_size)} - {*of_rank}):
        msg = f"the states of {len(missing)} of {world_size} ranks are missing: {', '.join(map(str, missing[:8]))}"
        raise StateError(msg, hint="gather the states of all ranks with torch.distributed.all_gather_object or files")
    return [of_rank[rank] for rank in range(world_size)]


def _merged(states: list[State]) -> State:
    """Merge the states of all ranks, by rank."""
    slowest = min(states, key=lambda state: (state.epoch, state.position))
    deals = [deal for deal in slowest.deals if deal.rank is None]
    for state in states:
        if [deal for deal in state.deals if deal.rank is None] != [deal for deal in deals if deal.epoch >= state.epoch]:
            msg = "these ranks resumed from different states"
            raise StateError(msg, hint="load the same merged state on all ranks, and give the states of this run")
    epochs = {deal.epoch for state in states for deal in state.deals if deal.rank is not None}
    epochs |= {*range(slowest.epoch, max(epochs))}  # some ranks may have finished an epoch before others begin it
    before = {deal.epoch for deal in deals}
    for epoch in sorted(epoch for epoch in epochs if epoch >= slowest.epoch):
        merged = _of_all(states, epoch)
        # A deal after earlier deals is kept even if nothing is taken: it begins at the end of the earlier deals.
        if epoch in before or any(count != 0 for count in (*merged.taken, *merged.sequences)):
            deals.append(merged)
    by_epoch = sorted(deals, key=lambda deal: deal.epoch)  # stable: later deals of an epoch stay later
    return replace(slowest, deals=tuple(by_epoch))


def _of_all(states: list[State], epoch: int) -> Deal:
    """Return the deal with the samples of an epoch taken by all ranks."""
    taken: list[int | None] = []
    sequences: list[int] = []
    deals: list[Deal] = []
    some = next(deal for deal in states[0].deals if deal.rank is not None)
    whole = replace(some, epoch=epoch, position=0, gaps=states[0].gaps.of_epoch(epoch))
    for state in states:
        own = [deal for deal in state.deals if deal.rank is not None and deal.epoch == epoch]
        deals += own
        taken.append(own[0].taken[0] if own else None if epoch < state.epoch else 0)
        sequences += own[0].sequences if own else (0,)
    if any(deal.terms != deals[0].terms for deal in deals):
        msg = f"these states are from different runs: global batches of epoch {epoch} are dealt in several ways"
        raise StateError(msg, hint="the ranks of a run have the same batch size, and load the same state")
    merged = replace(deals[0] if deals else whole, taken=tuple(taken), rank=None)
    return replace(merged, sequences=() if merged.packing is None else tuple(sequences))

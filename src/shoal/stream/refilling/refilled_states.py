"""Resuming from a state of ranks that filled their batches (``filter(refill=True)``)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from shoal.errors import StateError
from shoal.order.partition import Partition
from shoal.order.position_subsets import Gaps
from shoal.order.state_dict import State
from shoal.order.states.checked_states import changed_hint
from shoal.order.states.deals import Deal, Start, needed_deals, settled
from shoal.order.states.state_fields import STATE
from shoal.reading.resolved_order import Resolved

_log = logging.getLogger("shoal")


class Resumed(NamedTuple):
    """The order without the taken samples, and the place of the rank: an epoch, and `RankPlace.starts`."""

    resolved: Resolved
    epoch: int
    starts: Mapping[int, Start]


def resumed(saved: State, resolved: Resolved, partition: Partition, rank: int) -> Resumed:
    """Return the place of a rank: the saved place if global batches are dealt as before, else the start of a new share.

    ``resolved`` is the order without deals. All ranks get the same order. `StateError` if the ranks of this dataset do
    not fill batches, or the state belongs to another rank and was not merged.
    """
    if not partition.refills:
        msg = "ranks filled their batches in the run that saved the state, so each rank is at its own position"
        hint = (
            "call filter(refill=True), flat_map() or pack_sequences(lengths=None) here, too; or load a state between "
        )
        hint += "epochs"
        raise StateError(msg, hint=hint)
    if any(deal.rank is not None for deal in saved.deals):
        _check_rank(saved, resolved.gaps, partition, rank)
    deals: list[Deal] = []
    going_on: list[Deal] = []
    done: dict[int, int] = {}
    for epoch in sorted({deal.epoch for deal in saved.deals}):
        of_epoch = [deal for deal in saved.deals if deal.epoch == epoch]
        if _dealt_as_before(of_epoch[-1], resolved.gaps, partition):
            going_on.append(of_epoch.pop())
        else:
            _log_open_groups(of_epoch[-1])
            kept, done[epoch] = needed_deals(settled(of_epoch, resolved.untouched(epoch)))
            of_epoch = list(kept)
        deals += of_epoch
    resolved = resolved.with_deals(tuple(deals))
    starts = {epoch: Start(resolved.number_of(epoch, at)) for epoch, at in done.items()}
    finished = set()
    for deal in going_on:
        row, start = 0 if deal.rank is not None else rank, resolved.number_of(deal.epoch, deal.position)
        taken, sequences = deal.taken[row], deal.sequences_of(row)
        share = partition.num_samples_of(rank, max(0, resolved.num_samples_of(deal.epoch) - start))
        if taken is None:
            finished.add(deal.epoch)
            taken = share
        if taken > share:
            msg = f"in the state, rank {rank} took {taken} samples of epoch {deal.epoch}, but its share has {share}"
            raise StateError(msg, hint=changed_hint(STATE))
        starts[deal.epoch] = Start(start, taken, sequences)
    epoch = saved.epoch
    while epoch in finished:
        epoch += 1
    if epoch == saved.epoch and epoch not in starts:
        starts[epoch] = Start(resolved.number_of(epoch, saved.position))
    return Resumed(resolved, epoch, {number: place for number, place in starts.items() if number >= epoch})


def _log_open_groups(deal: Deal) -> None:
    """Log how many documents may repeat, if ranks had unfinished groups of documents."""
    if deal.packing is not None and deal.num_open_groups:
        most = deal.num_open_groups * deal.packing["block"]
        _log.warning(
            "ranks packed documents of epoch %d as they came; open groups: %d; up to %s documents may repeat",
            deal.epoch,
            deal.num_open_groups,
            f"{most:,}",
        )


def _dealt_as_before(deal: Deal, gaps: Gaps, partition: Partition) -> bool:
    dealt = (deal.global_batch, deal.world_size, deal.packing, deal.gaps)
    return dealt == (partition.global_batch, partition.world_size, partition.packing, gaps.of_epoch(deal.epoch))


def _check_rank(saved: State, gaps: Gaps, partition: Partition, rank: int) -> None:
    """Raise `StateError` if a state that was not merged belongs to another rank or to other batches."""
    merge = "shoal.merge_states() merges the states of all ranks into one state for any world size and batch size"
    for deal in saved.deals:
        if deal.rank is None:
            continue
        sides: dict[str, tuple[Any, Any]] = {
            "rank": (deal.rank, rank),
            "world_size": (deal.world_size, partition.world_size),
            "global batch": (deal.global_batch, partition.global_batch),
            "packing": (deal.packing, partition.packing),
        }
        for name, (theirs, ours) in sides.items():
            if theirs != ours:
                msg = "a state of ranks that fill their batches belongs to one rank: "
                msg += f"the state has {name}={theirs}; this stream has {name}={ours}"
                raise StateError(msg, hint=merge)
        if deal.gaps != gaps.of_epoch(deal.epoch):
            msg = "the state of one rank that fills its batches cannot be loaded if without() leaves out more positions"
            raise StateError(msg, hint=merge)

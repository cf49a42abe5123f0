"""Progress of ranks through an epoch in which each fills its own batches, and what all of them have left.

With ``filter(refill=True)`` each rank takes as many samples of its share as its batches need. So ranks advance at
different rates, and no single position says what is done. A *deal* does: the position from which global batches were
dealt, their size, the number of ranks, and how many samples of its share each rank has taken. From these numbers and
the order follows which positions are left. If they are dealt anew, to other ranks or in other batches, the next deal
lies on top: its global batches are cut from what the deals before it have left.

Where ranks pack documents into sequences as they come, a rank has taken the documents of finished groups, and some
sequences of the group behind them. These count for a rank that goes on as before; else the documents of that group are
dealt anew, and those of the sequences that were yielded come again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.order.partition import Partition
from shoal.order.position_subsets import WithoutGaps, left_beside, number_in, position_in
from shoal.order.protocol import BoundOrder


@dataclass(frozen=True, slots=True)
class Deal:
    """Global batches of an epoch from a position on, dealt to ranks, and what each rank has taken of its share.

    Parameters
    ----------
    epoch, position
        Where the global batches begin.
    global_batch, world_size
        Their size, and the number of ranks.
    taken
        Samples that each rank has taken, those that the filter dropped included; None for all of its share.
    gaps
        The ranges of positions that `Dataset.without` left out of the epoch.
    rank
        The only rank that ``taken`` tells of; None if it tells of all.
    packing
        How each rank packs the documents of its share; None if it does not.
    sequences
        Sequences that each rank has taken of the documents behind ``taken``; () if it does not pack.
    """

    epoch: int
    position: int
    global_batch: int
    world_size: int
    taken: tuple[int | None, ...]
    gaps: tuple[tuple[int, int], ...] = ()
    rank: int | None = None
    packing: Mapping[str, Any] | None = None
    sequences: tuple[int, ...] = ()

    def sequences_of(self, rank: int) -> int:
        """Return the sequences that a rank has taken of the documents behind those that count."""
        return self.sequences[rank] if self.sequences else 0

    @property
    def num_open_groups(self) -> int:
        """Number of ranks that have a group of documents in work."""
        return sum(number > 0 for number in self.sequences)

    @property
    def partition(self) -> Partition:
        """The partition by which they were dealt."""
        return Partition(self.global_batch, self.world_size, refills=True)

    @property
    def terms(self) -> tuple[Any, ...]:
        """All but what was taken, and by whom: equal for the ranks of one run."""
        return self.epoch, self.position, self.global_batch, self.world_size, self.gaps, self.packing

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types: the least that a rank has taken, and by how much each is ahead of that."""
        names = ("epoch", "position", "global_batch", "world_size")
        told: dict[str, Any] = {name: getattr(self, name) for name in names}
        told |= {"without": [list(each) for each in self.gaps]} if self.gaps else {}
        if self.packing is not None:
            told |= {"packing": dict(self.packing), "sequences": list(self.sequences)}
        if self.rank is not None:
            return {**told, "rank": self.rank, "taken": self.taken[0]}
        least = min((count for count in self.taken if count is not None), default=0)
        ahead = [None if count is None else count - least for count in self.taken]
        return {**told, "taken": least, "ahead": ahead}

    @staticmethod
    def from_dict(made: Mapping[str, Any]) -> Deal:
        """Restore a deal from the result of `to_dict`, which has its form; raise `ValueError` if it cannot be."""
        world_size, least = made["world_size"], made["taken"]
        rank, ahead = made.get("rank"), made.get("ahead", (0,))
        packing = made.get("packing")
        taken = tuple(None if count is None else least + count for count in ahead)
        sequences = tuple(made.get("sequences", ()))
        num_told = world_size if rank is None else 1
        if len(taken) != num_told or len(sequences) != (0 if packing is None else num_told):
            msg = f"{len(taken)} numbers of samples and {len(sequences)} of sequences for {num_told} of its ranks"
            raise ValueError(msg)
        gaps = tuple((start, stop) for start, stop in made.get("without", ()))
        terms = (made["epoch"], made["position"], made["global_batch"], world_size, taken)
        return Deal(*terms, gaps, rank, packing, sequences)


class Start(NamedTuple):
    """Start of a rank in an epoch.

    ``number`` is where the deal begins, among positions that are left; ``taken`` are the samples of its share that the
    rank has taken, and ``sequences`` those of the documents behind, where it packs these.
    """

    number: int = 0
    taken: int = 0
    sequences: int = 0

    @property
    def has_taken(self) -> bool:
        """True if the rank has taken something of its share."""
        return bool(self.taken or self.sequences)


class RankPlace(NamedTuple):
    """The place of one rank: its own epoch, and later ones of which it has a part already.

    ``starts`` are by epoch.
    """

    partition: Partition
    rank: int
    starts: Mapping[int, Start]


class Settled(NamedTuple):
    """A deal, counted anew from its first global batch of which anything is left, and the positions taken from there.

    Everything before ``deal.position`` that the deals before it had left is taken.
    """

    deal: Deal
    positions: NDArray[np.int64]


def settled(deals: Iterable[Deal], untouched: BoundOrder) -> list[Settled]:
    """Return what each deal of an epoch has taken, one on top of the other; ``untouched`` is the order of the epoch.

    O(positions between the rank that is furthest behind and the one furthest ahead), for each deal.
    """
    found: list[Settled] = []
    num_samples = untouched.num_samples
    for deal in deals:
        left = left_beside(deal.gaps, taken_by(found), num_samples)
        order = untouched if left is None else WithoutGaps(untouched, left)
        start, partition = number_in(left, deal.position), deal.partition
        num_whole, numbers = partition.taken(order, deal.taken, start)
        begin = min(start + num_whole * deal.global_batch, order.num_samples)
        sizes = [partition.size_of(rank) for rank in range(deal.world_size)]
        counts = zip(deal.taken, sizes, strict=True)
        rest = tuple(None if count is None else max(0, count - num_whole * size) for count, size in counts)
        position = position_in(left, begin, num_samples)
        found.append(Settled(replace(deal, position=position, taken=rest), _members(order, numbers)))
    return found


def taken_by(deals: Sequence[Settled]) -> NDArray[np.int64]:
    """Return the positions that these deals have taken behind their first, ascending."""
    return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *(each.positions for each in deals)]))


def still_told(deals: Sequence[Settled]) -> tuple[tuple[Deal, ...], int]:
    """Return the deals without which it is not known what is left, and the position before which nothing is."""
    done = first = deals[-1].deal.position
    kept: list[Deal] = []
    for each in reversed(deals):
        # Later global batches are cut from what this deal has left: from their first position on, if it has taken any.
        if len(each.positions) and each.positions[-1] >= first:
            kept.insert(0, each.deal)
            first = min(first, each.deal.position)
    return tuple(kept), done


def _members(order: BoundOrder, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    return order.untouched_positions(numbers) if isinstance(order, WithoutGaps) else numbers

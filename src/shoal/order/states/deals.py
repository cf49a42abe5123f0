"""Progress of ranks through an epoch if each rank fills its own batches, and the remaining positions.

With ``filter(refill=True)`` each rank takes as many samples of its share as its batches need. So ranks advance at
different rates, and no single position records the progress. A *deal* does: it has the first position of the global
batches, their size, the number of ranks, and the number of samples that each rank has taken of its share. These numbers
and the order determine the positions left. If positions are dealt again, to other ranks or in other batches, the next
deal lies on top: its global batches are cut from the positions that earlier deals have left.

If ranks pack documents into sequences as they come, a rank has taken the documents of finished groups, and some
sequences of the next group. These count for a rank that continues as before. Otherwise the documents of that group are
dealt again, and documents of yielded sequences are repeated.

If a sample has several parts (`flat_map`), a rank may have yielded some parts of the sample after the taken samples. If
that sample is dealt again, the rank that gets it yields the other parts.
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

MOST_PARTS = "most_parts"
"""The name in a state of the most parts of a sample."""


@dataclass(frozen=True, slots=True)
class Deal:
    """Global batches of an epoch from a position on, dealt to ranks, and the samples taken by each rank.

    Parameters
    ----------
    epoch, position
        Start of the global batches.
    global_batch, world_size
        Size of the global batches, and the number of ranks.
    taken
        Samples taken by each rank, dropped samples included; None for the whole share of a rank.
    gaps
        Ranges of positions that `Dataset.without` left out of the epoch.
    rank
        The only rank in ``taken``; None if ``taken`` has all ranks.
    packing
        Arguments for packing the documents of a rank's share, or for samples of several parts, as JSON types; else
        None.
    sequences
        Sequences of the documents after ``taken``, or parts of the sample after ``taken``, taken by each rank; () if
        ranks neither pack nor take parts.
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
        """Return the number of sequences taken from the open group of a rank."""
        return self.sequences[rank] if self.sequences else 0

    @property
    def has_parts(self) -> bool:
        """True if samples have several parts."""
        return self.packing is not None and MOST_PARTS in self.packing

    @property
    def call(self) -> str:
        """The call that makes ranks fill batches."""
        packing_call = "flat_map()" if self.has_parts else "pack_sequences(lengths=None)"
        return "filter(refill=True)" if self.packing is None else packing_call

    @property
    def num_open_groups(self) -> int:
        """Number of ranks with an open group of documents."""
        return 0 if self.has_parts else sum(number > 0 for number in self.sequences)

    def opened(self, order: BoundOrder, start: int) -> dict[int, int]:
        """Return the parts taken of each open sample, by its position; the deal begins at number ``start``."""
        partition, opened = self.partition, dict[int, int]()
        for rank, (taken, num_parts) in enumerate(zip(self.taken, self.sequences, strict=False)):
            if num_parts and taken is not None and self.has_parts:
                batch, place = divmod(taken, partition.size_of(rank))
                positions = partition.share(order, rank, batch, batch + 1, start).positions
                if place < len(positions):
                    opened[int(positions[place])] = num_parts
        return opened

    @property
    def partition(self) -> Partition:
        """Partition that deals the global batches."""
        return Partition(self.global_batch, self.world_size, refills=True)

    @property
    def terms(self) -> tuple[Any, ...]:
        """Fields with equal values on all ranks of a run."""
        return self.epoch, self.position, self.global_batch, self.world_size, self.gaps, self.packing

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types: the fewest taken samples of any rank, and the surplus of each rank."""
        names = ("epoch", "position", "global_batch", "world_size")
        fields: dict[str, Any] = {name: getattr(self, name) for name in names}
        fields |= {"without": [list(gap) for gap in self.gaps]} if self.gaps else {}
        if self.packing is not None:
            fields |= {"packing": dict(self.packing), "sequences": list(self.sequences)}
        if self.rank is not None:
            return {**fields, "rank": self.rank, "taken": self.taken[0]}
        least = min((count for count in self.taken if count is not None), default=0)
        ahead = [None if count is None else count - least for count in self.taken]
        return {**fields, "taken": least, "ahead": ahead}

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> Deal:
        """Restore a deal from the checked result of `to_dict`, or raise `ValueError` if its numbers do not fit."""
        world_size, least, rank = fields["world_size"], fields["taken"], fields.get("rank")
        packing, sequences = fields.get("packing"), tuple(fields.get("sequences", ()))
        taken = tuple(None if count is None else least + count for count in fields.get("ahead", (0,)))
        num_ranks = world_size if rank is None else 1
        if len(taken) != num_ranks or len(sequences) != (0 if packing is None else num_ranks):
            msg = f"{len(taken)} numbers of samples and {len(sequences)} numbers of sequences for {num_ranks} ranks"
            raise ValueError(msg)
        gaps = tuple((start, stop) for start, stop in fields.get("without", ()))
        terms = (fields["epoch"], fields["position"], fields["global_batch"], world_size, taken)
        return Deal(*terms, gaps, rank, packing, sequences)


class Start(NamedTuple):
    """Start of a rank in an epoch.

    ``number`` is the start of the deal, counted in remaining positions. The rank has already used the first ``taken``
    samples of its share, and the first ``sequences`` sequences of the documents after these samples.
    """

    number: int = 0
    taken: int = 0
    sequences: int = 0

    @property
    def has_taken(self) -> bool:
        """True if the rank has used some of its share."""
        return bool(self.taken or self.sequences)


class RankPlace(NamedTuple):
    """The starts of a rank by epoch: of its current epoch, and of later epochs with taken samples."""

    partition: Partition
    rank: int
    starts: Mapping[int, Start]


class Settled(NamedTuple):
    """A deal cut to its incomplete global batches, and the positions that ranks have taken from these batches.

    All positions before ``deal.position`` are taken. ``opened`` has the number of parts taken of the sample at a
    position.
    """

    deal: Deal
    positions: NDArray[np.int64]
    opened: Mapping[int, int]


def settled(deals: Iterable[Deal], untouched: BoundOrder) -> list[Settled]:
    """Return the positions taken by each stacked deal of an epoch; ``untouched`` is the order of the epoch.

    O(positions between the slowest rank and the fastest rank), for each deal.
    """
    results: list[Settled] = []
    num_samples = untouched.num_samples
    for deal in deals:
        left = left_beside(deal.gaps, taken_by(results), num_samples)
        order = untouched if left is None else WithoutGaps(untouched, left)
        start, partition = number_in(left, deal.position), deal.partition
        num_whole, numbers = partition.taken(order, deal.taken, start)
        begin = min(start + num_whole * deal.global_batch, order.num_samples)
        sizes = [partition.size_of(rank) for rank in range(deal.world_size)]
        counts = zip(deal.taken, sizes, strict=True)
        taken = tuple(None if count is None else max(0, count - num_whole * size) for count, size in counts)
        position = position_in(left, begin, num_samples)
        positions = order.untouched_positions(numbers) if isinstance(order, WithoutGaps) else numbers
        opened = deal.opened(order, start)
        results.append(Settled(replace(deal, position=position, taken=taken), positions, opened))
    return results


def taken_by(deals: Sequence[Settled]) -> NDArray[np.int64]:
    """Return the positions that these deals have taken after their starts, ascending."""
    return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *(deal.positions for deal in deals)]))


def parts_taken(deals: Sequence[Settled]) -> dict[int, int]:
    """Return the parts that these deals have taken of samples with more parts, by position; later deals go on."""
    return {position: number for deal in deals for position, number in deal.opened.items()}


def needed_deals(deals: Sequence[Settled]) -> tuple[tuple[Deal, ...], int]:
    """Return the deals that a state still needs, and the end of the completely taken positions."""
    done = first = deals[-1].deal.position
    kept: list[Deal] = []
    for deal, positions, opened in reversed(deals):
        # Later deals are cut from the rest of this deal, so this deal is needed if it has taken any later position.
        if max([*positions[-1:].tolist(), *opened], default=-1) >= first:
            kept.insert(0, deal)
            first = min(first, deal.position)
    return tuple(kept), done

"""Epochs of which some positions are left out, and states: what a dataset and a mixture have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shoal.order.arrays.index_ranges import Runs
from shoal.order.deals import Deal, RankPlace, settled, taken_by
from shoal.order.position_subsets import Gaps, WithoutGaps, left_beside, number_in, position_in, span_in
from shoal.order.protocol import BoundOrder
from shoal.order.state_dict import State, Tokenizers


class ResolvedEpochs(ABC):
    """Epochs of ``num_samples`` positions, of which ``gaps`` are left out, and those that ``deals`` have taken."""

    gaps: Gaps
    deals: tuple[Deal, ...]
    _lefts: dict[int, Runs | None]

    @property
    @abstractmethod
    def num_samples(self) -> int:
        """Samples of an epoch, over all ranks, including gaps."""

    @property
    @abstractmethod
    def seed(self) -> int:
        """Seed of the order."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Identity of the dataset."""

    @property
    @abstractmethod
    def state_order(self) -> Mapping[str, Any]:
        """Description of the order for a state: two streams with equal values and seeds have equal orders."""

    @abstractmethod
    def untouched(self, epoch: int) -> BoundOrder:
        """Return the order of one epoch, gaps included."""

    @abstractmethod
    def resumed(self, saved: State, gaps: Gaps) -> Self:
        """Return this order with the numbers of a state, and with ``gaps`` beside those of the state.

        Raises
        ------
        StateError
            The state is of another order or dataset.
        """

    def num_positions(self, epoch: int) -> int:  # noqa: ARG002
        """Return the samples of one epoch, over all ranks, including gaps; those of mixtures may differ."""
        return self.num_samples

    def num_rows(self, epoch: int) -> int:
        """Return the rows that all batches of one epoch have, over all ranks, including gaps."""
        return self.num_positions(epoch)

    def why_uncounted(self, epoch: int, world_size: int) -> str:  # noqa: ARG002
        """Return why ranks have no number of samples of an epoch in common, and what to do; "" if they have one."""
        return ""

    def num_samples_of(self, epoch: int) -> int:
        """Return the number of samples of one epoch, over all ranks, without its gaps."""
        left = self.left(epoch)
        return self.num_positions(epoch) if left is None else len(left)

    def number_of(self, epoch: int, position: int) -> int:
        """Return the number of positions of an epoch before this one, without gaps, as iterators count."""
        return number_in(self.left(epoch), position)

    def position_of(self, epoch: int, number: int) -> int:
        """Return the position that follows the first ``number`` of an epoch that are not gaps, as states record it."""
        return position_in(self.left(epoch), number, self.num_positions(epoch))

    def span_of(self, epoch: int, first: int, stop: int) -> tuple[int, int]:
        """Return the span of positions of the numbers ``[first, stop)``, gaps between them included."""
        return span_in(self.left(epoch), first, stop)

    def left(self, epoch: int) -> Runs | None:
        """Return the positions of an epoch that are no gaps, and that no deal has taken; None for all of them."""
        deals = [deal for deal in self.deals if deal.epoch == epoch]
        if not deals:
            return self.gaps.left(epoch, self.num_positions(epoch))
        if epoch not in self._lefts:
            taken = taken_by(settled(deals, self.untouched(epoch)))
            self._lefts[epoch] = left_beside(self.gaps.of_epoch(epoch), taken, self.num_positions(epoch))
        return self._lefts[epoch]

    def epoch(self, epoch: int) -> BoundOrder:
        """Return the order of one epoch without its gaps, renumbered from 0; see `untouched`."""
        left, order = self.left(epoch), self.untouched(epoch)
        return order if left is None else WithoutGaps(order, left)

    def samples_of(self, epoch: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:  # noqa: ARG002
        """Return the ids of the stored samples behind ids of an epoch's order: these, unless it is one of sequences."""
        return ids

    def state_at(
        self, epoch: int, number: int, place: RankPlace | None = None, *, tokenizers: Tokenizers | None = None
    ) -> dict[str, Any]:
        """Return the state of a run that has delivered ``number`` samples of an epoch, not counting gaps.

        ``place`` is that of the rank if ranks fill their batches, ``tokenizers`` are as in a state.
        """
        position = self.position_of(epoch, number)
        deals = tuple(deal for deal in self.deals if deal.epoch >= epoch)
        if place is not None:
            deals += tuple(self._deals_of(place))
        segments = self.segments_of_state(epoch, position, is_whole=bool(deals))
        terms = (self.seed, self.state_order, self.fingerprint, self.gaps, deals, segments, tokenizers or {})
        return State(epoch, position, *terms).to_dict()

    def segments_of_state(self, epoch: int, position: int, *, is_whole: bool = False) -> str:  # noqa: ARG002
        """Return what a state says of the samples up to a position, or of all; "" if the fingerprint says it all."""
        return ""

    def _deals_of(self, place: RankPlace) -> Iterator[Deal]:
        partition, rank = place.partition, place.rank
        only, dealt_before = partition.world_size == 1, {deal.epoch for deal in self.deals}
        for epoch, start in sorted(place.starts.items()):
            if start.taken or start.sequences or not only or epoch in dealt_before:  # else the position says it all
                terms = (epoch, self.position_of(epoch, start.number), partition.global_batch, partition.world_size)
                sequences = () if partition.packing is None else (start.sequences,)
                dealt = (self.gaps.of_epoch(epoch), None if only else rank, partition.packing, sequences)
                yield Deal(*terms, (start.taken,), *dealt)

"""A mixture with the orders of all its sources resolved: epochs, states, and the datasets that are read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from shoal.errors import StateError
from shoal.index.joined_index import JoinedIndex
from shoal.indexing.opened_dataset import Opened, OpenedMixture
from shoal.order.arrays.index_ranges import Runs
from shoal.order.mixture.source_choice import MOST_POSITIONS
from shoal.order.mixture.source_schedule import SequenceChange
from shoal.order.orders_without_window import Sequential
from shoal.order.position_subsets import NO_GAPS, ChosenPositions, Gaps
from shoal.order.protocol import BoundOrder
from shoal.order.state_dict import State
from shoal.order.states.deals import Deal
from shoal.reading.mixture.epochs_request import EpochsRequest
from shoal.reading.mixture.mix_request import FOREVER, MixRequest, SourceRequest
from shoal.reading.mixture.mixture_orders import epoch_orders
from shoal.reading.mixture.mixture_state import adopted, check_sources, told
from shoal.reading.order_request import OrderRequest, Selection
from shoal.reading.resolved_epochs import ResolvedEpochs, Source
from shoal.reading.resolved_order import ResolvedOrder, resolve


@dataclass(frozen=True)
class ResolvedMixture(ResolvedEpochs[ResolvedOrder]):
    """A mixture and the resolved orders of its datasets, in the order of `MixRequest.leaves`."""

    request: MixRequest
    opened: OpenedMixture
    delivered: Runs | None = None
    gaps: Gaps = NO_GAPS
    parts: tuple[ResolvedOrder, ...] = ()
    deals: tuple[Deal, ...] = ()
    _lefts: dict[int, Runs | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    @staticmethod
    def of(request: MixRequest, opened: OpenedMixture, delivered: Runs | None, gaps: Gaps) -> ResolvedMixture:
        """Resolve the orders of all datasets of a mixture."""
        leaves = [source for _, source in request.leaves()]
        parts = tuple(_resolved(part, source) for part, source in zip(opened.parts, leaves, strict=True))
        return ResolvedMixture(request, opened, delivered, gaps, parts)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle for processes, without bound orders."""
        kept = ("request", "opened", "delivered", "gaps", "parts", "deals")
        return {**{name: self.__dict__[name] for name in kept}, "_lefts": {}}

    @property
    def index(self) -> JoinedIndex:
        """The indexes of the datasets as one."""
        return self.opened.index

    @property
    def sample_index(self) -> JoinedIndex:
        """The indexes of the datasets as one."""
        return self.index

    @property
    def fingerprint(self) -> str:
        """Identity of all datasets together."""
        return self.index.fingerprint

    @property
    def seed(self) -> int:
        """Seed of the choice of sources."""
        return self.request.seed

    @property
    def num_samples(self) -> int:
        """Samples of an epoch, over all ranks, including gaps."""
        return self.request.epoch_samples if self.delivered is None else len(self.delivered)

    def num_positions(self, epoch: int) -> int:
        """Return the samples of one epoch, over all ranks, including gaps."""
        return self.request.num_samples_of(epoch) if self.delivered is None else len(self.delivered)

    @property
    def later_changes(self) -> tuple[SequenceChange, ...]:
        """Changes of weights at given sequences."""
        return self.request.later

    def with_later_changes(self, changes: tuple[SequenceChange, ...]) -> ResolvedMixture:
        """Return the mixture with such changes of weights."""
        return replace(self, request=replace(self.request, later=changes))

    def num_ids_in(self, state_order: Mapping[str, Any]) -> int:
        """Return the number of sample ids of the sources that a state names; others were added later."""
        return sum(source.num_ids for source in self.request.sources if source.name in state_order["sources"])

    def why_uncounted(self, epoch: int, world_size: int) -> str:  # noqa: ARG002
        """Return why ranks have no number of samples of an epoch in common: the mixture has no end."""
        is_endless = self.num_positions(epoch) > FOREVER // 2
        return "a mixture without end has no length: mix(epoch_size=n) has one" if is_endless else ""

    def most_until_any(self, epoch: int, number: int) -> int:
        """Return the positions of an epoch; of an epoch without end, two rounds of every source.

        Two, as sources do not come evenly in all mixtures; from this position on.
        """
        if self.num_samples_of(epoch) <= FOREVER // 2:
            return super().most_until_any(epoch, number)
        return 2 * self.request.round_at(self.request.begin(epoch) + number)

    @cached_property
    def _order_of(self) -> Callable[[int], BoundOrder]:
        return epoch_orders(self.request, iter(self.parts))

    @cached_property
    def first_chunks(self) -> list[int]:
        """The number of the first chunk of each dataset, among those of all."""
        return list(itertools.accumulate((part.num_order_chunks for part in self.parts), initial=0))

    def untouched(self, epoch: int) -> BoundOrder:
        """Return the order of one epoch, gaps included."""
        order = self._order_of(epoch)
        return order if self.delivered is None else ChosenPositions(order, self.delivered)

    @cached_property
    def state_order(self) -> Mapping[str, Any]:
        """Description of the mixture for a state: two with equal values and seeds have equal orders."""
        order = told(self.request, iter(self.parts))
        return order if self.delivered is None else {**order, "delivered": self.delivered.digest()}

    def resumed(self, saved: State, gaps: Gaps) -> ResolvedMixture:
        """Return this mixture with the numbers of a state, and with ``gaps`` beside those of the state.

        Changes of weights must agree up to the state's position; later ones are those of this mixture, or those of the
        state if it has more.
        """

        def place(request: MixRequest) -> int:
            number = saved.position
            if self.delivered is not None and number < len(self.delivered):
                number = int(self.delivered.members(np.array([number]))[0])
            position = request.begin(saved.epoch) + number
            if position >= MOST_POSITIONS:
                raise StateError(f"the state is at position {position} of a mixture, which has positions below 2**62")
            return position

        request = adopted(self.request, saved.order, place)
        if not isinstance(request, EpochsRequest):
            place(request)  # which refuses what is beyond all positions; elsewhere it would cost all epochs before
        resumed = ResolvedMixture.of(request, self.opened, self.delivered, gaps.plus(saved.gaps))
        mine, theirs = ({name: value for name, value in order.items() if name not in ("changes", "sources")}
                        for order in (resumed.state_order, saved.order))  # fmt: skip
        replace(saved, order=theirs).check(
            seed=resumed.seed, order=mine, index=saved.index, num_samples=resumed.num_positions(saved.epoch)
        )
        check_sources(saved.order["sources"], resumed.state_order["sources"], request, place)
        return resumed

    def __repr__(self) -> str:
        """Return the resolved order of each source, a line each."""
        weights = self.request.schedule.weights_at(0)
        total = sum(weights.values())
        names = [name for name, _ in self.request.leaves()]
        lines = [f"  {name}: {part!r}" for name, part in zip(names, self.parts, strict=True)]
        shares = ", ".join(f"{name} {weight / total:.2%}" for name, weight in weights.items())
        of = "" if self.request.length is None else " of the samples"  # weights are shares of tokens
        return "\n".join([f"mix of {shares}{of}; seed={self.seed}, {self.request.choice!r}", *lines])


@resolve.register
def _(request: MixRequest, source: Source, selection: Selection) -> ResolvedMixture:
    opened = cast("OpenedMixture", source.whole)
    return ResolvedMixture.of(request, opened, selection.delivered, selection.gaps)


def _resolved(opened: Opened, source: SourceRequest) -> ResolvedOrder:
    request = source.request if isinstance(source.request, OrderRequest) else OrderRequest(Sequential())
    selection = Selection(source.stored, source.sampling, source.delivered)
    return cast("ResolvedOrder", resolve(request, opened, selection))

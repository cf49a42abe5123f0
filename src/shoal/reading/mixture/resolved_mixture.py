"""A mixture with the orders of all its sources resolved: epochs, states, and the datasets that are read."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from shoal.errors import StateError, UsageError
from shoal.index.joined_index import JoinedIndex
from shoal.indexing.opened_dataset import Opened, OpenedMixture
from shoal.order.arrays.index_ranges import Runs
from shoal.order.mixture.endless_source import EndlessSource, RenumberedSource, RepeatedDataset
from shoal.order.mixture.mixed_order import MixedEpoch, MixedSources
from shoal.order.mixture.source_choice import MOST_POSITIONS
from shoal.order.mixture.source_schedule import SequenceChange
from shoal.order.orders_without_window import Sequential
from shoal.order.position_subsets import NO_GAPS, ChosenPositions, Gaps
from shoal.order.protocol import BoundOrder
from shoal.order.state_dict import State
from shoal.order.states.deals import Deal
from shoal.reading.mixture.epochs_request import EpochsRequest
from shoal.reading.mixture.mix_request import FOREVER, MixRequest, SourceRequest
from shoal.reading.mixture.mixture_state import adopted, check_sources, description, mixed_how
from shoal.reading.order_request import OrderRequest, Selection
from shoal.reading.resolved_epochs import ResolvedEpochs, Source
from shoal.reading.resolved_order import ResolvedOrder, resolve

_LEAST_SPAN, _MOST_SPAN = 1 << 13, 1 << 17
_SPANS = 4  # spans of the mixture in one span of a source


@dataclass(frozen=True)
class ResolvedMixture(ResolvedEpochs[ResolvedOrder]):
    """A mixture, and the resolved orders of its datasets in the order of `MixRequest.leaves`."""

    request: MixRequest
    opened: OpenedMixture
    delivered: Runs | None = None
    gaps: Gaps = NO_GAPS
    parts: tuple[ResolvedOrder, ...] = ()
    deals: tuple[Deal, ...] = ()
    weights: NDArray[np.integer[Any]] | None = None
    _lefts: dict[int, Runs | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    @staticmethod
    def of(request: MixRequest, opened: OpenedMixture, delivered: Runs | None, gaps: Gaps) -> ResolvedMixture:
        """Resolve the orders of all datasets of a mixture."""
        leaves = [source for _, source in request.leaves()]
        parts = tuple(_resolved(part, source) for part, source in zip(opened.parts, leaves, strict=True))
        return ResolvedMixture(request, opened, delivered, gaps, parts)

    @property
    def index(self) -> JoinedIndex:
        """The indexes of the datasets as one."""
        return self.opened.index

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
        """Return the mixture with these changes of weights."""
        return replace(self, request=replace(self.request, later=changes))

    def num_ids_in(self, state_order: Mapping[str, Any]) -> int:
        """Return the number of sample ids of the sources that a state names; other sources were added later."""
        return sum(source.num_ids for source in self.request.sources if source.name in state_order["sources"])

    def why_uncounted(self, epoch: int, world_size: int) -> str:  # noqa: ARG002
        """Return why ranks cannot agree on the samples of an epoch: the mixture has no end."""
        is_endless = self.num_positions(epoch) > FOREVER // 2
        return "a mixture without end has no length: mix(epoch_size=n) has one" if is_endless else ""

    def most_until_any(self, epoch: int, number: int) -> int:
        """Return the number of positions in an epoch; without an end, in two rounds of every source from here on.

        One round is not enough, since some mixtures do not spread a source evenly.
        """
        if self.num_samples_of(epoch) <= FOREVER // 2:
            return super().most_until_any(epoch, number)
        return 2 * self.request.round_at(self.request.begin(epoch) + number)

    @cached_property
    def _order_of(self) -> Callable[[int], BoundOrder]:
        return _mixture(self.request, iter(self.parts)).order_of

    @cached_property
    def first_chunks(self) -> list[int]:
        """The number of the first chunk of each dataset, among the chunks of all."""
        return list(itertools.accumulate((part.num_order_chunks for part in self.parts), initial=0))

    def untouched(self, epoch: int) -> BoundOrder:
        """Return the order of one epoch, gaps included."""
        order = self._order_of(epoch)
        return order if self.delivered is None else ChosenPositions(order, self.delivered)

    @cached_property
    def state_order(self) -> Mapping[str, Any]:
        """Description of the mixture for a state: mixtures with equal descriptions and seeds have equal orders."""
        order = description(self.request, iter(self.parts))
        return order if self.delivered is None else {**order, "delivered": self.delivered.digest()}

    def resumed(self, saved: State, gaps: Gaps) -> ResolvedMixture:
        """Return this mixture with the numbers of a state, and with ``gaps`` beside the gaps of the state.

        Changes of weights must agree up to the state's position. If the state has more changes, they are adopted.
        """

        def position_in(request: MixRequest) -> int:
            number = saved.position
            if self.delivered is not None and number < len(self.delivered):
                number = int(self.delivered.members(np.array([number]))[0])
            position = request.begin(saved.epoch) + number
            if position >= MOST_POSITIONS:
                raise StateError(f"the state is at position {position} of a mixture, which has positions below 2**62")
            return position

        request = adopted(self.request, saved.order, position_in)
        if not isinstance(request, EpochsRequest):
            position_in(request)  # raises beyond all positions; an `EpochsRequest` would count all epochs before
        resumed = ResolvedMixture.of(request, self.opened, self.delivered, gaps.plus(saved.gaps))
        replace(saved, order=mixed_how(saved.order)).check(
            seed=resumed.seed,
            order=mixed_how(resumed.state_order),
            index=saved.index,
            num_samples=resumed.num_positions(saved.epoch),
        )
        check_sources(saved.order["sources"], resumed.state_order["sources"], request, position_in)
        return resumed

    def __repr__(self) -> str:
        """Return the resolved order of each source, in a line."""
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


class _Rounds(NamedTuple):
    """The orders of a source by epoch, and its sizes for `RepeatedDataset`."""

    order_of: Callable[[int], BoundOrder]
    num_ids: int
    num_chunks: int
    reach: int = 0
    span: int | None = None
    has_one_id: bool = False

    def repeated(self, num_samples: int, epoch: int | None = None) -> RepeatedDataset:
        """Return the source, each round in the order of its own epoch, or all rounds in the order of ``epoch``."""
        order_of = self.order_of if epoch is None else (lambda _: self.order_of(epoch))
        sizes = {"num_ids": self.num_ids, "num_chunks": self.num_chunks, "reach": self.reach}
        return RepeatedDataset(num_samples, order_of, span=self.span, has_one_id=self.has_one_id, **sizes)


def _mixture(request: MixRequest, parts: Iterator[ResolvedOrder]) -> _Rounds:
    if not isinstance(request, EpochsRequest):
        return _of_endless(request, _endless(request, parts))
    rounds = [_rounds(request, source, parts) for source in request.sources]

    @functools.lru_cache(2)
    def order_of(epoch: int) -> BoundOrder:
        of_sources = request.peer.source_epoch(epoch)
        pairs = zip(rounds, request.sources, strict=True)
        sources = [own.repeated(source.num_samples_of(of_sources), of_sources) for own, source in pairs]
        schedule = request.schedule_of(epoch)
        return MixedEpoch(MixedSources(schedule, sources, num_samples=schedule.num_samples), 0)

    return _Rounds(order_of, sum(own.num_ids for own in rounds), sum(own.num_chunks for own in rounds))


def _of_endless(request: MixRequest, mixed: MixedSources) -> _Rounds:
    def order_of(epoch: int) -> BoundOrder:
        if request.begin(epoch + 1) > MOST_POSITIONS:
            msg = f"a mixture has positions below 2**62; epoch {epoch} of {request.epoch_samples} is beyond them"
            raise UsageError(msg)
        return MixedEpoch(mixed, epoch)

    return _Rounds(order_of, mixed.num_ids, mixed.num_chunks)


def _endless(request: MixRequest, parts: Iterator[ResolvedOrder]) -> MixedSources:
    """Return a mixture whose sources carry on from one epoch to the next."""
    sources: list[EndlessSource] = []
    for source in request.sources:
        inner = source.request
        endless: EndlessSource
        if isinstance(inner, MixRequest) and not isinstance(inner, EpochsRequest):
            endless = _endless(inner, parts)
        else:
            endless = _rounds(request, source, parts).repeated(source.num_samples)
        sources.append(endless if source.renumbering is None else RenumberedSource(endless, source.renumbering))
    return MixedSources(request.endless, sources, num_samples=request.epoch_samples)


def _rounds(request: MixRequest, source: SourceRequest, parts: Iterator[ResolvedOrder]) -> _Rounds:
    if isinstance(source.request, MixRequest):
        return _mixture(source.request, parts)
    part = next(parts)
    largest = request.largest_share(source.name)
    reach = part.order.parameters.get("chunks", 0)
    span = min(max(int(_SPANS * largest * _MOST_SPAN), _LEAST_SPAN), _MOST_SPAN)
    has_one_id = part.has_one_id
    return _Rounds(part.untouched, part.index.num_samples, part.num_order_chunks, reach, span, has_one_id)

"""The order of each epoch of a mixture, from those of its sources."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from shoal.errors import UsageError
from shoal.order.mixture.endless_source import EndlessSource, RenumberedSource, RepeatedDataset
from shoal.order.mixture.mixed_order import MixedEpoch, MixedSources
from shoal.order.mixture.source_choice import MOST_POSITIONS
from shoal.order.protocol import BoundOrder
from shoal.reading.mixture.epochs_request import EpochsRequest
from shoal.reading.mixture.mix_request import MixRequest, SourceRequest
from shoal.reading.resolved_order import ResolvedOrder

_LEAST_SPAN, _MOST_SPAN = 1 << 13, 1 << 17
_SPANS = 4  # of the mixture, which one span of a source lasts


class _Rounds(NamedTuple):
    """The orders of a source by epoch, and what `RepeatedDataset` has to know of it."""

    order_of: Callable[[int], BoundOrder]
    num_ids: int
    num_chunks: int
    reach: int = 0
    span: int | None = None
    has_one_id: bool = False

    def repeated(self, num_samples: int, epoch: int | None = None) -> RepeatedDataset:
        """Return the source, each round in the order of its own epoch or all in that of the same one."""
        order_of = self.order_of if epoch is None else (lambda _: self.order_of(epoch))
        sizes = {"num_ids": self.num_ids, "num_chunks": self.num_chunks, "reach": self.reach}
        return RepeatedDataset(num_samples, order_of, span=self.span, has_one_id=self.has_one_id, **sizes)


def epoch_orders(request: MixRequest, parts: Iterator[ResolvedOrder]) -> Callable[[int], BoundOrder]:
    """Return the order of each epoch of a mixture; ``parts`` are its datasets."""
    return _mixture(request, parts).order_of


def _mixture(request: MixRequest, parts: Iterator[ResolvedOrder]) -> _Rounds:
    if not isinstance(request, EpochsRequest):
        return _of_endless(request, _endless(request, parts))
    rounds = [_rounds(request, source, parts) for source in request.sources]

    @functools.lru_cache(2)
    def order_of(epoch: int) -> BoundOrder:
        of_sources = request.peer.source_epoch(epoch)
        sources = [each.repeated(source.num_samples_of(of_sources), of_sources)
                   for each, source in zip(rounds, request.sources, strict=True)]  # fmt: skip
        schedule = request.schedule_of(epoch)
        return MixedEpoch(MixedSources(schedule, sources, num_samples=schedule.num_samples), 0)

    return _Rounds(order_of, sum(each.num_ids for each in rounds), sum(each.num_chunks for each in rounds))


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
        made: EndlessSource
        if isinstance(inner, MixRequest) and not isinstance(inner, EpochsRequest):
            made = _endless(inner, parts)
        else:
            made = _rounds(request, source, parts).repeated(source.num_samples)
        sources.append(made if source.renumbering is None else RenumberedSource(made, source.renumbering))
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

"""The request of a mixture whose sources another library would choose: each epoch stands alone."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, cast

from shoal.errors import UsageError
from shoal.order.mixture.epochs_in_turn import CountedSources, EpochChoice, EpochOfSources, EpochsInTurn, OneEpoch
from shoal.order.mixture.integer_weights import integer_weights
from shoal.order.mixture.source_schedule import Change
from shoal.order.seeds import check_seed
from shoal.reading.mixture.mix_request import MixRequest, SourceRequest
from shoal.reading.order_request import OrderRequest

_EPOCHS_KEPT = 8  # of all mixtures; each has the sources of one block of draws


@dataclass(frozen=True)
class EpochsRequest(MixRequest):
    """A mixture as another library makes it: each epoch restarts all sources, and epochs may differ in length."""

    @property
    def peer(self) -> EpochChoice:
        """The choice of the other library."""
        return cast("EpochChoice", self.choice)

    @property
    def varies(self) -> bool:
        """True if epochs have lengths of their own."""
        inner = any(isinstance(source.request, MixRequest) and source.request.varies for source in self.sources)
        return self.peer.varies or inner

    @cached_property
    def epoch_samples(self) -> int:
        """Samples of epoch 0; if they depend on draws, up to 20 ns each.

        Raises `UsageError`: the choice does not fit the sources.
        """
        for source in self.sources:
            if isinstance(source.request, OrderRequest) and source.request.has_own_length:
                self._refuse(source, "has an order with repeats or gaps of its own")
            if not source.num_samples:
                self._refuse(source, "has no samples")
        return self.num_samples_of(0)

    @cached_property
    def schedule(self) -> CountedSources:
        """The source of every endless position; a lookup in a late epoch computes the lengths of all earlier epochs."""
        return self._epochs

    def schedule_of(self, epoch: int) -> OneEpoch:
        """Return the source of every position of one epoch."""
        of_sources = self.peer.source_epoch(epoch)
        lengths = tuple(source.num_samples_of(of_sources) for source in self.sources)
        return OneEpoch(_epoch(self.peer, lengths, self.seed, epoch), self.changes[0].weights, self.peer.world_size)

    def num_samples_of(self, epoch: int) -> int:
        """Return the samples of one epoch; if they depend on draws, this makes the draws."""
        return self.schedule_of(epoch).num_samples

    def begin(self, epoch: int) -> int:
        """Return the endless position where an epoch begins; this takes the lengths of all epochs before."""
        return self._epochs.begin(epoch)

    def exhausted_at(self) -> dict[str, int | None]:
        """Return, by name, the end of the first round of each source; None if epoch 0 ends earlier."""
        first, positions = self.schedule_of(0), dict[str, int | None]()
        for number, source in enumerate(self.sources):
            at = first.position_of(number, source.num_samples_of(0) - 1)
            positions[source.name] = None if at is None or at >= first.num_samples else at + 1
        return positions

    def reweighted(
        self,
        at: int,  # noqa: ARG002
        weights: Mapping[str, Any],  # noqa: ARG002
        ramp: int,  # noqa: ARG002
        added: Sequence[SourceRequest] = (),  # noqa: ARG002
    ) -> NoReturn:
        """Raise `UsageError`: the other library cannot change weights."""
        msg = f"reweight() changes weights, but choice={type(self.peer).__name__}(...) has none that could change"
        raise UsageError(msg, hint='choice="even" or "random"')

    @cached_property
    def _epochs(self) -> EpochsInTurn:
        return EpochsInTurn(self.names, self.schedule_of)

    def _refuse(self, source: SourceRequest, what: str) -> NoReturn:
        msg = f"the source {source.name!r} {what}, which choice={type(self.peer).__name__}(...) does not mix"
        raise UsageError(msg)


def epochs_request(sources: tuple[SourceRequest, ...], choice: EpochChoice, seed: int) -> EpochsRequest:
    """Return the request of a mixture as another library makes it; `UsageError` if the choice does not fit."""
    names = [source.name for source in sources]
    settled = choice.settled(names)
    shares = settled.shares([source.num_samples for source in sources])
    weights = integer_weights(dict(zip(names, shares, strict=True)))
    request = EpochsRequest(sources, (Change(0, weights),), settled, check_seed(seed))
    request.epoch_samples  # noqa: B018  # sources that cannot be mixed are refused here, not when iterating
    return request


@functools.lru_cache(_EPOCHS_KEPT)
def _epoch(choice: EpochChoice, lengths: tuple[int, ...], seed: int, epoch: int) -> EpochOfSources:
    """Return the sources of an epoch, cached with the random numbers drawn so far."""
    return choice.of_epoch(lengths, seed, epoch)

"""The request of a mixture: sources, weights and their changes, and the end of an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.figures import parse_bytes
from shoal.hints import did_you_mean
from shoal.order.arrays.index_ranges import Runs
from shoal.order.mixture.endless_source import Renumbering
from shoal.order.mixture.epochs_in_turn import CountedSources, EpochChoice
from shoal.order.mixture.integer_weights import integer_weights
from shoal.order.mixture.source_choice import Choice, Even
from shoal.order.mixture.source_schedule import Change, SequenceChange, SourceSchedule
from shoal.order.protocol import as_whole
from shoal.order.sampling.weights_and_classes import Sampling
from shoal.order.seeds import key
from shoal.order.window.sizing_by_bytes import DEFAULT_WINDOW_BYTES
from shoal.reading.order_request import SHUFFLED_ALREADY, OrderRequest

ENDS = ("first", "all", "forever")
FOREVER = 1 << 60
"""Samples of an epoch that has no end."""
_LEAST_EXTENTS = 4
_ASCENDING = "call reweight() in ascending order of at=; mix(weights=) sets the weights of position 0"


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """One source of a mixture: a dataset with its order (None as stored), or another mixture.

    A sample has ``mean_bytes`` decoded on average, the largest extent ``extent_bytes``. ``stored``, ``sampling`` and
    ``delivered`` are as in `ResolvedOrder`. ``mean_tokens`` is used if weights are shares of tokens. ``renumbering``
    is the new order of some samples if sequences have used later samples first.
    """

    name: str
    num_ids: int
    mean_bytes: float
    extent_bytes: int
    request: OrderRequest | MixRequest | None
    stored: Runs | None = None
    sampling: Sampling | None = None
    delivered: Runs | None = None
    mean_tokens: Fraction | None = None
    renumbering: Renumbering | None = None

    @property
    def num_samples(self) -> int:
        """Number of samples in a round."""
        if isinstance(self.request, MixRequest):
            return self.request.epoch_samples
        if self.delivered is None and self.sampling is not None:
            return self.sampling.num_samples
        left = self.delivered if self.delivered is not None else self.stored
        return self.num_ids if left is None else len(left)

    def num_samples_of(self, epoch: int) -> int:
        """Return the number of samples in a round; rounds of a nested mixture may differ in length."""
        return self.request.num_samples_of(epoch) if isinstance(self.request, MixRequest) else self.num_samples


@dataclass(frozen=True)
class MixRequest:
    """A requested mixture; `shuffle` completes it, `reweight` adds to ``changes``.

    ``max_repeats`` is the most visits of a sample in an epoch, by source. ``order_request`` has the arguments of
    `shuffle`. ``length`` is the column of tokens if weights are shares of tokens. With ``is_counted``, weights are the
    exact numbers of samples of an epoch. ``later`` are changes at given sequences.
    """

    sources: tuple[SourceRequest, ...]
    changes: tuple[Change, ...]
    choice: Choice | EpochChoice = field(default_factory=Even)
    seed: int = 0
    ends: str = "first"
    epoch_size: int | None = None
    max_repeats: Mapping[str, float] | None = None
    order_request: OrderRequest | None = None
    length: str | None = None
    is_counted: bool = False
    later: tuple[SequenceChange, ...] = ()

    has_own_length = True
    names_source = True

    def words(self, num_samples: Callable[[], str]) -> list[str]:
        """Return the sources, the number of samples and the order in words."""
        words = [f"mix(seed={self.seed}) of {', '.join(self.names)}, {num_samples()}"]
        if self.order_request is not None:
            order = self.order_request.order
            words.append(f"shuffle({'window' if order is None else order.name!r}, seed={self.order_request.seed})")
        return words

    @property
    def is_shuffled(self) -> bool:
        """True if every source has an order."""
        return self.order_request is not None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources."""
        return tuple(source.name for source in self.sources)

    @property
    def schedule(self) -> CountedSources:
        """The source of every endless position."""
        return self.endless

    @cached_property
    def endless(self) -> SourceSchedule:
        """The source of every position, where sources carry on from one epoch to the next."""
        for source in self.sources:
            if isinstance(source.request, MixRequest) and source.request.varies:
                msg = f"epochs of the mixture {source.name!r} differ in length, but mixing needs rounds of equal length"
                choice = type(source.request.choice).__name__
                hint = f"leave out choice={choice}(...), or nest the mixture in a mixture with the same choice="
                raise UsageError(msg, hint=hint)
        epoch = self.epoch_size if self.is_counted else None
        return SourceSchedule(self.names, self.changes, self.own_choice, seed=self.seed, epoch=epoch)

    def largest_share(self, name: str) -> float:
        """Return the largest share of a source at any of the weights."""
        weights = [change.weights for change in self.changes] + [change.weights for change in self.later]
        return max(shares.get(name, 0) / sum(shares.values()) for shares in weights)

    @property
    def own_choice(self) -> Choice:
        """The choice of sources; only for choices that are not copied from another library."""
        return cast("Choice", self.choice)

    @property
    def varies(self) -> bool:
        """True if epochs have lengths of their own."""
        return False

    def num_samples_of(self, epoch: int) -> int:  # noqa: ARG002
        """Return the samples of one epoch."""
        return self.epoch_samples

    def begin(self, epoch: int) -> int:
        """Return the endless position where an epoch begins."""
        return epoch * self.epoch_samples if epoch else 0

    @cached_property
    def epoch_samples(self) -> int:
        """Samples of an epoch.

        Raises `UsageError`: the epoch waits for a source that never ends, or a source repeats more than allowed.
        """
        num_samples = self.epoch_size or self._end()
        if self.max_repeats is not None:
            self._check_repeats(self.max_repeats, num_samples)
        return num_samples

    def _check_repeats(self, most: Mapping[str, float], num_samples: int) -> None:
        """Raise `UsageError` if an epoch repeats a source more often than allowed.

        The first epoch is counted. Other epochs have the same counts, except for rounding, until weights change. So the
        epochs in which weights change, and the next ones, are checked by their shares.
        """
        schedule = self.endless
        limits = {
            number: math.floor(most[source.name] * source.num_samples)
            for number, source in enumerate(self.sources)
            if source.name in most
        }
        ends = [(schedule.position_of(number, limit), number) for number, limit in limits.items()]
        at, number = min(((at, number) for at, number in ends if at is not None), default=(num_samples, 0))
        if at < num_samples:
            epoch = "an endless epoch" if num_samples == FOREVER else f"an epoch of {num_samples}"
            self._refuse_repeats(number, f"position {at} of {epoch}", at)
        usual = schedule.expected(0, num_samples)
        numbers = {start // num_samples + more for start in schedule.starts[1:] for more in (0, 1)} - {0}
        for epoch_number in sorted(numbers):
            first = epoch_number * num_samples
            expected = schedule.expected(first, first + num_samples)
            for number, limit in limits.items():
                if expected[number] > max(limit, usual[number]) + 0.5:
                    end = schedule.position_of(number, int(schedule.counts(first)[number]) + limit)
                    if end is not None and end < first + num_samples:
                        self._refuse_repeats(number, f"position {end}, in epoch {epoch_number} of {num_samples} each")

    def _refuse_repeats(self, number: int, where: str, most_samples: int = 0) -> NoReturn:
        """Raise the error; an epoch of ``most_samples`` would be allowed, unless they are 0."""
        source, most = self.sources[number], (self.max_repeats or {})[self.names[number]]
        msg = f"samples of {source.name!r} would come more often than max_repeats={most} allows: its "
        msg += f"{source.num_samples} samples are used up at {where}"
        hint = "set a smaller weight, or a larger max_repeats="
        if self.is_counted:
            hint = "take fewer samples of this source, or set a larger max_repeats="
        elif most_samples:
            hint = f"set a smaller weight, a larger max_repeats=, or epoch_size={most_samples} or less"
        raise UsageError(msg, hint=hint)

    def exhausted_at(self) -> dict[str, int | None]:
        """Return, by name, the endless position at which all samples of a source have come once; None if never."""
        positions: dict[str, int | None] = {}
        for number, source in enumerate(self.sources):
            last = self.endless.position_of(number, source.num_samples - 1)
            positions[source.name] = None if last is None else last + 1
        return positions

    def _end(self) -> int:
        if self.ends == "forever":
            return FOREVER
        sizes, run = np.array([source.num_samples for source in self.sources]), self.own_choice.run
        if self.ends == "all":
            if (end := self.endless.first_position(lambda counts: (counts >= sizes).all())) is not None:
                return -(-end // run) * run
            never = next(name for name, at in self.exhausted_at().items() if at is None)
            msg = f'ends="all" waits for every source, but {never!r} never comes to its end: '
            msg += "its weight is 0, or too small to reach it within 2**62 positions"
            raise UsageError(msg, hint='set ends="first" or epoch_size=, or leave out that source')
        if (beyond := self.endless.first_position(lambda counts: (counts > sizes).any())) is None:
            msg = 'ends="first" needs a source that ends, but all weights become 0 before a source ends'
            raise UsageError(msg, hint='set epoch_size= or ends="forever"')
        # Whole runs, so that the runs of the next epoch begin with its batches.
        if beyond <= run:
            msg = f"a source has fewer samples than the {run} of a batch from one source: "
            msg += f'ends="first" would end the epoch at position {beyond - 1}'
            raise UsageError(msg, hint='ends="all" or ends="forever", or a smaller batch')
        return (beyond - 1) // run * run

    def round_at(self, position: int) -> int:
        """Return the number of positions for a round of every source, at the weights of this endless position.

        Sources of weight 0 are left out; the sources of a nested mixture count as sources.
        """
        weights, counts, longest = self.schedule.weights_at(position), self.counts(position).tolist(), 0
        for source, count in zip(self.sources, counts, strict=True):
            inner, weight = source.request, weights[source.name]
            samples = inner.round_at(count) if isinstance(inner, MixRequest) else source.num_samples
            longest = max(longest, -(-samples * sum(weights.values()) // weight) if weight else 0)
        return longest

    def counts(self, position: int) -> NDArray[np.int64]:
        """Count the samples of each source before an endless position."""
        return self.schedule.counts(position)

    def shuffled(self, request: OrderRequest) -> MixRequest:
        """Give this order to every source without an order; allowed once."""
        if self.is_shuffled:
            raise UsageError(SHUFFLED_ALREADY, hint="a larger window= mixes more")
        return self._ordered(request)

    def _ordered(self, request: OrderRequest) -> MixRequest:
        """Give this order to every source without an order; a window in bytes is shared among them.

        The share of a source is its part of the bytes that the mixture reads, at the largest weight of the source: so
        chunks stay in all windows for the same number of positions. The seed depends on the name of the source.
        """
        rates = {source.name: self.largest_share(source.name) * source.mean_bytes for source in self.sources}
        total = sum(rates.values()) or 1.0
        sources = []
        for source in self.sources:
            window = self._window(request, source, rates[source.name] / total) if request.order is None else None
            own = replace(request, window=window, seed=key(request.seed, 0, f"source {source.name}"))
            if source.request is None:
                sources.append(replace(source, request=own))
            elif isinstance(source.request, MixRequest) and not source.request.is_shuffled:
                sources.append(replace(source, request=source.request.shuffled(own)))
            else:
                sources.append(source)
        return replace(self, sources=tuple(sources), order_request=request)

    def _window(self, request: OrderRequest, source: SourceRequest, share: float) -> int:
        total_bytes = parse_bytes(DEFAULT_WINDOW_BYTES if request.window is None else request.window, "window")
        all_bytes = max(1, math.ceil(source.mean_bytes * source.num_ids))
        return max(round(total_bytes * share), min(_LEAST_EXTENTS * source.extent_bytes, all_bytes))

    def leaves(self, prefix: str = "") -> Iterator[tuple[str, SourceRequest]]:
        """Yield the datasets of the mixture and of its nested mixtures, with their full names."""
        for source in self.sources:
            if isinstance(source.request, MixRequest):
                yield from source.request.leaves(f"{prefix}{source.name}/")
            else:
                yield prefix + source.name, source

    def reweighted(
        self, at: int, weights: Mapping[str, Any], ramp: int, added: Sequence[SourceRequest] = ()
    ) -> MixRequest:
        """Return the mixture with other weights from a position on; positions before it do not change."""
        at, ramp, sources, shares = self._checked(at, weights, ramp, added)
        if at < self.changes[-1].at or not at:
            msg = f"reweight(at={at}) does not come after the change at {self.changes[-1].at}"
            raise UsageError(msg, hint=_ASCENDING)
        kept = tuple(change for change in self.changes if change.at < at)
        return self._changed(replace(self, sources=sources, changes=(*kept, Change(at, shares, ramp))), added)

    def reweighted_later(
        self, epoch: int, at: int, weights: Mapping[str, Any], ramp: int, added: Sequence[SourceRequest] = ()
    ) -> MixRequest:
        """Return the mixture with other weights from a sequence of an epoch on; sequences before it do not change."""
        at, ramp, sources, shares = self._checked(at, weights, ramp, added)
        change = SequenceChange(epoch, at, shares, ramp)
        last = self.later[-1].place if self.later else (0, 0)
        if change.place < last or change.place == (0, 0):
            msg = f"reweight(at={at}, epoch={epoch}) does not come after the change at {last[1]} of epoch {last[0]}"
            raise UsageError(msg, hint=_ASCENDING)
        kept = tuple(earlier for earlier in self.later if earlier.place < change.place)
        return self._changed(replace(self, sources=sources, later=(*kept, change)), added)

    def _changed(self, changed: MixRequest, added: Sequence[SourceRequest]) -> MixRequest:
        """Return the request with other weights; added sources get the order of the old sources."""
        return changed if self.order_request is None or not added else changed._ordered(self.order_request)

    def _checked(
        self, at: int, weights: Mapping[str, Any], ramp: int, added: Sequence[SourceRequest]
    ) -> tuple[int, int, tuple[SourceRequest, ...], dict[str, int]]:
        """Return the checked arguments of `reweighted`, with weights as shares of samples of all sources."""
        at, ramp = as_whole("reweight(at)", at), as_whole("reweight(ramp)", ramp)
        if not hasattr(weights, "items"):
            msg = f"reweight(weights=) takes weights by the name of the source; got {weights!r:.80}"
            raise UsageError(msg, hint=f"{{{self.names[0]!r}: 0.5, ...}}")
        for name, value in (("at", at), ("ramp", ramp)):
            if not 0 <= value <= FOREVER:
                raise UsageError(f"reweight({name}=) is a number of positions from 0 to 2**60; got {value}")
        sources = (*self.sources, *added)
        check_names("weights=", weights, [source.name for source in sources])
        return at, ramp, sources, shares_of_samples(weights, sources)


def shares_of_samples(weights: Mapping[str, Any], sources: Sequence[SourceRequest]) -> dict[str, int]:
    """Return integer weights of samples by name; the given weight of a source with ``mean_tokens`` counts tokens."""
    shares = integer_weights(weights)
    means = {source.name: source.mean_tokens for source in sources if source.mean_tokens is not None}
    return integer_weights({name: share / means[name] for name, share in shares.items()}) if means else shares


def check_names(argument: str, by_name: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise `UsageError` unless an argument has exactly the names of the sources."""
    unknown, missing = [name for name in by_name if name not in names], [name for name in names if name not in by_name]
    if unknown:
        msg = f"{argument} names {unknown[0]!r}; the sources are {', '.join(map(repr, names))}"
        raise UsageError(msg, hint=did_you_mean(str(unknown[0]), names).rstrip())
    if missing:
        msg = f"{argument} does not name the source{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))}"
        raise UsageError(msg, hint="name every source; 0 leaves one out")

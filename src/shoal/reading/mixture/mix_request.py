"""The request of a mixture: sources, weights and their changes, and where an epoch ends."""

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
_ASCENDING = "call reweight() in ascending order of at=; mix(weights=) sets those of position 0"


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """One source of a mixture: a dataset with its order, or another mixture.

    Parameters
    ----------
    num_ids, mean_bytes, extent_bytes
        Samples of the dataset; decoded bytes of one on average, and of the largest extent.
    request, stored, sampling, delivered
        As in a dataset: the order (None for that of storage), and the samples that take part.
    mean_tokens
        Tokens of a sample on average, if weights are shares of tokens.
    renumbering
        Order of the samples of one stretch, if sequences have taken some of it before others; None for their own.
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
        """Samples of a round."""
        if isinstance(self.request, MixRequest):
            return self.request.epoch_samples
        if self.delivered is None and self.sampling is not None:
            return self.sampling.num_samples
        left = self.delivered if self.delivered is not None else self.stored
        return self.num_ids if left is None else len(left)

    def num_samples_of(self, epoch: int) -> int:
        """Return the samples of one round, where rounds of a nested mixture have lengths of their own."""
        return self.request.num_samples_of(epoch) if isinstance(self.request, MixRequest) else self.num_samples


@dataclass(frozen=True)
class MixRequest:
    """A mixture as it was asked for; `shuffle` completes it, `reweight` adds to ``changes``.

    ``max_repeats`` is the most visits of a sample in an epoch, by source; ``asked`` what `shuffle` was given;
    ``length`` the column of tokens, if weights are shares of them. ``is_counted`` says that weights are the exact
    numbers of samples of an epoch. ``later`` are changes at given sequences, where documents are packed.
    """

    sources: tuple[SourceRequest, ...]
    changes: tuple[Change, ...]
    choice: Choice | EpochChoice = field(default_factory=Even)
    seed: int = 0
    ends: str = "first"
    epoch_size: int | None = None
    max_repeats: Mapping[str, float] | None = None
    asked: OrderRequest | None = None
    length: str | None = None
    is_counted: bool = False
    later: tuple[SequenceChange, ...] = ()

    has_own_length = True
    names_source = True

    def words(self, num_samples: Callable[[], str]) -> list[str]:
        """Return the sources, the number of samples and the order in words."""
        length = "endless" if self.epoch_samples > FOREVER // 2 else num_samples()
        words = [f"mix(seed={self.seed}) of {', '.join(self.names)}, {length}"]
        if self.asked is not None:
            order = self.asked.order
            words.append(f"shuffle({'window' if order is None else order.name!r}, seed={self.asked.seed})")
        return words

    @property
    def is_shuffled(self) -> bool:
        """True if every source has an order."""
        return self.asked is not None

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
                msg = f"epochs of the mixture {source.name!r} differ in length, so it has no rounds to be mixed in"
                raise UsageError(msg, hint=f"leave out choice={type(source.request.choice).__name__}(...), or nest it "
                                 "in another of that kind")  # fmt: skip
        epoch = self.epoch_size if self.is_counted else None
        return SourceSchedule(self.names, self.changes, self.own_choice, seed=self.seed, epoch=epoch)

    def largest_share(self, name: str) -> float:
        """Return the largest share of a source at any of the weights."""
        weights = [change.weights for change in self.changes] + [change.weights for change in self.later]
        return max(each.get(name, 0) / sum(each.values()) for each in weights)

    @property
    def own_choice(self) -> Choice:
        """The choice, which is none of another library."""
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

        Raises
        ------
        UsageError
            A source never comes to its end, though the epoch is to wait for it, or would repeat more than allowed.
        """
        num_samples = self.epoch_size or self._end()
        if self.max_repeats is not None:
            self._check_repeats(self.max_repeats, num_samples)
        return num_samples

    def _check_repeats(self, most: Mapping[str, float], num_samples: int) -> None:
        """Raise `UsageError` if an epoch has more samples of a source than it may repeat.

        The first epoch is counted. Until weights change, others have the same counts, give or take a few by rounding.
        So of these, the ones are checked in which weights change, or first stay the same throughout, by their shares.
        """
        schedule = self.endless
        limits = [
            math.floor(most[source.name] * source.num_samples) if source.name in most else None
            for source in self.sources
        ]
        ends = [(at, number) for number, limit in enumerate(limits)
                if limit is not None and (at := schedule.position_of(number, limit)) is not None]  # fmt: skip
        at, number = min(ends, default=(num_samples, 0))
        if at < num_samples:
            epoch = "an endless epoch" if num_samples == FOREVER else f"an epoch of {num_samples}"
            self._refuse_repeats(number, f"position {at} of {epoch}", at)
        usual = schedule.expected(0, num_samples)
        numbers = {start // num_samples + more for start in schedule.starts[1:] for more in (0, 1)} - {0}
        for epoch_number in sorted(numbers):
            first = epoch_number * num_samples
            expected = schedule.expected(first, first + num_samples)
            for number, limit in enumerate(limits):
                if limit is not None and expected[number] > max(limit, usual[number]) + 0.5:
                    at = schedule.position_of(number, int(schedule.counts(first)[number]) + limit)
                    if at is not None and at < first + num_samples:
                        self._refuse_repeats(number, f"position {at}, in epoch {epoch_number} of {num_samples} each")

    def _refuse_repeats(self, number: int, where: str, most_samples: int = 0) -> NoReturn:
        """Raise the error; an epoch of ``most_samples`` would be allowed, if any."""
        source, most = self.sources[number], (self.max_repeats or {})[self.names[number]]
        msg = f"samples of {source.name!r} would come more often than max_repeats={most} allows: its "
        msg += f"{source.num_samples} samples are used up at {where}"
        if self.is_counted:
            raise UsageError(msg, hint="a smaller number of its samples, or a larger max_repeats=")
        if not most_samples:
            raise UsageError(msg, hint="a smaller weight, or a larger max_repeats=")
        raise UsageError(msg, hint=f"a smaller weight, a larger max_repeats=, or epoch_size={most_samples} or less")

    def exhausted_at(self) -> dict[str, int | None]:
        """Return by name the endless position after which each source has come once; None if it never has."""
        found: dict[str, int | None] = {}
        for number, source in enumerate(self.sources):
            last = self.endless.position_of(number, source.num_samples - 1)
            found[source.name] = None if last is None else last + 1
        return found

    def _end(self) -> int:
        if self.ends == "forever":
            return FOREVER
        sizes, run = np.array([source.num_samples for source in self.sources]), self.own_choice.run
        if self.ends == "all":
            if (end := self.endless.first_position(lambda counts: (counts >= sizes).all())) is not None:
                return -(-end // run) * run
            never = next(name for name, at in self.exhausted_at().items() if at is None)
            msg = f'ends="all" waits for every source, and {never!r} never comes to its end: '
            msg += "its weight is 0, or too small to reach it within 2**62 positions"
            raise UsageError(msg, hint='ends="first", epoch_size=, or leave that source out')
        if (beyond := self.endless.first_position(lambda counts: (counts > sizes).any())) is None:
            msg = 'ends="first" needs a source that comes to its end; all weights become 0 before'
            raise UsageError(msg, hint='epoch_size= or ends="forever"')
        # Whole runs, so that those of the next epoch begin with its batches.
        if beyond <= run:
            msg = f"a source has fewer samples than the {run} of a batch from one source: "
            msg += f'ends="first" would end the epoch at position {beyond - 1}'
            raise UsageError(msg, hint='ends="all" or ends="forever", or a smaller batch')
        return (beyond - 1) // run * run

    def round_at(self, position: int) -> int:
        """Return how many positions a round of every source takes, at the weights of this endless position.

        Sources that do not come there are left out; those of a nested mixture count as sources.
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

    def shuffled(self, asked: OrderRequest) -> MixRequest:
        """Give every source that has no order yet this one; allowed once."""
        if self.is_shuffled:
            raise UsageError(SHUFFLED_ALREADY, hint="a larger window= mixes more")
        return self._ordered(asked)

    def _ordered(self, asked: OrderRequest) -> MixRequest:
        """Give every source that has no order yet this one; a window in bytes is shared among them.

        A source's share is its part of the bytes that the mixture reads, at its largest weight: so chunks stay in all
        windows for equally many positions. Its seed is made from its name.
        """
        rates = {source.name: self.largest_share(source.name) * source.mean_bytes for source in self.sources}
        total = sum(rates.values()) or 1.0
        sources = []
        for source in self.sources:
            seeded = replace(asked, seed=key(asked.seed, 0, f"source {source.name}"))
            if isinstance(source.request, MixRequest):
                inner = source.request
                share = self._share(asked, source, rates[source.name] / total)
                sources.append(source if inner.is_shuffled else replace(source, request=inner.shuffled(
                    replace(seeded, window=share if asked.order is None else None))))  # fmt: skip
            elif source.request is None:
                window = self._share(asked, source, rates[source.name] / total) if asked.order is None else None
                sources.append(replace(source, request=replace(seeded, window=window)))
            else:
                sources.append(source)
        return replace(self, sources=tuple(sources), asked=asked)

    def _share(self, asked: OrderRequest, source: SourceRequest, share: float) -> int:
        total_bytes = parse_bytes(DEFAULT_WINDOW_BYTES if asked.window is None else asked.window, "window")
        all_bytes = max(1, math.ceil(source.mean_bytes * source.num_ids))
        return max(round(total_bytes * share), min(_LEAST_EXTENTS * source.extent_bytes, all_bytes))

    def leaves(self, prefix: str = "") -> Iterator[tuple[str, SourceRequest]]:
        """Yield the datasets of the mixture and of those nested in it, with their full names."""
        for source in self.sources:
            if isinstance(source.request, MixRequest):
                yield from source.request.leaves(f"{prefix}{source.name}/")
            else:
                yield prefix + source.name, source

    def reweighted(
        self, at: int, weights: Mapping[str, Any], ramp: int, added: Sequence[SourceRequest] = ()
    ) -> MixRequest:
        """Return the mixture with other weights from a position on; positions before it do not change."""
        at, ramp, sources, shares = self._asked(at, weights, ramp, added)
        if at < self.changes[-1].at or not at:
            msg = f"reweight(at={at}) does not come after the change at {self.changes[-1].at}"
            raise UsageError(msg, hint=_ASCENDING)
        kept = tuple(change for change in self.changes if change.at < at)
        return self._changed(replace(self, sources=sources, changes=(*kept, Change(at, shares, ramp))), added)

    def reweighted_later(
        self, epoch: int, at: int, weights: Mapping[str, Any], ramp: int, added: Sequence[SourceRequest] = ()
    ) -> MixRequest:
        """Return the mixture with other weights from a sequence of an epoch on; sequences before it do not change."""
        at, ramp, sources, shares = self._asked(at, weights, ramp, added)
        change = SequenceChange(epoch, at, shares, ramp)
        last = self.later[-1].place if self.later else (0, 0)
        if change.place < last or change.place == (0, 0):
            msg = f"reweight(at={at}, epoch={epoch}) does not come after the change at {last[1]} of epoch {last[0]}"
            raise UsageError(msg, hint=_ASCENDING)
        kept = tuple(each for each in self.later if each.place < change.place)
        return self._changed(replace(self, sources=sources, later=(*kept, change)), added)

    def _changed(self, changed: MixRequest, added: Sequence[SourceRequest]) -> MixRequest:
        """Return the request with other weights; added sources get the order of the others."""
        return changed if self.asked is None or not added else changed._ordered(self.asked)

    def _asked(
        self, at: int, weights: Mapping[str, Any], ramp: int, added: Sequence[SourceRequest]
    ) -> tuple[int, int, tuple[SourceRequest, ...], dict[str, int]]:
        """Return the arguments of `reweighted`, checked: the weights as shares of samples of all sources."""
        at, ramp = as_whole("reweight(at)", at), as_whole("reweight(ramp)", ramp)
        if not hasattr(weights, "items"):
            msg = f"reweight(weights=) takes weights by the name of the source; got {weights!r:.80}"
            raise UsageError(msg, hint=f"{{{self.names[0]!r}: 0.5, ...}}")
        if wrong := [each for each in (("at", at), ("ramp", ramp)) if not 0 <= each[1] <= FOREVER]:
            raise UsageError(f"reweight({wrong[0][0]}=) is a number of positions from 0 to 2**60; got {wrong[0][1]}")
        sources = (*self.sources, *added)
        check_names("weights=", weights, [source.name for source in sources])
        return at, ramp, sources, shares_of_samples(weights, sources)


def shares_of_samples(weights: Mapping[str, Any], sources: Sequence[SourceRequest]) -> dict[str, int]:
    """Return integer weights of samples, by name; of a source with ``mean_tokens``, the given one counts tokens."""
    shares = integer_weights(weights)
    means = {source.name: source.mean_tokens for source in sources if source.mean_tokens is not None}
    return integer_weights({name: share / means[name] for name, share in shares.items()}) if means else shares


def check_names(argument: str, given: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise `UsageError` unless every name given to an argument is that of a source, and every source is named."""
    unknown, missing = [name for name in given if name not in names], [name for name in names if name not in given]
    if unknown:
        msg = f"{argument} names {unknown[0]!r}; the sources are {', '.join(map(repr, names))}"
        raise UsageError(msg, hint=did_you_mean(str(unknown[0]), names).rstrip())
    if missing:
        msg = f"{argument} does not name the source{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))}"
        raise UsageError(msg, hint="name every source; 0 leaves one out")

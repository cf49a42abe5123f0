"""Choices of the source of each position, source for source as in other libraries.

In each epoch the sources restart, in the order of the epoch. A source that restarts within an epoch repeats the same
order.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from shoal.errors import UsageError
from shoal.hints import did_you_mean
from shoal.order.mixture.epochs_in_turn import EpochChoice, EpochOfSources
from shoal.order.protocol import as_whole
from shoal.order.seeds import key
from shoal.peers.mixing.drawn_sources import (
    Dropping,
    SourceOfDraw,
    WithoutRepeats,
    WithRepeats,
    cumulated_shares,
)
from shoal.peers.mixing.sources_in_turn import Concatenated, SourcesInTurn

STOPPING = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement")
EPOCHS = ("new", "same")
_TOLERANCE = float(np.sqrt(np.finfo(np.float64).eps))  # as in Generator.choice
_MOST_LISTED = 8
_MOST_DRAWS = 1 << 40  # take two hours

Probabilities = Sequence[float] | Mapping[str, float] | None


@dataclass(frozen=True, slots=True)
class Interleave(EpochChoice):
    """The sources as in ``datasets.interleave_datasets`` of Hugging Face, with the seed of the mixture.

    Parameters
    ----------
    probabilities
        Probability of each source, with a sum of 1: in the order of the sources, or by name. None takes the sources in
        turn.
    stopping
        "first_exhausted": an epoch ends when the first source is used up. "all_exhausted": it ends when each source has
        been used up once, and used-up sources start again. "all_exhausted_without_replacement": the same without
        repeats.
    epochs
        "new": as in an ``IterableDataset`` of releases from 4.6 on, ``set_epoch`` reorders sources, and draws depend on
        the number of the epoch alone; the seed counts only in epoch 0. "same": as up to 4.5, and with map-style
        datasets, every epoch is like epoch 0.
    whole_turns
        True: as with map-style datasets without probabilities, the epoch ends after whole turns, not within a turn.
    world_size
        World size of a run split by examples: rank ``r`` has every ``world_size``-th position, from position ``r`` on.
        ``split_dataset_by_node`` splits by examples if the least number of shards of a source is not a multiple of the
        world size.

    Notes
    -----
    With probabilities, a position and the length of an epoch cost all draws up to there once, 5 to 20 ns per draw.
    A draw is a double of ``numpy.random.default_rng(seed)``, a stream that changes only with a release note (NEP 19).

    References
    ----------
    ``CyclingMultiSourcesExamplesIterable`` and ``RandomlyCyclingMultiSourcesExamplesIterable`` in
    ``datasets/iterable_dataset.py``; ``_interleave_map_style_datasets`` in ``datasets/arrow_dataset.py``.

    Examples
    --------
    >>> choice = shoal.mixing.Interleave(probabilities=[0.7, 0.3], stopping="all_exhausted")
    >>> epoch = choice.of_epoch([4, 3], seed=42, epoch=0)
    >>> epoch.sources(0, epoch.num_samples).tolist()
    [1, 0, 1, 0, 0, 1, 1, 1, 0]
    """

    name: ClassVar[str] = "interleave"
    probabilities: Probabilities = None
    stopping: str = "first_exhausted"
    epochs: str = "new"
    whole_turns: bool = False
    world_size: int = 1

    def __post_init__(self) -> None:
        _one_of("Interleave(stopping)", self.stopping, STOPPING)
        _one_of("Interleave(epochs)", self.epochs, EPOCHS)
        object.__setattr__(self, "probabilities", _listed("Interleave", self.probabilities))
        object.__setattr__(self, "world_size", _world_size(self.world_size))

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Arguments that distinguish choices, as JSON types; ranks change no position."""
        others = {"epochs": self.epochs, "whole_turns": self.whole_turns}
        return {"probabilities": _for_state(self.probabilities), "stopping": self.stopping, **others}

    @property
    def varies(self) -> bool:
        """True if draws determine the length of each epoch."""
        repeats = self.stopping != "all_exhausted_without_replacement"
        return self.probabilities is not None and self.epochs == "new" and repeats

    def settled(self, names: Sequence[str]) -> Self:
        """Return the choice for these sources; raise `UsageError` if the choice does not fit."""
        shares = _in_order("Interleave", self.probabilities, names)
        if shares is not None and abs(math.fsum(shares) - 1) > _TOLERANCE:
            raise UsageError(f"Interleave(probabilities) must have a sum of 1; got {math.fsum(shares)!r}")
        if shares is not None and 0 in shares and self.stopping != "first_exhausted":
            msg = f"the source {names[shares.index(0)]!r} has probability 0 and never ends; "
            msg += f"stopping={self.stopping!r} would wait forever"
            raise UsageError(msg, hint='set stopping="first_exhausted", or leave out this source')
        return replace(self, probabilities=shares)

    def shares(self, lengths: Sequence[int]) -> Sequence[float]:
        """Return the share of each source while no source is used up."""
        return [1.0] * len(lengths) if self.probabilities is None else _values(self.probabilities)

    def source_epoch(self, epoch: int) -> int:
        """Return the epoch of the sources in an epoch of the mixture."""
        return epoch if self.epochs == "new" else 0

    def of_epoch(self, lengths: Sequence[int], seed: int, epoch: int) -> EpochOfSources:
        """Return the sources of an epoch; each source has at least one sample."""
        if self.probabilities is None:
            return self._in_turn(lengths)
        self._check_draws(lengths)
        cumulated = np.asarray(_values(self.probabilities)).cumsum()
        cumulated /= cumulated[-1]
        source_of, generator = SourceOfDraw(cumulated, "right"), _hf_generator(seed, self.source_epoch(epoch))
        if self.stopping == "all_exhausted_without_replacement":
            return WithoutRepeats(lengths, generator, source_of)
        return WithRepeats(lengths, generator, source_of, waits_for_all=self.stopping == "all_exhausted")

    def _check_draws(self, lengths: Sequence[int]) -> None:
        """Raise `UsageError` if a source needs too many draws to end."""
        draws = [length / max(share, 1e-300) for length, share in zip(lengths, self.shares(lengths), strict=True)]
        if self.stopping != "first_exhausted" and max(draws) > _MOST_DRAWS:
            slowest = draws.index(max(draws))
            msg = f"stopping={self.stopping!r} waits for {lengths[slowest]} samples of a source with probability "
            msg += f"{self.shares(lengths)[slowest]:.2g}: an epoch takes about {draws[slowest]:.2g} draws"
            raise UsageError(msg, hint="give this source a larger probability, or leave it out")

    def _in_turn(self, lengths: Sequence[int]) -> SourcesInTurn:
        if self.stopping == "all_exhausted_without_replacement":
            return SourcesInTurn(lengths, sum(lengths))
        # The epoch ends with the last source of the last turn.
        turns, last = min(lengths), lengths.index(min(lengths))
        if self.stopping == "all_exhausted":
            turns, last = max(lengths), max(source for source, length in enumerate(lengths) if length == max(lengths))
        return _turns(len(lengths), turns * len(lengths) if self.whole_turns else (turns - 1) * len(lengths) + last + 1)


@dataclass(frozen=True, slots=True)
class Concatenate(EpochChoice):
    """The sources one after another, as in ``datasets.concatenate_datasets`` of Hugging Face.

    All epochs of map-style datasets are concatenated, and all epochs of an ``IterableDataset`` of releases up to 4.5.
    From 4.6 on, only epoch 0 is concatenated; later epochs shuffle the shards of all sources together, without a
    mixture.

    Parameters
    ----------
    epochs
        "new" if sources have the order of each epoch, "same" if every epoch is like epoch 0.
    world_size
        See `Interleave`.

    References
    ----------
    ``VerticallyConcatenatedMultiSourcesExamplesIterable`` in ``datasets/iterable_dataset.py``.

    Examples
    --------
    >>> epoch = shoal.mixing.Concatenate().of_epoch([4, 3], seed=0, epoch=0)
    >>> epoch.sources(0, epoch.num_samples).tolist()
    [0, 0, 0, 0, 1, 1, 1]
    """

    name: ClassVar[str] = "concatenate"
    epochs: str = "new"
    world_size: int = 1

    def __post_init__(self) -> None:
        _one_of("Concatenate(epochs)", self.epochs, EPOCHS)
        object.__setattr__(self, "world_size", _world_size(self.world_size))

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Arguments that distinguish choices of this name, as JSON types."""
        return {"epochs": self.epochs}

    def shares(self, lengths: Sequence[int]) -> Sequence[float]:
        """Return the share of each source in an epoch."""
        return [float(length) for length in lengths]

    def source_epoch(self, epoch: int) -> int:
        """Return the epoch of the sources in an epoch of the mixture."""
        return epoch if self.epochs == "new" else 0

    def of_epoch(self, lengths: Sequence[int], seed: int, epoch: int) -> EpochOfSources:  # noqa: ARG002
        """Return the sources of an epoch; each source has at least one sample."""
        return Concatenated(lengths)


@dataclass(frozen=True, slots=True)
class RandomMix(EpochChoice):
    """The sources as in ``webdataset.RandomMix``.

    RandomMix of WebDataset draws from Python's ``random`` without a seed, so no two runs are alike. Here RandomMix has
    a seed: epoch 0 equals RandomMix after ``random.seed(seed)``, with the seed of the mixture, if nothing else draws
    from ``random``; later epochs equal RandomMix after `random_seed`.

    Parameters
    ----------
    probs
        Weights of any sum, in the order of the sources or by name; default equal weights.
    longest
        True if an epoch has each sample once; False if a draw of a used-up source ends the epoch.

    References
    ----------
    ``random_samples`` in ``webdataset/mix.py``.

    Examples
    --------
    >>> epoch = shoal.mixing.RandomMix(longest=True).of_epoch([4, 3], seed=0, epoch=0)
    >>> epoch.sources(0, epoch.num_samples).tolist()
    [1, 1, 0, 0, 1, 0, 0]
    """

    name: ClassVar[str] = "random_mix"
    probs: Probabilities = None
    longest: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "probs", _listed("RandomMix", self.probs))

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Arguments that distinguish choices of this name, as JSON types."""
        return {"probs": _for_state(self.probs), "longest": self.longest}

    @property
    def varies(self) -> bool:
        """True if epochs differ in length."""
        return not self.longest

    def settled(self, names: Sequence[str]) -> Self:
        """Return the choice for these sources; raise `UsageError` if the choice does not fit."""
        weights = _in_order("RandomMix", self.probs, names)
        if weights is not None and not sum(weights):
            raise UsageError("RandomMix(probs) needs a weight above zero")
        return replace(self, probs=weights)

    def shares(self, lengths: Sequence[int]) -> Sequence[float]:
        """Return the share of each source while no source is used up."""
        return [1.0] * len(lengths) if self.probs is None else _values(self.probs)

    @staticmethod
    def random_seed(seed: int, epoch: int) -> int:
        """Return the argument of `random.seed` before an epoch: the mixture's seed in epoch 0, then a hash."""
        return seed if epoch == 0 else key(seed, epoch, "RandomMix")

    def of_epoch(self, lengths: Sequence[int], seed: int, epoch: int) -> EpochOfSources:
        """Return the sources of an epoch; each source has at least one sample."""
        weights = np.asarray(self.shares(lengths))
        generator = _python_generator(self.random_seed(seed, epoch))
        if self.longest:
            return Dropping(lengths, generator, weights)
        return WithRepeats(lengths, generator, cumulated_shares(weights), waits_for_all=False, spare=1)


@dataclass(frozen=True, slots=True)
class RoundRobin(EpochChoice):
    """The sources in turn, as in ``webdataset.RoundRobin``.

    Parameters
    ----------
    longest
        True if an epoch has each sample once, and used-up sources are skipped; False if the turn of a used-up source
        ends the epoch.

    References
    ----------
    ``round_robin_shortest`` and ``round_robin_longest`` in ``webdataset/mix.py``.

    Examples
    --------
    >>> epoch = shoal.mixing.RoundRobin(longest=True).of_epoch([4, 2], seed=0, epoch=0)
    >>> epoch.sources(0, epoch.num_samples).tolist()
    [0, 1, 0, 1, 0, 0]
    """

    name: ClassVar[str] = "round_robin"
    longest: bool = False

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Arguments that distinguish choices of this name, as JSON types."""
        return {"longest": self.longest}

    def shares(self, lengths: Sequence[int]) -> Sequence[float]:
        """Return the share of each source while no source is used up."""
        return [1.0] * len(lengths)

    def of_epoch(self, lengths: Sequence[int], seed: int, epoch: int) -> EpochOfSources:  # noqa: ARG002
        """Return the sources of an epoch; each source has at least one sample."""
        if self.longest:
            return SourcesInTurn(lengths, sum(lengths))
        return _turns(len(lengths), min(lengths) * len(lengths) + lengths.index(min(lengths)))


def _hf_generator(seed: int, epoch: int) -> np.random.Generator:
    """Return the generator of an epoch: ``shuffle_data_sources`` and ``shift_rngs`` of datasets from 4.6 on."""
    if epoch == 0:
        return np.random.default_rng(seed)
    return np.random.default_rng(int(np.random.default_rng(epoch).integers(0, 1 << 63)) - epoch)


def _python_generator(seed: int) -> np.random.Generator:
    """Return a generator of the numbers of ``random.random()`` after ``random.seed(seed)``."""
    *words, position = random.Random(seed).getstate()[1]  # noqa: S311  # the generator of RandomMix
    bits = np.random.MT19937(0)
    bits.state = {
        "bit_generator": "MT19937",
        "state": {"key": np.array(words, dtype=np.uint32), "pos": position},
    }
    return np.random.Generator(bits)


def _turns(num_sources: int, num_samples: int) -> SourcesInTurn:
    """Return sources in strict turn (0, 1, ..., 0, 1, ...) up to a position."""
    return SourcesInTurn([-(-(num_samples - source) // num_sources) for source in range(num_sources)], num_samples)


def _one_of(what: str, value: object, valid: tuple[str, ...]) -> None:
    if value not in valid:
        msg = f"{what} is one of {', '.join(map(repr, valid))}; got {value!r:.80}"
        raise UsageError(msg, hint=did_you_mean(str(value), valid).rstrip())


def _world_size(value: object) -> int:
    number = as_whole("world_size", value)
    if not 1 <= number < 1 << 24:
        raise UsageError(f"world_size is a number of ranks, from 1 to 2**24 - 1; got {number}")
    return number


def _listed(what: str, given: Any) -> Any:
    """Return probabilities as a tuple or a mapping by name; raise `UsageError` for an invalid probability."""
    if given is None:
        return None
    named = dict(given) if isinstance(given, Mapping) else None
    try:
        values = [float(value) for value in (given if named is None else named.values())]
    except (TypeError, ValueError):
        values = []
    if not values or not all(0 <= value < math.inf for value in values):
        raise UsageError(f"{what} takes a probability of at least 0 for each source; got {given!r:.80}")
    return tuple(values) if named is None else dict(zip(named, values, strict=True))


def _in_order(what: str, given: Any, names: Sequence[str]) -> tuple[float, ...] | None:
    """Return probabilities in the order of the sources."""
    if isinstance(given, Mapping) and set(given) != set(names):
        msg = f"{what} has probabilities of {', '.join(map(repr, given))}; the sources are "
        msg += ", ".join(map(repr, names))
        raise UsageError(msg)
    if given is not None and len(given) != len(names):
        raise UsageError(f"{what} has {len(given)} probabilities for {len(names)} sources")
    if given is None or not isinstance(given, Mapping):
        return None if given is None else tuple(given)
    return tuple(given[name] for name in names)


def _values(given: Any) -> list[float]:
    return list(given.values()) if isinstance(given, Mapping) else list(given)


def _for_state(given: Any) -> Any:
    """Return probabilities for a state; a digest for many probabilities."""
    if given is None or len(given) <= _MOST_LISTED:
        return None if given is None else _values(given)
    return hashlib.blake2b(json.dumps(_values(given)).encode(), digest_size=8).hexdigest()

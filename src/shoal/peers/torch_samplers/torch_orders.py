"""The orders of torch's `RandomSampler` and `DistributedSampler`: a run over a list can continue as a stream.

Both samplers permute the whole dataset with ``torch.randperm``: a Fisher-Yates shuffle over the words of a Mersenne
twister. The whole permutation is computed at once: 8 bytes per sample during the computation, 4 bytes afterwards.

References
----------
``torch/utils/data/sampler.py``, ``distributed.py`` and ``dataloader.py``; ``torchdata/stateful_dataloader/sampler.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from shoal.errors import StateError, UsageError
from shoal.order.protocol import AXIS_BITS, Adopted, Moved, check_chunk_samples, check_counts, check_flags
from shoal.order.seeds import check_epoch, check_seed
from shoal.peers.mersenne_twister import MersenneWords, words_after, words_passed
from shoal.peers.peer_epoch import RepeatingEpoch
from shoal.peers.torch_samplers.torch_numbers import bounded, permutation, words_of_integer, words_of_permutation
from shoal.peers.torch_samplers.torch_states import saved_sampler

Generator = Literal["sampler", "loader", "global", "epoch"]
"""Origin of the random numbers of a `RandomSampler`."""

_SEED_WORDS = 2  # a seed of 63 bits, drawn by loaders for their workers, and by samplers without a generator
_DRAWS_AT_ONCE = 32  # with replacement


@dataclass(frozen=True, slots=True)
class TorchRandom:
    """Torch's ``RandomSampler``, the sampler of ``DataLoader(shuffle=True)``: a permutation of all samples.

    The ranks of a job get consecutive parts of each global batch, as if ranks took the batches of a sampler in turn.

    Parameters
    ----------
    generator
        Origin of the random numbers of epoch ``e`` of ``seed``. ``"sampler"``: a generator seeded once, for the sampler
        alone: ``RandomSampler(data, generator=torch.Generator().manual_seed(seed))``. ``"loader"``: a generator seeded
        once, for the ``DataLoader``; the loader draws two words for its workers. ``"epoch"``: a generator seeded with
        ``seed + e`` before each epoch. ``"global"``: torch's global generator, seeded by ``torch.manual_seed(seed)``
        before the first epoch, and used only by the loader.
    replacement, num_samples
        Arguments of the sampler.
    stateful, workers
        True for torchdata's ``StatefulDataLoader``, and for its workers. With workers, this loader begins the sampler
        twice. The sampler of torchdata draws only needed permutations; the sampler of torch draws an additional
        permutation at the end of each epoch.
    persistent_workers
        Argument of the loader. If True, the loader draws the words for workers once, before the first epoch.
    drawn
        Number of words drawn from the generator before the first epoch; `Dataset.load_state_dict` finds this number.

    Examples
    --------
    >>> shoal.orders.TorchRandom().bind([6], seed=0).ids(0, 6).tolist()  # torch.randperm(6) after torch.manual_seed(0)
    [2, 5, 3, 0, 1, 4]
    """

    name: ClassVar[str] = "torch-random"
    version: ClassVar[int] = 1
    moves: ClassVar[Moved] = "samples"

    generator: Generator = "sampler"
    replacement: bool = False
    num_samples: int | None = None
    stateful: bool = False
    workers: bool = False
    persistent_workers: bool = False
    drawn: int = 0

    def __post_init__(self) -> None:
        check_flags(self)
        if self.generator not in get_args(Generator):
            msg = f"generator must be one of {', '.join(map(repr, get_args(Generator)))}; got {self.generator!r}"
            raise UsageError(msg)
        if self.stateful and self.generator == "global":
            msg = 'a StatefulDataLoader without a generator seeds a generator for all epochs; got generator="global"'
            raise UsageError(msg, hint="load_state_dict() takes the seed from the state of the loader")
        if self.stateful and self.generator == "loader" and self.replacement:
            msg = 'shoal cannot reproduce generator="loader" with replacement=True in a StatefulDataLoader'
            raise UsageError(msg, hint="the loader draws numbers for workers between the numbers of the first samples")
        check_counts(self, num_samples=1, drawn=0)

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of this order that a state keeps."""
        return asdict(self)

    def num_positions(self, chunk_samples: NDArray[np.int64]) -> int:
        """Return the samples of an epoch."""
        total = int(chunk_samples.sum())
        return total if self.num_samples is None or not total else self.num_samples

    def bind(self, chunk_samples: Any, *, seed: int = 0, epoch: int = 0) -> RepeatingEpoch:
        """Return the order of one epoch; skipping earlier epochs of a generator takes 2 ns per word."""
        samples = check_chunk_samples(chunk_samples)
        seed, epoch = check_seed(seed), check_epoch(epoch)
        total, count = int(samples.sum()), self.num_positions(samples)
        words = self._words(seed, epoch, _drawn_by(self, total, count))
        if self.replacement:
            return _DrawnEpoch(words, self, samples, count)
        num_words = words_of_permutation(total)
        # Without workers a StatefulDataLoader draws its own words after the first permutation.
        between = _SEED_WORDS if self.generator == "loader" and self.stateful and not self.workers else 0

        def permutation_of(number: int) -> NDArray[Any]:
            return permutation(words, number * num_words + (between if number else 0), total)

        return _PermutedEpoch(permutation_of, self, samples, count)

    def adopted(self, checkpoint: Mapping[str, Any], chunk_samples: NDArray[np.int64], seed: int) -> Adopted | None:
        """Return the start of a run from the state of its ``StatefulDataLoader`` or of its generator.

        The state of a generator is ``{"generator": state, "yielded": samples}`` with the result of ``get_state()`` at
        the start of the epoch. The state contains the seed; the words of the seed are searched for the state, at 3 ns
        per word.

        Raises `StateError` if the state cannot be used, or is not among the first 2^33 words of its seed.
        """
        saved = saved_sampler(checkpoint)
        if saved is None:
            return None
        passed = words_passed(saved.seed, saved.key, saved.position)
        if passed is None:
            msg = f"the state of torch's generator is not among the first 2^33 numbers of its seed {saved.seed}"
            raise StateError(msg, hint="check if the generator got the state of another generator")
        order = replace(self, **saved.loader)
        count = self.num_positions(chunk_samples)
        done, position = divmod(saved.yielded, max(1, count))
        if order.generator == "epoch":
            epoch = max(0, saved.seed - seed)
            return Adopted(order, saved.seed - epoch, epoch + done, position)
        drawn = _drawn_by(order, int(chunk_samples.sum()), count)
        once = drawn.before if order.persistent_workers else 0
        epoch_words = drawn.until(1) - once
        if saved.loader and order.workers:  # the state is of the sampler's second beginning
            passed, once = passed - drawn.before, 0
        epoch, extra = _epochs_in(passed - order.drawn, epoch_words, once)
        if extra:  # the order does not know all words drawn before the first epoch
            epoch, extra = _epochs_in(passed, epoch_words, once)
            order = replace(order, drawn=max(0, extra))
        return Adopted(order, saved.seed, epoch + done, position)

    def _words(self, seed: int, epoch: int, drawn: _Drawn) -> MersenneWords:
        """Return the words from the first word of the sampler in an epoch on."""
        before = 0 if self.persistent_workers and epoch else drawn.before
        if self.generator == "epoch":
            return words_after(seed + epoch, self.drawn + before)
        words = words_after(seed, self.drawn + before + drawn.until(epoch, once=self.persistent_workers))
        if self.generator != "global":
            return words
        return MersenneWords.seeded(int(words.words(0, _SEED_WORDS)[1]))  # the lower word of a seed


class _Drawn(NamedTuple):
    """Words drawn in an epoch before the sampler, by the sampler, and after the sampler."""

    before: int
    used: int
    after: int

    def until(self, epoch: int, *, once: bool = False) -> int:
        """Return the words of all earlier epochs; with ``once``, only the first epoch draws ``before``."""
        return epoch * (self.used + self.after) + self.before * (min(1, epoch) if once else epoch)


@dataclass(frozen=True, slots=True)
class TorchDistributed:
    """Torch's ``DistributedSampler``: ranks take the samples of one permutation in turn.

    At the world size ``num_replicas`` each rank gets exactly its own samples; at any other one the global batches are
    the same, divided differently. If ranks have unequal numbers of samples, the sampler repeats the first samples of
    its list, or leaves out the last with ``drop_last``; so does this order.

    Parameters
    ----------
    num_replicas, shuffle, drop_last
        Arguments of the sampler. Its ``seed`` and ``set_epoch`` are the seed and epoch of the dataset.

    Examples
    --------
    >>> shoal.orders.TorchDistributed(num_replicas=4).bind([6], seed=0).ids(0, 8).tolist()
    [2, 5, 3, 0, 1, 4, 2, 5]
    """

    name: ClassVar[str] = "torch-distributed"
    version: ClassVar[int] = 1
    moves: ClassVar[Moved] = "samples"
    default_seed: ClassVar[int] = 0

    num_replicas: int = 1
    shuffle: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        check_flags(self)
        check_counts(self, num_replicas=1)
        if self.num_replicas > 1 << AXIS_BITS:
            raise UsageError(f"num_replicas is at most 2**{AXIS_BITS}; got {self.num_replicas}")

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of this order that a state keeps."""
        return asdict(self)

    def num_positions(self, chunk_samples: NDArray[np.int64]) -> int:
        """Return the number of samples of all ranks together: a multiple of ``num_replicas``."""
        total = int(chunk_samples.sum())
        return (total if self.drop_last else total + self.num_replicas - 1) // self.num_replicas * self.num_replicas

    def bind(self, chunk_samples: Any, *, seed: int = 0, epoch: int = 0) -> RepeatingEpoch:
        """Return the order of one epoch; O(1), and the first use makes the permutation."""
        samples = check_chunk_samples(chunk_samples)
        seed, epoch = check_seed(seed), check_epoch(epoch)
        total, terms = int(samples.sum()), (self, samples, self.num_positions(samples))
        if not self.shuffle:
            return _StoredEpoch(*terms, num_ranks=self.num_replicas)
        words = MersenneWords.seeded(seed + epoch)
        return _RepeatedEpoch(lambda _: permutation(words, 0, total), *terms, num_ranks=self.num_replicas)


def _drawn_by(order: TorchRandom, total: int, count: int) -> _Drawn:
    """Return the number of words drawn by a loader in an epoch of ``count`` of ``total`` samples."""
    loader = _SEED_WORDS if order.generator in ("loader", "global") else 0
    if order.generator == "global":
        return _Drawn(loader, _SEED_WORDS, 0)
    at_once = _DRAWS_AT_ONCE if order.replacement else max(1, total)
    block = at_once * words_of_integer(total) if order.replacement else words_of_permutation(total)
    if order.stateful:
        blocks = -(-count // at_once) * block
        return _Drawn(block + loader, blocks, 0) if order.workers else _Drawn(0, blocks, loader)
    return _Drawn(loader, count * words_of_integer(total) if order.replacement else (count // at_once + 1) * block, 0)


def _epochs_in(words: int, epoch_words: int, once: int) -> tuple[int, int]:
    """Return the number of epochs in these words, and the remaining words; negative for missing words."""
    epoch = max(0, words - once) // epoch_words if epoch_words else 0
    return epoch, words - epoch * epoch_words - (once if epoch else 0)


class _IndexEpoch(RepeatingEpoch):
    """An epoch of indices; samples repeat after all samples have appeared."""

    @property
    def repeats(self) -> bool:
        """True if the epoch has more positions than the dataset has samples."""
        return self.num_samples > self._num_stored


class _PermutedEpoch(_IndexEpoch):
    """One permutation after another; ``permutation_of(k)`` makes number ``k``, and the last one is kept."""

    def __init__(self, permutation_of: Callable[[int], NDArray[Any]], *terms: Any, num_ranks: int = 1) -> None:
        super().__init__(*terms, num_ranks=num_ranks)
        self._permutation_of = permutation_of
        self._kept: tuple[int, NDArray[Any]] | None = None
        self._inverse: NDArray[Any] | None = None

    def _permutation(self, number: int) -> NDArray[Any]:
        kept = self._kept
        if kept is None or kept[0] != number:
            self._kept = kept = number, self._permutation_of(number)
        return kept[1]

    def _ids(self, start: int, stop: int) -> NDArray[np.int64]:
        ids = np.empty(stop - start, dtype=np.int64)
        at = start
        while at < stop:
            number, first = divmod(at, self._num_stored)
            part = self._permutation(number)[first : first + stop - at]
            ids[at - start : at - start + len(part)] = part
            at += len(part)
        return ids

    def _positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._inverse is None:
            first = self._permutation(0)
            self._inverse = np.empty_like(first)
            self._inverse[first] = np.arange(len(first))
        positions = self._inverse[ids].astype(np.int64)
        return np.where(positions < self.num_samples, positions, -1)


class _RepeatedEpoch(_PermutedEpoch):
    """A single permutation, repeated."""

    def _permutation(self, number: int) -> NDArray[Any]:  # noqa: ARG002
        return super()._permutation(0)


class _StoredEpoch(_IndexEpoch):
    """Storage order, repeated."""

    def _ids(self, start: int, stop: int) -> NDArray[np.int64]:
        return np.arange(start, stop) % max(1, self._num_stored)

    def _positions(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(ids < self.num_samples, ids, -1)


class _DrawnEpoch(RepeatingEpoch):
    """Independent draws with replacement."""

    def __init__(self, words: MersenneWords, *terms: Any) -> None:
        super().__init__(*terms)
        self._words = words

    def _ids(self, start: int, stop: int) -> NDArray[np.int64]:
        return bounded(self._words, start, stop, self._num_stored)

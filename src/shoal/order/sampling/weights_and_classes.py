"""Sampling by weights or by classes: the share, and so the number of copies, of each sample in an epoch."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.figures import counted
from shoal.order.arrays.permutation import permute
from shoal.order.sampling.systematic_draws import class_counts, is_next, weighted_counts
from shoal.order.seeds import key

VERSION = 1
"""Version number; changes with every change of samples for the same arguments."""

# Limits of samples in an epoch: a turn of a chunk takes 40 bytes, and the arithmetic is exact up to 2**40.
_MOST_OF_FEW, _MOST_TIMES, _MOST_SAMPLES = 2**32, 16, 2**40
_MOST_OF_CLASS = 2**32 - 1
_SUM_BITS = 61
_WEIGHT_BITS = 32
_BLOCK = 1 << 20
# Averages over epochs: the largest rounding error of 0, and the least average that counts as 1.
_NONE, _ABOUT_ONE = 1e-6, 0.95


@dataclass(frozen=True, slots=True)
class Repeats:
    """Repeats and gaps of a sampling, computed before a run; averages over epochs.

    Parameters
    ----------
    num_samples, num_stored
        Samples of an epoch, repeats included, and stored samples.
    num_repeated
        Stored samples that occur more than once in an epoch.
    most_copies
        Maximum number of copies of a sample in an epoch.
    num_unvisited
        Stored samples that do not occur in an epoch.
    """

    num_samples: int
    num_stored: int
    num_repeated: float
    most_copies: int
    num_unvisited: float

    @staticmethod
    def of(num_samples: int, expected: Iterable[tuple[NDArray[Any], NDArray[Any]]]) -> Repeats:
        """Return the repeats for pairs of arrays: expected copies, and the number of samples with these copies."""
        repeated = unvisited = most = 0.0
        num_stored = 0
        for copies, sizes in expected:
            repeated += float(np.clip(copies - 1.0, 0.0, 1.0) @ sizes)
            unvisited += float(np.clip(1.0 - copies, 0.0, 1.0) @ sizes)
            most, num_stored = max(most, float(copies.max(initial=0.0))), num_stored + int(sizes.sum())
        return Repeats(num_samples, num_stored, repeated, math.ceil(most - 1e-9), unvisited)

    def __str__(self) -> str:
        """Return the numbers as a sentence."""
        repeats, misses = self.num_repeated > _NONE, self.num_unvisited > _NONE
        sentence = f"{counted(self.num_samples, 'sample')} an epoch, of {self.num_stored:,}: "
        if not (repeats or misses):
            return sentence + "each comes once"
        number, is_one = _how_many(self.num_repeated)
        more = f"{number} {'comes' if is_one else 'come'} more than once (at most {self.most_copies:,} times)"
        sentence += more if repeats else "none comes more than once"
        if not misses:
            return sentence + ", and every one comes"
        number, is_one = _how_many(self.num_unvisited)
        share = 100 * self.num_unvisited / self.num_stored
        return f"{sentence}, and {number} ({share:.1f} %) {'does' if is_one else 'do'} not come"


class Sampling(Protocol):
    """A rule for the number of copies of each stored sample in an epoch."""

    @property
    def num_samples(self) -> int:
        """Samples of an epoch, repeats included."""

    def counts(self, *, seed: int, epoch: int) -> NDArray[Any]:
        """Return the copies of each sample in an epoch, shape (num_stored,)."""

    @property
    def repeats(self) -> Repeats:
        """Repeats and gaps of an epoch."""

    def digest(self) -> str:
        """Return a short hash that identifies the rule in a state."""


@dataclass(frozen=True, eq=False)
class ByWeight:
    """Samples in proportion to their weights; 4 bytes per sample.

    Parameters
    ----------
    weights
        Integers in proportion to the weights, shape (num_stored,), from `integer_weights`.
    num_samples
        Samples in an epoch.
    """

    weights: NDArray[np.uint32]
    num_samples: int

    def __post_init__(self) -> None:
        _check_num_samples(self.num_samples, len(self.weights))

    @cached_property
    def weight_sum(self) -> int:
        """Sum of all weights."""
        return int(self.weights.sum(dtype=np.uint64))

    def counts(self, *, seed: int, epoch: int) -> NDArray[Any]:
        """Return the copies of each sample in an epoch; 30 ns per sample."""
        return weighted_counts(self.weights, self.weight_sum, self.num_samples, seed=seed, epoch=epoch)

    @cached_property
    def repeats(self) -> Repeats:
        """Repeats and gaps of an epoch.

        >>> print(ByWeight(np.array([3, 1, 1], dtype=np.uint32), 5).repeats)
        5 samples an epoch, of 3: 1 comes more than once (at most 3 times), and every one comes
        """
        parts = np.array_split(self.weights, -(-len(self.weights) // _BLOCK))
        scale = self.num_samples / self.weight_sum
        return Repeats.of(self.num_samples, ((part * scale, np.ones(len(part))) for part in parts))

    def without_repeats(self) -> ByWeight:
        """Return the rule with the largest weights capped, so that no sample has more than one expected copy.

        Samples at the limit are drawn once in every epoch. Other samples are drawn more often than before, in
        proportion to their weights.

        Raises `UsageError` if an epoch has more samples than the dataset has samples with a weight above 0.
        """
        num_possible, weights = int(np.count_nonzero(self.weights)), self.weights
        if num_possible < self.num_samples:
            msg = f"an epoch of {self.num_samples} samples must repeat some: {num_possible} have a weight above 0"
            raise UsageError(msg, hint=f"num_samples={num_possible} at most, or replacement=True")
        low, high = 1, int(weights.max()) + 1  # bisection: a limit that is low enough, and a limit that is too high
        while high - low > 1:
            middle = (low + high) // 2
            lowered_sum = sum(
                int(np.minimum(weights[first : first + _BLOCK], middle).sum(dtype=np.uint64))
                for first in range(0, len(weights), _BLOCK)
            )
            low, high = (middle, high) if middle * self.num_samples <= lowered_sum else (low, middle)
        return ByWeight(np.minimum(weights, np.uint32(low)), self.num_samples)

    def digest(self) -> str:
        """Return a short hash of the weights and the size of an epoch."""
        return _digest("weights", self.num_samples, self.weights.astype("<u4", copy=False))


@dataclass(frozen=True, eq=False)
class ByClass:
    """Equally many samples of each class, or up to a limit per class; within a class, all samples in turn.

    Parameters
    ----------
    classes
        The class of each sample, from 0, as a small unsigned type; shape (num_stored,).
    sizes
        Number of stored samples of each class, above 0; shape (num_classes,).
    num_samples
        Samples in an epoch.
    limit
        Maximum number of samples of a class in an epoch; None for equally many samples of all classes.
    """

    classes: NDArray[Any]
    sizes: NDArray[np.int64]
    num_samples: int
    limit: int | None = None

    @staticmethod
    def limited(classes: NDArray[Any], sizes: NDArray[np.int64], limit: int) -> ByClass:
        """Return the rule for at most ``limit`` samples of each class in an epoch, without repeats."""
        return ByClass(classes, sizes, int(np.minimum(sizes, limit).sum()), limit)

    def __post_init__(self) -> None:
        _check_num_samples(self.num_samples, len(self.classes))
        if int(self.sizes.max(initial=0)) > _MOST_OF_CLASS:
            msg = f"a class has {int(self.sizes.max())} samples; the limit of a class is {_MOST_OF_CLASS}"
            raise UsageError(msg, hint="sampling by weights has no such limit")

    def totals(self, *, seed: int, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the samples of each class in an epoch, and in earlier epochs modulo the size of the class."""
        sizes, num_classes = self.sizes.tolist(), len(self.sizes)
        if self.limit is not None:
            totals = np.minimum(self.sizes, self.limit)
            taken = [total * epoch % size for total, size in zip(totals.tolist(), sizes, strict=True)]
            return totals, np.array(taken, dtype=np.int64)
        share, more = divmod(self.num_samples, num_classes)
        # The rest goes to the next classes of a random circle.
        places = permute(np.arange(num_classes), num_classes, key(seed, 0, "sample class"))
        totals = share + is_next(places, more * epoch % num_classes, num_classes, more).astype(np.int64)
        begun = (more * epoch + num_classes - 1 - place for place in places.tolist())
        taken = [(share * epoch + extra // num_classes) % size for extra, size in zip(begun, sizes, strict=True)]
        return totals, np.array(taken, dtype=np.int64)

    def counts(self, *, seed: int, epoch: int) -> NDArray[Any]:
        """Return the copies of each sample in an epoch; 60 ns per sample."""
        totals, taken = self.totals(seed=seed, epoch=epoch)
        return class_counts(self.classes, self.sizes, totals, taken, seed=seed)

    @cached_property
    def repeats(self) -> Repeats:
        """Repeats and gaps of an epoch."""
        totals = self.num_samples / len(self.sizes) if self.limit is None else np.minimum(self.sizes, self.limit)
        return Repeats.of(self.num_samples, [(totals / self.sizes, self.sizes)])

    def digest(self) -> str:
        """Return a short hash of the classes, the size of an epoch and the limit."""
        limit = -1 if self.limit is None else self.limit
        return _digest("classes", self.num_samples, limit, self.classes.astype("<u4"))


def integer_weights(weights: NDArray[Any]) -> NDArray[np.uint32]:
    """Return integers in proportion to weights, equal on every machine; 4 bytes per sample.

    Integers that fit stay unchanged. Other weights are rounded to 2**-32 of the largest weight, or more coarsely from
    2**29 weights on; a weight above 0 stays above 0.

    Raises `UsageError` if a weight is negative, infinite or no number, or if all weights are 0.
    """
    bits = min(_WEIGHT_BITS, _SUM_BITS - len(weights).bit_length())
    if weights.dtype.kind not in "biuf":
        raise UsageError(f"weights are numbers; got {weights.dtype}", hint="by= takes labels and texts")
    largest = weights.max(initial=0)
    if not (weights.min(initial=0) >= 0 and np.isfinite(largest)):
        bad = int(np.argmin((weights >= 0) & np.isfinite(weights)))
        msg = f"weights are finite and not negative; participating sample {bad} has {weights[bad]}"
        raise UsageError(msg)
    if not largest:
        msg = f"all {len(weights)} weights are 0"
        raise UsageError(msg, hint="samples with weight 0 never appear; at least one weight must be above 0")
    if weights.dtype.kind != "f" and int(largest) < 1 << bits:
        return weights.astype(np.uint32)
    rounded = np.empty(len(weights), dtype=np.uint32)
    for first in range(0, len(weights), _BLOCK):
        part = weights[first : first + _BLOCK].astype(np.float64)
        scaled = np.rint(part / np.float64(largest) * np.float64((1 << bits) - 1))
        rounded[first : first + _BLOCK] = np.where(part > 0, np.maximum(scaled, 1.0), 0.0)
    return rounded


def _how_many(average: float) -> tuple[str, bool]:
    """Return a number of samples as text, and whether its verb is singular."""
    return (f"{average:,.0f}", round(average) == 1) if average > _ABOUT_ONE else ("fewer than one", True)


def _check_num_samples(num_samples: int, num_stored: int) -> None:
    most = min(max(_MOST_OF_FEW, _MOST_TIMES * num_stored), _MOST_SAMPLES)
    if not 1 <= num_samples <= most:
        msg = f"an epoch of {num_samples} samples; from {num_stored} it can have 1 to {most}"
        raise UsageError(msg, hint="an endless run is a loop over epochs: while True: for batch in ds")


def _digest(kind: str, *parts: Any) -> str:
    digest = hashlib.blake2b(f"{kind} {VERSION}".encode(), digest_size=8)
    for part in parts:
        digest.update(np.ascontiguousarray(part).data if isinstance(part, np.ndarray) else f" {part}".encode())
    return digest.hexdigest()

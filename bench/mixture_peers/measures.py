"""What a mixture delivered, measured from the numbers of the sources and samples that arrived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Delivered:
    """What one rank got: pairs of source and sample, the ends of its batches, and the epoch of each."""

    pairs: Array
    ends: Array
    epochs: Array

    def steps(self) -> Array:
        """The step of each pair."""
        return np.repeat(np.arange(len(self.ends)), np.diff(self.ends, prepend=0))

    def begins(self) -> Array:
        """The begin of each pair's batch."""
        sizes = np.diff(self.ends, prepend=0)
        return np.repeat(self.ends - sizes, sizes)


def merged(ranks: Sequence[Delivered]) -> tuple[Array, Array]:
    """The pairs of all ranks step by step, and the positions at which steps end."""
    steps = np.concatenate([rank.steps() for rank in ranks])
    places = np.concatenate([np.arange(len(rank.pairs)) - rank.begins() for rank in ranks])
    order = np.lexsort([places, steps])  # within a step round-robin
    pairs = np.concatenate([rank.pairs for rank in ranks])[order]
    return pairs, np.cumsum(np.bincount(steps))


def drift(pairs: Array, weights: Array, at: Array) -> dict[str, float]:
    """How far counts are from their shares at positions, in samples; those of rare sources relatively, at the end."""
    ones = np.zeros((len(pairs) + 1, len(weights)), dtype=np.int32)
    ones[np.arange(1, len(pairs) + 1), pairs[:, 0]] = 1
    counts = np.cumsum(ones, axis=0, dtype=np.int32)[at]
    away = np.abs(counts - at[:, None] * weights).max(axis=1)
    rare = weights <= 2 * weights.min()
    relative = np.abs(counts[-1] / (at[-1] * weights) - 1)
    return {
        "most": float(away.max()),
        "quarter": float(away[len(away) // 4]),
        "half": float(away[len(away) // 2]),
        "end": float(away[-1]),
        "rare": float(relative[rare].max()),
    }


def skew(ranks: Sequence[Delivered], weights: Array) -> dict[str, float]:
    """How far, at worst, the share of a source on a rank is from its weight, relatively; those of 1 % or more apart."""
    away = np.array(
        [np.bincount(rank.pairs[:, 0], minlength=len(weights)) / (len(rank.pairs) * weights) - 1 for rank in ranks]
    )
    return {"all": float(np.abs(away).max()), "common": float(np.abs(away[:, weights >= 0.01]).max())}


def early(pairs: Array, ends: Array, sizes: Sequence[int]) -> int:
    """Deliveries of a sample while others of its source had been delivered less often.

    What comes between two ``ends`` comes at once, so it is counted in the order with the fewest.
    """
    visits = [np.zeros(size, dtype=np.int64) for size in sizes]
    least = [0] * len(sizes)
    num_least = list(sizes)
    total = 0
    for step in np.split(pairs, ends[ends < len(pairs)]):
        times: Counter[tuple[int, int]] = Counter()
        waiting = []
        for source, number in step.tolist():
            waiting.append((int(visits[source][number]) + times[source, number], source, number))
            times[source, number] += 1
        for seen, source, number in sorted(waiting):
            visits[source][number] += 1
            if seen > least[source]:
                total += 1
                continue
            num_least[source] -= 1
            if not num_least[source]:
                least[source] = int(visits[source].min())
                num_least[source] = int((visits[source] == least[source]).sum())
    return total


def rounds(pairs: Array, ends: Array, sizes: Sequence[int], which: Sequence[int]) -> dict[str, float]:
    """Of sources: distinct samples when 1, 2 and 3 times as many as there are have come, to the end of the step.

    ``same`` is the share of places at which the first two rounds have the same sample.
    """
    found: dict[str, list[float]] = {"1": [], "2": [], "3": [], "same": []}
    for source in which:
        at = np.flatnonzero(pairs[:, 0] == source)
        numbers, size = pairs[at, 1], sizes[source]
        for k in (1, 2, 3):
            if len(at) >= k * size:
                end = ends[np.searchsorted(ends, at[k * size - 1], side="right")]
                found[str(k)].append(len(np.unique(numbers[at < end])) / size)
        if len(at) >= 2 * size:
            found["same"].append(float((numbers[:size] == numbers[size : 2 * size]).mean()))
    return {name: float(np.mean(values)) for name, values in found.items() if values}


def resumed(
    before: Array, reference: tuple[Array, Array], after: tuple[Array, Array], sizes: Sequence[int]
) -> dict[str, int]:
    """Samples that came after a resume in place of others, and by how much more samples came again early.

    ``reference`` and ``after`` are pairs with the ends of their steps.
    """
    size = min(len(reference[0]), len(after[0]))
    wanted, got = (Counter(map(tuple, pairs[:size].tolist())) for pairs, _ in (reference, after))
    again = [
        early(np.concatenate([before, pairs[:size]]), np.concatenate([[len(before)], len(before) + ends]), sizes)
        for pairs, ends in (reference, after)
    ]
    return {"compared": size, "others": (got - wanted).total(), "again": again[1] - again[0]}


def uneven_epochs(ranks: Sequence[Delivered]) -> bool:
    """Whether ranks end an epoch after different numbers of steps."""
    steps = min(len(rank.epochs) for rank in ranks)
    return any((rank.epochs[:steps] != ranks[0].epochs[:steps]).any() for rank in ranks)

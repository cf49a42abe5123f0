"""Counts from one pass over the ids of an epoch, in bounded memory: samples delivered, repeats, and their origin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TIME_PARTS, SOURCE_PARTS = 200, 1024
_BLOCK = 1 << 22
_RANGE = 1 << 28  # ids whose presence is recorded at a time: 256 MiB
_EXAMPLES = 5
_FEW = 1 << 24  # samples: up to this number, examples of repeated ids are given


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """The results of one pass over an epoch.

    Parameters
    ----------
    num_delivered
        Samples delivered, of any kind.
    num_missing, num_repeated, num_unknown
        Samples never delivered, repeated deliveries, and deliveries of ids outside the dataset.
    missing, repeated
        Up to five examples of either.
    heat
        Samples delivered in each 200th of the epoch from each 1024th of the ids, shape (200, 1024).
    mean, variance
        Mean and variance of the ids delivered.
    """

    num_delivered: int
    num_missing: int
    num_repeated: int
    num_unknown: int
    missing: tuple[int, ...]
    repeated: tuple[int, ...]
    heat: NDArray[np.int64]
    mean: float
    variance: float


def survey(ids: NDArray[np.int64], num_samples: int) -> Survey:
    """Count which of the samples ``0 .. num_samples - 1`` an epoch delivers; 30 ns per sample, 256 MiB at most.

    >>> found = survey(np.array([0, 1, 1, 4]), 5)
    >>> found.num_missing, found.missing, found.num_repeated, found.repeated
    (2, (2, 3), 1, (1,))
    """
    delivered = len(ids)
    distinct, missing = 0, list[int]()
    for low in range(0, num_samples, _RANGE):
        seen = np.zeros(min(_RANGE, num_samples - low), dtype=np.bool_)
        for block in _blocks(ids):
            seen[block[(block >= low) & (block < low + len(seen))] - low] = True
        distinct += int(np.count_nonzero(seen))
        if len(missing) < _EXAMPLES:
            missing += [low + int(index) for index in np.flatnonzero(~seen)[: _EXAMPLES - len(missing)]]
    unknown, total, squares = 0, 0.0, 0.0
    heat = np.zeros(TIME_PARTS * SOURCE_PARTS, dtype=np.int64)
    centre = num_samples / 2.0
    for number, block in enumerate(_blocks(ids)):
        times = (number * _BLOCK + np.arange(len(block))) * TIME_PARTS // delivered
        inside = (block >= 0) & (block < num_samples)
        unknown += len(block) - int(np.count_nonzero(inside))
        parts = np.clip(block, 0, num_samples - 1) * SOURCE_PARTS // num_samples
        heat += np.bincount(times * SOURCE_PARTS + parts, minlength=len(heat))
        centred = block - centre
        total, squares = total + float(centred.sum()), squares + float(centred @ centred)
    mean = total / delivered
    return Survey(
        num_delivered=delivered,
        num_missing=num_samples - distinct,
        num_repeated=delivered - unknown - distinct,
        num_unknown=unknown,
        missing=tuple(missing),
        repeated=_repeated(ids) if delivered - unknown > distinct else (),
        heat=heat.reshape(TIME_PARTS, SOURCE_PARTS),
        mean=centre + mean,
        variance=max(0.0, squares / delivered - mean**2),
    )


def _blocks(ids: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return [ids[begin : begin + _BLOCK] for begin in range(0, len(ids), _BLOCK)]


def _repeated(ids: NDArray[np.int64]) -> tuple[int, ...]:
    if len(ids) > _FEW:
        return ()
    ordered = np.sort(ids)
    return tuple(np.unique(ordered[1:][ordered[1:] == ordered[:-1]])[:_EXAMPLES].tolist())

"""Shards and random numbers of each worker, by release of ``datasets``.

=========  =================================================================================================
release    difference
=========  =================================================================================================
to 4.3     epoch ``e`` has its own generator, made from the seed and ``e``; all workers use the same generator
4.4, 4.5   each worker of a ``DataLoader`` has its own generator
4.6 - 4.8  shards are shuffled by the seed, and then by the epoch alone
5.0        up to ``max_buffer_input_shards`` parts of the shards are read in turn, row by row; the parts are
           made before the epoch's shuffle and before nodes and workers get their shares
from 5.1   the parts are made of the worker's own shards, and the buffer is shuffled in blocks
=========  =================================================================================================
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError

Shards = NDArray[np.int64]
_SEEDS = 1 << 63
_NONE = np.zeros(0, dtype=np.int64)


class Run(NamedTuple):
    """Arguments for dealing shards: release, ranks, workers of each rank (0: none), and how to share."""

    release: tuple[int, int]
    max_buffer_input_shards: int
    ranks: int
    workers: int
    strategy: str


class WorkerShards(NamedTuple):
    """Lists of shards that take turns in a worker, and the generator of its buffer."""

    parts: list[Shards]
    generator: np.random.Generator


def release_of(version: str) -> tuple[int, int]:
    """Return the release of a version of ``datasets``, from (3, 0) on.

    >>> release_of("4.8.5")
    (4, 8)
    """
    try:
        major, minor = (int(part) for part in version.split(".")[:2])
    except (ValueError, AttributeError, TypeError):
        major, minor = 0, 0
    if major < 3:
        msg = f"release= takes a version of datasets from 3.0 on, as text; got {version!r}"
        raise UsageError(msg, hint='release="4.8", for example')
    return major, minor


def shuffled_in_blocks(release: tuple[int, int]) -> bool:
    """Return True if a release shuffles half a buffer at a time; earlier releases replace samples one by one."""
    return release >= (5, 1)


def nodes_share_samples(num_shards: int, run: Run) -> bool:
    """Return True if every rank reads all shards and keeps one of ``ranks`` samples."""
    if run.release == (5, 0) and run.max_buffer_input_shards > 1:
        # Release 5.0 counts the shards of the shortest part.
        num_shards //= min(num_shards, run.max_buffer_input_shards)
    return run.strategy == "examples" or (run.strategy == "auto" and num_shards % run.ranks != 0)


def shards_of_workers(num_shards: int, run: Run, seed: int, epoch: int) -> list[list[WorkerShards]]:
    """Return the shards of each worker of each rank; only the workers of rank 0 if nodes share samples."""
    parts, generator = _of_epoch(num_shards, run, seed, epoch)
    if nodes_share_samples(num_shards, run):
        return [_workers(parts, generator, run)]
    return [_workers(_share(parts, run.ranks, rank), generator, run) for rank in range(run.ranks)]


def _of_epoch(num_shards: int, run: Run, seed: int, epoch: int) -> tuple[list[Shards], np.random.Generator]:
    """Return the parts of the shards, and the generator of buffers, before nodes and workers get their shares."""
    shards = np.arange(num_shards)
    if run.release < (4, 6):
        if epoch:
            drawn = int(_generator(seed).integers(0, _SEEDS)) - epoch
            seed = drawn + _SEEDS if drawn < 0 else drawn
        _generator(seed).shuffle(shards)
        return [shards], _generator(seed)
    _generator(seed).shuffle(shards)
    parts = [shards]
    if run.release == (5, 0) and run.max_buffer_input_shards > 1:
        parts = _parts(shards, run)
    if not epoch:
        return parts, _generator(seed)
    for number, part in enumerate(parts):
        turned = np.arange(len(part))
        _generator(epoch).shuffle(turned)
        parts[number] = part[turned]
    return parts, _shifted(_generator(seed), epoch)


def _workers(parts: list[Shards], generator: np.random.Generator, run: Run) -> list[WorkerShards]:
    if not run.workers:
        return [WorkerShards(_turns(parts, run), copy.deepcopy(generator))]
    workers: list[WorkerShards] = []
    for worker in range(run.workers):
        if worker >= min(len(part) for part in parts):
            workers.append(WorkerShards([_NONE], generator))  # the library stops such a worker, with a warning
            continue
        own = copy.deepcopy(generator)
        if run.release >= (4, 6):
            own = _shifted(generator, worker)
        elif run.release >= (4, 4):
            own = _generator(generator.bit_generator.state["state"]["state"] + worker)
        workers.append(WorkerShards(_turns(_share(parts, run.workers, worker), run), own))
    return workers


def _turns(parts: list[Shards], run: Run) -> list[Shards]:
    """Return the lists of shards to read in turn."""
    return _parts(parts[0], run) if shuffled_in_blocks(run.release) else parts


def _parts(shards: Shards, run: Run) -> list[Shards]:
    return np.array_split(shards, max(1, min(len(shards), run.max_buffer_input_shards)))


def _share(parts: list[Shards], count: int, number: int) -> list[Shards]:
    """Return the share of one of ``count`` nodes or workers."""
    if len(parts) > 1:
        count = min(count, *(len(part) for part in parts))
    return [part[number::count] for part in parts]


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _shifted(generator: np.random.Generator, value: int) -> np.random.Generator:
    """Return the generator of an epoch or a worker, seeded by another generator without changing it."""
    return _generator(int(copy.deepcopy(generator).integers(0, _SEEDS)) - value)

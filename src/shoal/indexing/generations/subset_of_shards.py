"""Recovery of the dataset that a state knew, as a subset of the shards that exist now.

A candidate is a list of shard numbers. Its fingerprint decides: no candidate is taken because it looks right.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShoalError
from shoal.figures import counted
from shoal.index.assembly import FINGERPRINTED, fingerprint, subset
from shoal.index.generations import first_generation, generations_of
from shoal.index.index_file import decode
from shoal.index.table import Index, joined_ranges
from shoal.indexing.opened_dataset import Known, Opened, Recovered
from shoal.order.arrays.index_ranges import Runs
from shoal.storage.cache_directory import cache_directory
from shoal.storage.files.local_store import LocalStore
from shoal.storage.stat_many import stat_all
from shoal.storage.store_protocol import nanoseconds_of

_log = logging.getLogger("shoal")

# Without the number of shards in the state, each prefix is tried, the longest first: so many bytes of rows are hashed.
_MOST_HASHED_BYTES = 1 << 30
_BYTES_OF_ROW = 28


class _Candidate(NamedTuple):
    """Shards that may be the dataset of a state, in their order, and the way they were chosen."""

    numbers: Sequence[int]
    words: str


@dataclass(frozen=True)
class SubsetOfShards:
    """The `Past` of shards without versions of their own: some of the shards that exist now."""

    cache_dir: str | None = None

    def as_known(self, opened: Opened, known: Known) -> Recovered | None:
        """Return the subset of the shards with the fingerprint of a state; None if there is none."""
        if opened.companions:
            return None
        index = opened.index
        for generation in generations_of(index)[:-1]:
            if generation.fingerprint == known.fingerprint:
                recovered = with_index(opened, first_generation(index, generation.num_shards), generation.num_shards)
                if recovered.index.fingerprint == known.fingerprint:
                    words = f"the first {generation.num_shards:,} of {counted(index.num_shards, 'shard')}, a "
                    return Recovered(recovered, f"{words}generation that the index records")
        for candidate in _candidates(opened, known):
            if _fingerprint_of(index, candidate.numbers) == known.fingerprint:
                return Recovered(with_shards(opened, candidate.numbers), candidate.words)
        return self._cached(opened, known)

    def tried(self, opened: Opened, known: Known) -> str:
        """Return what `as_known` tries, in words."""
        if opened.companions:
            return "nothing, as the samples of this dataset are joined with others"
        num_shards = f"the first {known.num_shards:,}" if known.num_shards else "the first 1, 2, 3, ..."
        num_generations = len(generations_of(opened.index)) - 1
        generations = f"{counted(num_generations, 'generation')} that the index records"
        return (
            f"{generations}; {num_shards} of its {counted(opened.index.num_shards, 'shard')} in their order, by name, "
            "and by time; and the indexes in the cache of this machine"
        )

    def _cached(self, opened: Opened, known: Known) -> Recovered | None:
        """Return the dataset with an index of this machine's cache that has the fingerprint, and whose shards exist."""
        directory, store = Path(cache_directory(self.cache_dir), "indexes"), LocalStore()
        numbers = {name: number for number, name in enumerate(opened.index.shard_names)}
        for path in sorted(directory.glob("*.index")) + sorted(directory.glob("*.copy")):
            try:
                index = decode(store.map(str(path)))
            except ShoalError:  # another process has removed the file, or it is damaged: it is not ours to repair
                continue
            if index.fingerprint != known.fingerprint or not numbers.keys() >= set(index.shard_names):
                continue
            paths = tuple(opened.paths[numbers[name]] for name in index.shard_names)
            check = opened.check.of_part(index, paths)
            if opened.stored is None:
                recovered = replace(opened, index=index, paths=paths, check=check, index_path=str(path))
                return Recovered(recovered, f"an index in the cache of this machine, {path}")
        return None


def _candidates(opened: Opened, known: Known) -> Iterator[_Candidate]:
    """Yield subsets of the shards: as named, or the first of them in their order, by name, and by time."""
    index = opened.index
    if known.shard_names:
        numbers = {name: number for number, name in enumerate(index.shard_names)}
        if numbers.keys() >= set(known.shard_names):
            yield _Candidate([numbers[name] for name in known.shard_names], "the shards that another rank names")
        return
    orders: list[tuple[str, Callable[[Opened], list[int]]]] = [
        ("in their order", lambda opened: list(range(opened.index.num_shards))), ("by name", _by_name),
        ("by time", _by_time),
    ]  # fmt: skip
    seen: set[tuple[int, ...]] = set()
    for words, order_of in orders:
        order = order_of(opened)
        if not order or tuple(order) in seen:
            continue
        seen.add(tuple(order))
        sizes = [known.num_shards] if known.num_shards else _sizes(index)
        for size in (size for size in sizes if size < index.num_shards):
            numbers = order[:size]
            text = f"the first {size:,} of {counted(index.num_shards, 'shard')} {words}"
            yield _Candidate(sorted(numbers) if words == "by time" else numbers, text)


def _sizes(index: Index) -> list[int]:
    """Return the sizes of the subsets to try for a state without a number of shards: the largest, within a limit."""
    row_bytes = max(1, index.num_extents) * _BYTES_OF_ROW
    return list(islice(range(index.num_shards - 1, 0, -1), max(1, _MOST_HASHED_BYTES // row_bytes)))


def _by_name(opened: Opened) -> list[int]:
    names = opened.index.shard_names
    return sorted(range(len(names)), key=lambda number: names[number])


def _by_time(opened: Opened) -> list[int]:
    """Return the shards by modification time; none if the store tells no times."""
    times = [nanoseconds_of(version) for version in opened.index.shard_versions]
    if None in times:
        try:
            times = [info.modified_ns for info in stat_all(opened.paths, opened.store)]
        except ShoalError as error:
            _log.info("the times of shards are unknown: %s", error)
            return []
    known_times = [time for time in times if time is not None]
    if len(known_times) < len(times):
        return []
    return sorted(range(len(known_times)), key=lambda number: known_times[number])


def _fingerprint_of(index: Index, numbers: Sequence[int]) -> str:
    """Return the fingerprint of some shards, without an index of them."""
    chosen = np.asarray(numbers, dtype=np.int64)
    first_extent = index.shard_first_extent
    counts = np.diff(first_extent)[chosen]
    rows = joined_ranges(first_extent[chosen], counts)
    columns = [getattr(index, name)[rows] for name in FINGERPRINTED[1:]]
    names = (index.shard_names[number] for number in numbers)
    return fingerprint(names, np.repeat(np.arange(len(chosen), dtype=np.int32), counts), *columns)


def with_shards(opened: Opened, numbers: Sequence[int]) -> Opened:
    """Return some shards of an opened dataset, in the given order."""
    numbers = list(numbers)
    if numbers == list(range(len(numbers))):
        return with_index(opened, first_generation(opened.index, len(numbers)), len(numbers))
    index = subset(opened.index, numbers)
    paths = tuple(opened.paths[number] for number in numbers)
    stored = None if opened.stored is None else _stored_of(opened.index, opened.stored, numbers)
    check = opened.check.of_part(index, paths)
    return replace(opened, index=index, paths=paths, check=check, index_path=None, stored=stored)


def with_index(opened: Opened, index: Index, num_shards: int) -> Opened:
    """Return the first shards of an opened dataset, with their index."""
    paths = opened.paths[:num_shards]
    stored = None if opened.stored is None else _stored_of(opened.index, opened.stored, range(num_shards))
    check = opened.check.of_part(index, paths)
    return replace(opened, index=index, paths=paths, check=check, index_path=None, stored=stored)


def _stored_of(index: Index, stored: Runs, numbers: Sequence[int]) -> Runs:
    """Return the stored samples of some shards, with their numbers among the samples of these shards."""
    first_samples = index.extent_first_sample[index.shard_first_extent]
    chosen = np.asarray(numbers, dtype=np.int64)
    ids: NDArray[np.int64] = joined_ranges(first_samples[chosen], np.diff(first_samples)[chosen])
    return Runs.of(stored.numbers(ids) >= 0, len(ids))

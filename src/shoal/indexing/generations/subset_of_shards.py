"""Recovery of the dataset that a state knew, as a subset of the shards that exist now.

A candidate is a list of shard numbers. Its fingerprint decides: no candidate is taken because it looks right.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShoalError
from shoal.figures import counted
from shoal.index.assembly import FINGERPRINTED, GENERATIONS, fingerprint, subset
from shoal.index.index_file import decode
from shoal.index.index_generations import Generation, first_generation, generations_of
from shoal.index.table import Index, joined_ranges
from shoal.indexing.build import OPTIONS
from shoal.indexing.opened_dataset import Candidate, Known, Opened, Past
from shoal.order.arrays.index_ranges import Runs
from shoal.storage.cache_directory import cache_directory
from shoal.storage.files.local_store import LocalStore
from shoal.storage.stat_many import stat_all
from shoal.storage.store_protocol import nanoseconds_of

_log = logging.getLogger("shoal")

# Without the number of shards in the state, each prefix is tried, the longest first: so many bytes of rows are hashed.
_MOST_HASHED_BYTES = 1 << 30
_BYTES_OF_ROW = 28


class _Subset(NamedTuple):
    """Shards that may be the dataset of a state, in their order, and the way they were chosen."""

    numbers: Sequence[int]
    words: str


@dataclass(frozen=True)
class SubsetOfShards:
    """The `Past` of shards without versions of their own: some of the shards that exist now."""

    cache_dir: str | None = None

    def candidates(self, opened: Opened, known: Known) -> Iterator[Candidate]:
        """Yield subsets of the shards: recorded generations, the first shards in several orders, and cached indexes."""
        index = opened.index
        for generation in generations_of(index)[:-1]:
            if known.num_shards[-1:] in ((), (generation.num_shards,)):
                words = f"the first {generation.num_shards:,} of {counted(index.num_shards, 'shard')}, a generation "
                words += "that the index records"
                recorded, make = generation.fingerprint, partial(_of_generation, opened, generation.num_shards)
                yield Candidate(words, lambda recorded=recorded: recorded, make)  # type: ignore[misc]
        for subset_of_them in _subsets(opened, known):
            numbers = subset_of_them.numbers
            make = partial(_grown_to, opened, numbers, known.num_shards)
            yield Candidate(subset_of_them.words, partial(_fingerprint_of, index, numbers), make)
        yield from self._cached(opened, known)

    def tried(self, opened: Opened, known: Known) -> str:
        """Describe the candidates."""
        sizes = " and ".join(f"{size:,}" for size in known.num_shards) or "1, 2, 3, ..."
        num_generations = len(generations_of(opened.index)) - 1
        generations = f"{counted(num_generations, 'generation')} that the index records"
        return (
            f"{generations}; the first {sizes} of its {counted(opened.index.num_shards, 'shard')} in their order, by "
            "name, and by time; and the indexes in the cache of this machine"
        )

    def _cached(self, opened: Opened, known: Known) -> Iterator[Candidate]:
        """Yield the datasets of indexes in this machine's cache, if all their shards exist."""
        directory, store = Path(cache_directory(self.cache_dir), "indexes"), LocalStore()
        numbers = {name: number for number, name in enumerate(opened.index.shard_names)}
        for path in sorted(directory.glob("*.index")) + sorted(directory.glob("*.copy")):
            try:
                index = decode(store.map(str(path)))
            except ShoalError:  # another process has removed the file, or it is damaged: it is not ours to repair
                continue
            is_other = known.num_shards[-1:] not in ((), (index.num_shards,))
            if is_other or not numbers.keys() >= set(index.shard_names):
                continue
            if not _are_alike(index, opened.index, numbers):
                continue
            chosen = [numbers[name] for name in index.shard_names]
            is_same_cut = _fingerprint_of(opened.index, chosen) == index.fingerprint
            if is_same_cut or opened.stored is None:
                make = partial(_of_cached, opened, chosen, None if is_same_cut else index, str(path))
                words = f"an index in the cache of this machine, {path}"
                yield Candidate(words, lambda index=index: index.fingerprint, make)  # type: ignore[misc]


def _are_alike(index: Index, now: Index, numbers: Mapping[str, int]) -> bool:
    """Return True if an index reads shards as another does, and its shards still have their sizes."""
    chosen = [numbers[name] for name in index.shard_names]
    has_sizes = np.array_equal(index.shard_bytes, now.shard_bytes[chosen])
    return has_sizes and (index.format, index.metadata.get(OPTIONS)) == (now.format, now.metadata.get(OPTIONS))


def past_of(opened: Opened) -> Past:
    """Return the `Past` of a dataset: by default, subsets of its shards."""
    return SubsetOfShards() if opened.past is None else opened.past


def _of_generation(opened: Opened, num_shards: int) -> Opened:
    """Return the first shards, with the generations that the index records of them."""
    return with_index(opened, first_generation(opened.index, num_shards), num_shards)


def _grown_to(opened: Opened, numbers: Sequence[int], num_shards: Sequence[int]) -> Opened:
    """Return some shards, whose index records the sizes that the dataset had."""
    return _with_generations(with_shards(opened, numbers), num_shards)


def _of_cached(opened: Opened, numbers: Sequence[int], other_cut: Index | None, path: str) -> Opened:
    """Return the shards of a cached index: by their own index, which has its columns, or cut into other samples."""
    if other_cut is None:
        return with_shards(opened, numbers)
    paths = tuple(opened.paths[number] for number in numbers)
    check = opened.check.of_part(other_cut, paths)
    return replace(opened, index=other_cut, paths=paths, check=check, index_path=path)


def _subsets(opened: Opened, known: Known) -> Iterator[_Subset]:
    """Yield subsets of the shards: as named, or the first of them in their order, by name, and by time."""
    index = opened.index
    if known.shard_names:
        number_of = {name: number for number, name in enumerate(index.shard_names)}
        if number_of.keys() >= set(known.shard_names):
            yield _Subset([number_of[name] for name in known.shard_names], "the shards that another rank names")
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
        for borders in [known.num_shards] if known.num_shards else [(size,) for size in _sizes(index)]:
            if borders[-1] > index.num_shards:
                continue
            numbers = order[: borders[-1]]
            if words == "by time":  # shards of a generation are in the order of their listing
                numbers = [number for span in pairwise((0, *borders)) for number in sorted(order[slice(*span)])]
            yield _Subset(numbers, f"the first {borders[-1]:,} of {counted(index.num_shards, 'shard')} {words}")


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


def _with_generations(opened: Opened, num_shards: Sequence[int]) -> Opened:
    """Return a recovered dataset whose index records how it has grown, for later states."""
    index, earlier = opened.index, num_shards[:-1]
    if not earlier:
        return opened
    first_samples = index.extent_first_sample[index.shard_first_extent]
    lines = [
        Generation(_fingerprint_of(index, range(size)), size, int(first_samples[size]))._asdict() for size in earlier
    ]
    return replace(opened, index=replace(index, metadata={**index.metadata, GENERATIONS: lines}))


def _stored_of(index: Index, stored: Runs, numbers: Sequence[int]) -> Runs:
    """Return the stored samples of some shards, with their numbers among the samples of these shards."""
    first_samples = index.extent_first_sample[index.shard_first_extent]
    chosen = np.asarray(numbers, dtype=np.int64)
    ids: NDArray[np.int64] = joined_ranges(first_samples[chosen], np.diff(first_samples)[chosen])
    return Runs.of(stored.numbers(ids) >= 0, len(ids))

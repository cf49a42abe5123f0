"""Opened datasets, ready for reading: one with its index, or several whose sample ids follow one another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import NamedTuple, Protocol

from shoal.errors import UsageError
from shoal.figures import counted
from shoal.formats.shard_format import Format
from shoal.index.assembly import SNAPSHOT
from shoal.index.index_generations import generations_of
from shoal.index.joined_index import JoinedIndex
from shoal.index.table import Index
from shoal.indexing.alignment.kept_alignments import KeptAlignment
from shoal.indexing.changed_shards import ShardCheck
from shoal.indexing.tables.snapshot_protocol import version_text
from shoal.order.arrays.index_ranges import Runs
from shoal.storage.chunk_cache.chunk_cache import ChunkCache
from shoal.storage.store_protocol import Store


class OpenedDataset(Protocol):
    """Shards with their index: one dataset, or several parts whose sample ids follow one another."""

    @property
    def parts(self) -> tuple[Opened, ...]:
        """The datasets, in the order of their sample ids."""
        ...

    @property
    def index(self) -> Index | JoinedIndex:
        """The index of all samples."""
        ...

    @property
    def indexes(self) -> dict[str, Index]:
        """The index of each part by name; a single part has the name ""."""
        ...

    @property
    def caches(self) -> tuple[ChunkCache | None, ...]:
        """The cache of each part."""
        ...

    @property
    def depth(self) -> int:
        """Depth of nested mixtures; 0 for one dataset."""
        ...

    @property
    def whole(self) -> OpenedDataset:
        """The dataset itself, which has an index already."""
        ...

    def words(self, num_samples: Callable[[], str]) -> str:
        """Return a description of the shards."""
        ...

    def one(self, verb: str) -> Opened:
        """Return the only dataset; raise `UsageError` for several, since ``verb`` works on one."""
        ...

    def with_parts(self, parts: tuple[Opened, ...]) -> OpenedDataset:
        """Return the dataset with its parts replaced."""
        ...

    def part_of(self, sample_id: int) -> tuple[Opened, int]:
        """Return the part that holds a sample, and the id of the sample there."""
        ...


_MOST_GENERATIONS = 48  # in a state, which stays below 1 KB


class Known(NamedTuple):
    """A dataset as a state names it.

    ``num_shards`` has the number of shards after each growth, and ends with the number of the dataset itself; it is
    empty if these numbers are unknown (states of older versions). ``snapshot`` is the version of a table as JSON, ""
    for shards that are no table. ``shard_names`` are all shards in their order if another rank names them, else empty.
    """

    fingerprint: str
    num_shards: tuple[int, ...] = ()
    snapshot: str = ""
    shard_names: tuple[str, ...] = ()

    @staticmethod
    def of(index: Index, *, with_names: bool = False) -> Known:
        """Return the names of a dataset by its index."""
        names = tuple(index.shard_names) if with_names else ()
        version = index.metadata.get(SNAPSHOT)
        sizes = tuple(generation.num_shards for generation in generations_of(index))
        sizes = sizes if len(sizes) <= _MOST_GENERATIONS else sizes[-1:]
        return Known(index.fingerprint, sizes, json.dumps(version) if version else "", names)


class Recovered(NamedTuple):
    """An earlier dataset, and the way it was recovered: "the first 12 of 15 shards by name"."""

    opened: Opened
    words: str


class Candidate(NamedTuple):
    """A dataset that may be the dataset of a state; ``words`` say how it was chosen: "the first 12 of 15 shards".

    ``fingerprint`` computes the fingerprint, ``opened`` opens the dataset. Only the dataset with the fingerprint of the
    state is opened, if the fingerprint can be computed without opening.
    """

    words: str
    fingerprint: Callable[[], str]
    opened: Callable[[], Opened]

    @staticmethod
    def opened_by(words: str, make: Callable[[], Opened]) -> Candidate:
        """Return a candidate that must be opened to compute its fingerprint; it is opened once."""
        opened = cache(make)
        return Candidate(words, lambda: opened().index.fingerprint, opened)


class Past(Protocol):
    """Recovery of the dataset that a state was saved with, from a dataset that has more shards now.

    The default, `shoal.indexing.generations.subset_of_shards`, looks for a subset of the shards. A table with versions
    has a `Past` of its own (`shoal.indexing.tables.table_versions`), and so have samples that are made of rows
    (`shoal.indexing.generations.derived_versions`). A `Past` must pickle: workers get it.
    """

    def candidates(self, opened: Opened, known: Known) -> Iterator[Candidate]:
        """Yield the datasets that a state may have known, the likeliest first.

        The caller takes the first candidate with the fingerprint of the state: a wrong candidate costs time, and never
        gives a wrong sample. ``known.fingerprint`` may belong to samples that are made of the samples of ``opened``, so
        a `Past` chooses by the other fields of ``known`` alone.

        Raises `ShoalError` with a remedy if the dataset is known and cannot be opened, such as a snapshot whose files
        were removed.
        """

    def tried(self, opened: Opened, known: Known) -> str:
        """Describe the candidates for the error: "the first 12 shards by name, the indexes of this machine"."""


class Latest(Protocol):
    """The source of a dataset, looked at again: ``follow=True`` calls it at the beginning of each epoch.

    The default, `shoal.indexing.generations.relisted_source`, lists the source again. A table with versions opens its
    newest snapshot. A `Latest` must pickle.
    """

    @property
    def name(self) -> str:
        """The name of the source, the same on all ranks that were given the same source."""
        ...

    def look_again(self, opened: Opened) -> Opened:
        """Return the dataset that the source holds now; ``opened`` itself if nothing has changed.

        Sample ids of ``opened`` stay if none of its shards has left: new shards come after all its shards. Each rank
        may see another state of the source; the caller makes all ranks take the same.
        """


@dataclass(frozen=True, slots=True)
class Opened:
    """A dataset, ready for reading.

    ``paths`` has the full path of every shard of ``index``, in its order. ``index_path`` is the file of the index, or
    of its cached copy; None without a file. Call ``check`` before the first use of a shard. ``stored`` are the samples
    that take part if the dataset's own splits exclude some; None for all. ``left_out`` counts, by suffix, files of the
    directory that are not shards. Samples of the ``companions`` are read together with the samples of this dataset.
    ``past`` recovers the dataset of a state that knew fewer shards, ``latest`` looks at the source again; None if the
    source cannot be looked at again.
    ``derivation`` names the dataset whose samples these samples are made of; None for stored samples.
    """

    store: Store
    index: Index
    paths: tuple[str, ...]
    format: Format
    index_path: str | None
    check: ShardCheck
    cache: ChunkCache | None = None
    stored: Runs | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    companions: tuple[Companion, ...] = ()
    past: Past | None = None
    latest: Latest | None = None
    derivation: Derivation | None = None

    can_grow = False  # everything is indexed
    depth = 0  # nothing is joined

    @property
    def waits(self) -> bool:
        """True if threads read the samples, and the consumer waits for them; False if the consumer reads files."""
        return not (self.store.reads_ahead and self.format.needs_bytes)

    @property
    def identity(self) -> str:
        """Name of the dataset among the caches of this machine."""
        return self.index.fingerprint

    @property
    def parts(self) -> tuple[Opened, ...]:
        """The datasets, in the order of their sample ids: here only this one."""
        return (self,)

    @property
    def indexes(self) -> dict[str, Index]:
        """The index of each part by name; the only part has the name ""."""
        return {"": self.index}

    @property
    def caches(self) -> tuple[ChunkCache | None, ...]:
        """The cache, if there is one."""
        return (self.cache,)

    @property
    def whole(self) -> Opened:
        """The dataset itself."""
        return self

    def words(self, num_samples: Callable[[], str]) -> str:
        """Return the number of samples and shards, and their format; or the files of a table, and its version."""
        words = f"{num_samples()} of {self._shards}"
        return words if self.derivation is None else f"{words}, {self.derivation.words}"

    @property
    def _shards(self) -> str:
        num_shards, version = self.index.num_shards, self.index.metadata.get(SNAPSHOT)
        if version is None:
            return counted(num_shards, f"{self.index.format} shard")
        num_left_out = sum(self.left_out.values())
        left_out = f", {counted(num_left_out, 'file')} left out" if num_left_out else ""
        return f"{counted(num_shards, 'file')} of {version_text(version)}{left_out}"

    def one(self, verb: str) -> Opened:  # noqa: ARG002
        """Return the dataset; only a mixture raises `UsageError`."""
        return self

    def with_parts(self, parts: tuple[Opened, ...]) -> Opened:
        """Return the dataset with its only part replaced."""
        return parts[0]

    def part_of(self, sample_id: int) -> tuple[Opened, int]:
        """Return the dataset that holds a sample, and the id of the sample there."""
        return self, sample_id


@dataclass(frozen=True, slots=True)
class Companion:
    """A dataset whose samples are delivered together with the samples of another dataset.

    The ``kept`` alignment has its sample for each sample of the other dataset.
    """

    opened: Opened
    kept: KeptAlignment


class Recipe(Protocol):
    """The making of samples from rows, such as windows of some length. It must pickle, and equal recipes are equal."""

    @property
    def words(self) -> str:
        """The samples in words: "windows of 16 rows by episode_index"."""

    @property
    def can_repeat(self) -> bool:
        """False if samples can be made only once, because an argument has a value for each row."""

    def fingerprint(self, rows: Opened) -> str:
        """Return the fingerprint of the samples of some rows; "" if rows would have to be read for it."""

    def made_of(self, rows: Opened) -> Opened:
        """Return the samples of some rows; raises `UsageError` if it can make samples only once."""


@dataclass(frozen=True, slots=True)
class Derivation:
    """The dataset that samples are made of, such as windows of its rows; a description of the making, and its recipe.

    ``words`` describe these samples, with their numbers.
    """

    rows: Opened
    words: str
    recipe: Recipe


def each_opened(parts: Iterable[Opened]) -> Iterator[Opened]:
    """Yield datasets, each followed by its companions."""
    for part in parts:
        yield part
        yield from each_opened(companion.opened for companion in part.companions)


@dataclass(frozen=True)
class OpenedMixture:
    """The datasets of a mixture by name, ready for reading; nested mixtures are listed by their datasets."""

    names: tuple[str, ...]
    parts: tuple[Opened, ...]

    @cached_property
    def index(self) -> JoinedIndex:
        """The joined index."""
        return JoinedIndex(self.names, tuple(part.index for part in self.parts))

    @property
    def indexes(self) -> dict[str, Index]:
        """The index of each dataset by name."""
        return {name: part.index for name, part in zip(self.names, self.parts, strict=True)}

    @property
    def depth(self) -> int:
        """Depth of nested mixtures; 1 if none is nested."""
        return 1 + max(name.count("/") for name in self.names)

    @property
    def whole(self) -> OpenedMixture:
        """The mixture itself."""
        return self

    def words(self, num_samples: Callable[[], str]) -> str:
        """Return the number of samples, and their sources."""
        return f"{num_samples()} of {', '.join(self.names)}"

    def one(self, verb: str) -> Opened:
        """Raise `UsageError`: a mixture is several datasets."""
        msg = f"{verb} works on one dataset, but this is a mixture of {', '.join(self.names)}"
        raise UsageError(msg, hint=f"call {verb} on its sources, before mix()")

    @property
    def caches(self) -> tuple[ChunkCache | None, ...]:
        """The cache of each dataset."""
        return tuple(part.cache for part in self.parts)

    def with_parts(self, parts: tuple[Opened, ...]) -> OpenedMixture:
        """Return the mixture with its datasets replaced."""
        return OpenedMixture(self.names, parts)

    def part_of(self, sample_id: int) -> tuple[Opened, int]:
        """Return the dataset that holds a sample, and the id of the sample there."""
        number, inside = self.index.part_of(sample_id)
        return self.parts[number], inside


def refuse_empty(index: Index, source_name: str) -> None:
    """Raise `UsageError` if no shard of a source has a sample."""
    if not index.num_samples:
        notes = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in index.notes.items())
        msg = f"{source_name}: {counted(index.num_shards, 'shard')} without a single sample"
        msg += notes and f"; met: {notes}"
        raise UsageError(msg, hint="is this the right format, with the right options?")

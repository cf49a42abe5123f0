"""Shards in the order in which a seed shuffles them, opened segment by segment while others are indexed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.index.assembly import joined
from shoal.index.table import Index
from shoal.indexing.growing.segment_indexes import KnownSegments, SegmentIndexes, SegmentsAhead
from shoal.indexing.growing.unindexed import Unindexed
from shoal.indexing.opened_dataset import Opened, refuse_empty
from shoal.order.growing_segments import cut_segments, permuted_shards
from shoal.processes.job_rank import JobRank
from shoal.storage.chunk_cache.chunk_cache import ChunkCache


class Growth(NamedTuple):
    """Shards of a dataset that are indexed, and the samples of all.

    ``num_samples`` is an estimate from the ``num_indexed_samples`` until all shards are indexed, and ``error`` its
    standard error.
    """

    num_segments: int
    num_indexed_segments: int
    num_shards: int
    num_indexed_shards: int
    num_indexed_samples: int
    num_samples: int
    error: int


def _of_none() -> dict[int, tuple[int, str]]:
    """Return what is told of no segment: no samples, and no digest."""
    return {0: (0, "")}


@dataclass(frozen=True)
class GrowingShards:
    """Shards that a seed has permuted, cut into segments for a window of ``window_bytes``.

    ``shards`` are opened, or have no index yet. Sample ids follow each other in the permuted order.
    """

    shards: Opened | Unindexed
    seed: int
    window_bytes: int
    _prefixes: dict[int, Opened] = field(default_factory=dict, init=False, repr=False, compare=False)
    _dropped: set[int] = field(default_factory=set, init=False, repr=False, compare=False)
    _told: dict[int, tuple[int, str]] = field(default_factory=_of_none, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, object]:
        """Return the state to pickle for processes, without what is quickly made again."""
        kept = {name: self.__dict__[name] for name in ("shards", "seed", "window_bytes")}
        return kept | {"_prefixes": {}, "_dropped": set(), "_told": _of_none()}

    @cached_property
    def _listing(self) -> tuple[Sequence[str], NDArray[np.int64], Sequence[str]]:
        """Names, sizes and paths of the shards, in the order of the listing."""
        shards = self.shards
        if isinstance(shards, Opened):
            return shards.index.shard_names, shards.index.shard_bytes, shards.paths
        sizes = np.array([info.num_bytes for info in shards.making.infos], dtype=np.int64)
        return shards.making.what.source.names, sizes, shards.making.what.source.paths

    @cached_property
    def shard_order(self) -> NDArray[np.int64]:
        """The number in the listing of each shard; shape (num_shards,)."""
        return permuted_shards(len(self._listing[0]), seed=self.seed)

    @cached_property
    def shard_bytes(self) -> NDArray[np.int64]:
        """Bytes of each shard, in the permuted order; shape (num_shards,)."""
        return self._listing[1][self.shard_order]

    @cached_property
    def borders(self) -> list[int]:
        """The first shard of each segment, and the number of shards."""
        return cut_segments(self.shard_bytes, window_bytes=self.window_bytes)

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the listing: a digest of base names, as an index may name directories, and sizes in its order."""
        names, sizes, _ = self._listing
        words = json.dumps([[name.rpartition("/")[2] for name in names], sizes.tolist()]).encode()
        return "listing-" + hashlib.blake2b(words, digest_size=16).hexdigest()

    @cached_property
    def segments(self) -> SegmentIndexes:
        """The indexes of the segments."""
        shards = self.shards
        if isinstance(shards, Opened):
            return KnownSegments(shards.index, self.shard_order, self.borders)
        return SegmentsAhead(shards, self.shard_order, self.borders)

    @property
    def caches(self) -> tuple[ChunkCache | None, ...]:
        """The cache, if there is one."""
        return self.shards.caches

    @property
    def is_local(self) -> bool:
        """True if the shards are files of this machine."""
        shards = self.shards
        return (shards.store if isinstance(shards, Opened) else shards.making.store).reads_ahead

    @property
    def num_segments(self) -> int:
        """Number of segments."""
        return len(self.borders) - 1

    @property
    def is_indexed(self) -> bool:
        """True if all segments are indexed."""
        return self.segments.num_made == self.num_segments

    def begin(self, rank: int, world_size: int) -> None:
        """Begin to index as one of the processes that read these shards together, unless this one has begun."""
        self.segments.begin(None if world_size == 1 else JobRank(rank, world_size, world_size))

    @property
    def summary(self) -> str:
        """Number and format of the shards, and how many are indexed, for messages; nothing is indexed for it."""
        shards = self.shards
        if isinstance(shards, Opened):
            return f"{shards.index.num_samples:,} samples of {shards.index.num_shards:,} {shards.index.format} shards"
        return f"{shards.summary}, {self.segments.num_made:,} of {self.num_segments:,} segments indexed"

    def prefix(self, num_segments: int) -> Opened:
        """Return the first segments, waiting for their indexes; the first alone and the newest are remembered."""
        found = self._prefixes.get(num_segments)
        if found is None:
            found = self._opened(self._index(num_segments))
            if isinstance(self.shards, Unindexed) and num_segments == self.num_segments:
                refuse_empty(found.index, self.shards.making.what.source.asked)
            for other in list(self._prefixes):
                if other != 1:
                    self._prefixes.pop(other, None)  # another thread may have just removed it
            self._prefixes[num_segments] = found
        return found

    def num_segments_of(self, num_samples: int) -> int:
        """Return the number of segments that hold the first samples, waiting for their indexes."""
        for number in range(self.num_segments):
            if num_samples <= self._first(number)[0]:
                return number
        return self.num_segments

    def identity_of(self, num_segments: int) -> str:
        """Return the number of the first segments, and a digest of their extents and samples; waits for their indexes.

        The listing leaves these open: a shard may be replaced by one of the same size, and an index cut otherwise.
        """
        return f"{num_segments}-{self._first(num_segments)[1]}"

    def _first(self, num_segments: int) -> tuple[int, str]:
        """Samples of the first segments, and the digest of these."""
        known = self._told
        if num_segments not in known:
            for number in range(num_segments):
                if number + 1 not in known:
                    num_samples, digest = known[number]
                    index = self.segments.index(number)
                    digest = hashlib.blake2b(f"{digest} {index.fingerprint}".encode(), digest_size=8).hexdigest()
                    known[number + 1] = (num_samples + index.num_samples, digest)
        return known[num_segments]

    def drop_before(self, num_samples: int) -> None:
        """Remove scanned bytes of the segments whose samples are all among the first ones, and have been read."""
        if (passing := self.segments.passing) is None:
            return
        first, paths = 0, self._listing[2]
        for segment in range(self.segments.num_made):
            first += self.segments.index(segment).num_samples
            if first > num_samples:
                return
            if segment in self._dropped:
                continue
            self._dropped.add(segment)
            for number in self.shard_order[self.borders[segment] : self.borders[segment + 1]].tolist():
                passing.drop(paths[number])

    @property
    def whole(self) -> Opened:
        """All shards with their index in the permuted order, waiting until it is made."""
        return self.prefix(self.num_segments)

    def with_cache(self, cache: ChunkCache | None) -> GrowingShards:
        """Return the same shards, read through a cache of this machine."""
        return GrowingShards(replace(self.shards, cache=cache), self.seed, self.window_bytes)

    def growth(self) -> Growth:
        """Return what is indexed, and estimate the samples of all shards; waits for the first segment.

        Samples per byte are taken to vary among the shards that are left as among those that are indexed, which are a
        random sample of all. With one shard alone nothing is known of that, and the error is the estimate itself.
        """
        num_made = max(1, self.segments.num_made)
        parts = [self.segments.index(segment) for segment in range(num_made)]
        samples = np.concatenate([np.diff(part.extent_first_sample[part.shard_first_extent]) for part in parts])
        num_bytes = self.shard_bytes[: len(samples)]
        num_shards, num_known = len(self.shard_bytes), int(samples.sum())
        rate = num_known / max(1, int(num_bytes.sum()))
        rest = rate * int(self.shard_bytes[len(samples) :].sum())
        num_left = num_shards - len(samples)
        error = rest
        if len(samples) > 1:
            deviation = float((samples - rate * num_bytes).std(ddof=1))
            error = min(rest, deviation * (num_left + num_left**2 / len(samples)) ** 0.5)
        told = (num_known, round(num_known + rest), round(error))
        return Growth(self.num_segments, num_made, num_shards, len(samples), *told)

    def _index(self, num_segments: int) -> Index:
        if num_segments == self.num_segments:
            return self.segments.whole()
        parts = [self.segments.index(segment) for segment in range(num_segments)]
        return joined(parts, metadata=parts[0].metadata)

    def _opened(self, index: Index) -> Opened:
        paths = self._listing[2]
        own = [paths[number] for number in self.shard_order[: index.num_shards].tolist()]
        if isinstance(self.shards, Unindexed):
            opened, passing = self.shards.opened(index, None, own), self.segments.passing
            return opened if passing is None else replace(opened, store=passing.serving(opened.store))
        check = self.shards.check.of_part(index, own)
        return replace(self.shards, index=index, paths=tuple(own), index_path=None, check=check)

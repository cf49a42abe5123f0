"""The index of many shards from parts: each unit scans its shards and writes a part, and the parts are joined."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from shoal.errors import StorageError, UsageError
from shoal.formats.format_registry import options_of
from shoal.formats.shard_format import Format
from shoal.index.assembly import joined
from shoal.index.cutting import CUTTING_RULE, usual_extent_bytes
from shoal.index.index_file import confirm, decode, encode
from shoal.index.table import Index
from shoal.indexing.build import (
    MANY_SAMPLES,
    Progress,
    index_of_scans,
    index_of_tasks,
    scan_rules,
    scan_tasks,
    scans_of_tasks,
)
from shoal.indexing.changed_shards import ShardCheck
from shoal.indexing.checksums import extent_checksums
from shoal.indexing.jobs.job_units import UnitParts, check_unit, cut_units
from shoal.indexing.manifests_beside import Described, compare_hashes
from shoal.indexing.scan.remote_scans import ScanTraffic
from shoal.indexing.scan.scan_task import ScanTask
from shoal.storage.sources.source import Source
from shoal.storage.stat_many import stat_all
from shoal.storage.store_protocol import Store
from shoal.storage.urls import without_secrets

PARTS = ".shoal-index"
"""Directory beside an index for the parts of a job; it is removed once the index is written."""

# In the metadata of a part: the number of shards whose hashes were compared with a manifest.
_NUM_HASHED = "num_hashed"


@dataclass(frozen=True, slots=True)
class UnitScanned:
    """Result of a unit: its number, and the contents of its shards."""

    number: int
    num_shards: int
    num_samples: int
    num_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class IndexRequest:
    """The request that all units share; ``source`` has no shards, only their root and the name of the source."""

    source: Source
    store: Store
    format: Format
    extent_bytes: int
    checksum: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class IndexTask:
    """One unit: consecutive shards, for a scan on any machine. Can be pickled."""

    number: int
    request: IndexRequest
    shards: tuple[ScanTask, ...]
    rows: Mapping[str, Mapping[str, Any]]
    parts: UnitParts

    def __call__(self) -> UnitScanned:
        """Scan the shards, store their part of the index, and return a summary."""
        check_unchanged(self.shards, self.request.store)
        request = self.request
        part = index_of_tasks(
            self.shards, store=request.store, format=request.format, source_name=request.source.typed,
            extent_bytes=request.extent_bytes, workers=0, keeps_scans=False, rows=self.rows,
        )  # fmt: skip
        return self.keep(part)

    def keep(self, part: Index) -> UnitScanned:
        """Write the index of these shards as the part of this unit."""
        num_hashed = 0
        if self.request.checksum:
            part, num_hashed = self._with_checksums(part)
        self.parts.put(self.number, encode(replace(part, metadata={**part.metadata, _NUM_HASHED: num_hashed})))
        return UnitScanned(self.number, part.num_shards, part.num_samples, part.num_bytes)

    def _with_checksums(self, part: Index) -> tuple[Index, int]:
        request, paths = self.request, [task.path for task in self.shards]
        source = replace(request.source, names=tuple(part.shard_names), paths=tuple(paths))
        expected = {task.path: task.expected for task in self.shards if task.expected is not None}
        num_hashed = compare_hashes(Described(source, expected=expected), request.store)
        check = ShardCheck(part, paths, store=request.store, format=request.format).check
        checksums = extent_checksums(part, paths, store=request.store, check=check)
        return replace(part, extent_checksum=checksums), num_hashed


@dataclass(frozen=True, slots=True, eq=False)
class IndexUnits:
    """All units of an index: ``shards`` cut at ``cuts``. Can be pickled."""

    request: IndexRequest
    shards: tuple[ScanTask, ...]
    rows: Mapping[str, Mapping[str, Any]]
    cuts: tuple[int, ...]
    parts: UnitParts

    @property
    def num_units(self) -> int:
        """Number of units."""
        return len(self.cuts) - 1

    def task(self, number: int) -> IndexTask:
        """Return a unit with its own shards alone."""
        check_unit(number, self.num_units)
        shards = self.shards[self.cuts[number] : self.cuts[number + 1]]
        rows = {task.name: self.rows[task.name] for task in shards if task.name in self.rows}
        return IndexTask(number, self.request, shards, rows, self.parts)

    def run_side_by_side(
        self,
        numbers: Sequence[int],
        *,
        workers: int,
        progress: Progress | None = None,
        traffic: ScanTraffic | None = None,
    ) -> Iterator[UnitScanned]:
        """Scan the shards of some units in one pass, several at a time, and store each part once it is complete.

        Reads of remote shards are added to ``traffic``.
        """
        request, tasks = self.request, {number: self.task(number) for number in numbers}
        unit_of = {shard.number: number for number, task in tasks.items() for shard in task.shards}
        shards = [shard for task in tasks.values() for shard in task.shards]
        check_unchanged(shards, request.store)
        scans: dict[int, dict[int, Any]] = {number: {} for number in numbers}
        scanned = scans_of_tasks(
            shards, store=request.store, format=request.format, workers=workers, progress=progress, traffic=traffic
        )
        with closing(scanned) as results:
            for shard, scan in results:
                number = unit_of[shard.number]
                scans[number][shard.number] = scan
                task = tasks[number]
                if len(scans[number]) == len(task.shards):
                    kind, extent_bytes = request.format, request.extent_bytes
                    part = index_of_scans(
                        task.shards, scans.pop(number), format=kind, extent_bytes=extent_bytes, rows=task.rows
                    )
                    yield task.keep(part)

    def merged(self) -> tuple[Index, int]:
        """Join the parts of all units into one index, and count the shards whose hashes were compared.

        O(samples) time, memory of the index and its parts, and one request a unit. Raises `UsageError`: units are
        missing, or parts are of other shards.
        """
        parts = self.parts.read_all(self.num_units, _part_in)
        index = joined(parts, metadata=self.common_metadata(parts[0]), most_samples_with_sizes=MANY_SAMPLES - 1)
        planned = [(task.name, task.num_bytes, task.version) for task in self.shards]
        indexed = list(zip(index.shard_names, index.shard_bytes.tolist(), index.shard_versions, strict=True))
        if indexed != planned:
            msg = f"{self.request.source.typed}: the parts of this job are of other shards than the planned ones"
            raise UsageError(msg, hint="plan the job again; nothing was written")
        return index, sum(int(part.metadata.get(_NUM_HASHED, 0)) for part in parts)

    def common_metadata(self, part: Index) -> dict[str, Any]:
        """Return those metadata of a part that are equal in all parts."""
        return {name: value for name, value in part.metadata.items() if name != _NUM_HASHED}

    def part(self, number: int) -> Index | None:
        """Return the part of the index that a unit has stored; None if the unit has stored no part."""
        return self.parts.read(number, _part_in)

    def check_unchanged(self) -> None:
        """Raise `StorageError` if a shard has changed since the plan."""
        store, source = self.request.store, self.request.source
        store.close()  # drops cached facts about the shards
        if source.complete and not store.reads_ahead:
            for _ in store.list(source.root):
                pass  # a remote store remembers its listing
        check_unchanged(self.shards, store)


def _part_in(data: bytes) -> Index:
    part = decode(data)
    confirm(data, required=True)
    return part


def check_unchanged(shards: Sequence[ScanTask], store: Store) -> None:
    """Raise `StorageError` if a shard does not have its planned size and version."""
    for task, info in zip(shards, stat_all([task.path for task in shards], store), strict=True):
        if (info.num_bytes, info.version) != (task.num_bytes, task.version):
            what = f"it had {task.num_bytes} bytes and version {task.version!r}"
            msg = f"{without_secrets(task.path)}: this shard has changed since it was listed: {what}, and has "
            msg += f"{info.num_bytes} bytes and version {info.version!r} now"
            raise StorageError(msg, hint="once the shards no longer change, open the dataset or plan the job again")


def index_units(
    what: Described,
    store: Store,
    format: Format,  # noqa: A002
    *,
    extent_bytes: int | None,
    checksum: bool,
    parts_in: Callable[[str], UnitParts],
    shards: Sequence[ScanTask] | None = None,
    cuts: Sequence[int] | None = None,
) -> IndexUnits:
    """Plan the units of an index; ``parts_in`` returns the parts of a plan by its id.

    The id depends on everything that determines the index: names, sizes and versions of shards, their format, and the
    rules that scan and cut them. ``shards`` are from `scan_tasks`, if they are known, and ``cuts`` are their cuts into
    units.
    """
    tasks = scan_tasks(what.source, store=store, format=format, expected=what.expected) if shards is None else shards
    if extent_bytes is None:
        extent_bytes = usual_extent_bytes(sum(task.num_bytes for task in tasks))
    cuts = cut_units([task.num_bytes for task in tasks]) if cuts is None else list(cuts)
    listing = [(task.name, task.num_bytes, task.version, task.index) for task in tasks]
    words = [*scan_rules(format), CUTTING_RULE, format.name, options_of(format), extent_bytes, checksum, cuts, listing]
    words += [dict(what.rows)] if what.rows else []
    plan = hashlib.blake2b(json.dumps(words).encode(), digest_size=16).hexdigest()
    bare = replace(what.source, names=(), paths=())
    request = IndexRequest(bare, store, format, extent_bytes, checksum)
    return IndexUnits(request, tuple(tasks), what.rows, tuple(cuts), parts_in(plan))

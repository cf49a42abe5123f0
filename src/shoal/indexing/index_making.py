"""Making of an index that is not beside its shards: from the cache of this machine, alone, or with other ranks."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path, PurePath
from typing import cast

from shoal.errors import ShoalError, StorageError
from shoal.formats.folder.reader import Folder
from shoal.formats.format_registry import options_of
from shoal.formats.shard_format import Format
from shoal.index.assembly import SNAPSHOT, of_snapshot
from shoal.index.cutting import CUTTING_RULE, usual_extent_bytes
from shoal.index.table import Index
from shoal.indexing.build import Progress, build_index, scan_rules, scan_tasks, small_bytes
from shoal.indexing.changed_shards import describes
from shoal.indexing.index_files import bound_cache, load_index, save_index
from shoal.indexing.jobs.index_from_parts import PARTS, index_units
from shoal.indexing.jobs.job_units import UnitParts
from shoal.indexing.jobs.shared_indexing import index_together
from shoal.indexing.manifests_beside import Described, versions_beside
from shoal.indexing.scan.scan_task import ScanTask
from shoal.indexing.tables.snapshot_protocol import missing_file
from shoal.processes.job_rank import JobRank, local_size_of
from shoal.storage.cache_directory import UNITS, mark_used
from shoal.storage.files.local_store import LocalStore
from shoal.storage.files.machine_locks import machine_lock
from shoal.storage.objects.torch_store import TorchStore
from shoal.storage.sources.shard_selection import INDEX_NAME
from shoal.storage.stat_together import stat_together
from shoal.storage.store_protocol import ObjectInfo, Store
from shoal.storage.urls import join, scheme_of

_log = logging.getLogger("shoal")


@dataclass(frozen=True)
class IndexMaking:
    """Shards whose index is not beside them: it is in the cache of this machine, or must be made.

    ``publish`` may write the index beside the shards, and returns its path there. Ranks exchange parts through the
    store ``shared``, beside the shards, or through ``exchange`` without ``shared``.
    """

    what: Described
    store: Store
    format: Format
    cache_dir: str
    progress: Progress | None
    publish: Callable[[Index], str | None]
    job_rank: JobRank | None
    shared: Store | None
    exchange: TorchStore | None = None

    @property
    def common(self) -> Store | None:
        """The store through which all machines of the job exchange parts of the index; None if there is none."""
        return self.shared if self.exchange is None else self.exchange

    @cached_property
    def infos(self) -> list[ObjectInfo]:
        """Size and version of every shard."""
        paths, num_processes = self.what.source.paths, local_size_of(self.job_rank)
        try:
            return stat_together(paths, self.store, cache_dir=self.cache_dir, num_processes=num_processes)
        except StorageError as error:
            missing = next((path for path in paths if path in error.message), paths[0])
            raise missing_file(error, missing, self.what.version) from None

    def tasks(self) -> list[ScanTask]:
        """Return the shards as tasks (see `scan_tasks`); their sizes are requested only once."""
        what = self.what
        return scan_tasks(what.source, store=self.store, format=self.format, expected=what.expected, infos=self.infos)

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(info.num_bytes for info in self.infos)

    @property
    def extent_bytes(self) -> int:
        """Bytes of an extent of the index."""
        return usual_extent_bytes(self.num_bytes)

    @cached_property
    def path(self) -> str:
        """The file of the index in the cache of this machine; its name depends on all inputs of the index."""
        source, format = self.what.source, self.format  # noqa: A001
        shards = [(info.path, info.num_bytes, info.version) for info in self.infos]
        words = [*scan_rules(format), CUTTING_RULE, format.name, options_of(format), self.extent_bytes, source.names]
        words += [shards, self.what.rows] if self.what.rows else [shards]
        words += [self.what.version] if self.what.version else []
        words += versions_beside(source.paths, format, self.store)
        key = hashlib.blake2b(json.dumps(words).encode(), digest_size=16).hexdigest()
        return str(Path(self.cache_dir, "indexes", f"{key}.index"))

    def cached_or_made(self) -> tuple[Index, str | None]:
        """Return the cached index, or build and cache it; and its file, None if it could not be written."""
        source, path = self.what.source, self.path
        if self.job_rank is not None and self.job_rank.world_size > 1 and self.num_bytes >= small_bytes(self.store):
            index_and_file = self.cached() or self._made_together(self.job_rank)
            if index_and_file is not None:
                return index_and_file
        # Processes of one machine open the same dataset at the same time; one of them does the work.
        with machine_lock(f"{path}.lock", what=f"indexes {source.typed}") as signal_waiting:

            def report(done_bytes: int, total_bytes: int, num_samples: int) -> None:
                signal_waiting()
                if self.progress is not None:
                    self.progress(done_bytes, total_bytes, num_samples)

            if (known := self.cached()) is not None:
                return known
            index = build_index(
                source,
                store=self.store,
                format=self.format,
                progress=report,
                cache_dir=self.cache_dir,
                expected=self.what.expected,
                rows=self.what.rows,
            )
            return self.kept(index)

    def cached(self) -> tuple[Index, str | None] | None:
        """Return the cached index and its file; None if there is no usable index."""
        local, path = self._local(), self.path
        try:
            mark_used(path)
            if local.find(path) is not None:
                known = load_index(path, store=local, trusted=True)
                warn_of_unversioned(self.infos, path)
                return known, self.publish(known) or path
        except ShoalError as error:
            _log.warning("the cached index cannot be used and is made again: %s", error.message)
        return None

    def kept(self, index: Index) -> tuple[Index, str | None]:
        """Cache an index of these shards, publish it on request, and return it with its file."""
        if self.what.version and SNAPSHOT not in index.metadata:
            index = of_snapshot(index, self.what.version)
        beside = self.publish(index)
        if self.exchange is not None:
            with suppress(StorageError):  # other machines then index what they still need
                save_index(index, self._common_path, store=self.exchange)
        return self._in_cache(index, beside)

    def _in_cache(self, index: Index, beside: str | None) -> tuple[Index, str | None]:
        """Cache an index, and return it with its file, in the cache or ``beside`` the shards."""
        path = self.path
        try:
            save_index(index, path, store=self._local())
        except StorageError as error:
            if beside is None:
                _log.warning("the index cannot be kept, and is made again next time: %s", error.message)
            return index, beside
        bound_cache(self.cache_dir)
        return index, beside or path

    def _made_together(self, me: JobRank) -> tuple[Index, str | None] | None:
        """Index the shards together with the other ranks of the job; None if ranks cannot share the work."""
        if isinstance(self.format, Folder):
            return None  # nothing is read
        self.log_machines(me)
        for directory, parts_store in self.part_directories():
            units = index_units(
                self.what, self.store, self.format, extent_bytes=self.extent_bytes, checksum=False,
                parts_in=partial(UnitParts, directory, store=parts_store),
            )  # fmt: skip
            index_and_file = index_together(
                units, me, keep=self.kept, find=self.kept_by_any_rank, progress=self.progress
            )
            if index_and_file is not None:
                return index_and_file
        return None

    def part_directories(self) -> list[tuple[str, Store]]:
        """Return the directories, with stores, in which ranks can exchange parts of the index: the best first.

        Parts have checksums, so a part that was half written when the machine crashed is made again.
        """
        directories = [(str(Path(self.cache_dir, UNITS)), cast("Store", LocalStore(durable=False)))]
        if self.common is not None:
            root = self.what.source.root if self.exchange is None else self.exchange.url
            directories.insert(0, (join(root, PARTS), self.common))
        return directories

    def log_machines(self, me: JobRank) -> None:
        """Log the cost if machines of a job share no directory; not all launchers report several machines."""
        source = self.what.source
        scheme = scheme_of(source.root)
        if self.common is None and (scheme or me.local_size < me.world_size):
            text = "%s: machines that do not share %s each index all %d shards of %.1f GB%s"
            how = "; publish_index=True shares that, too" if scheme not in ("", "http", "https") else ""
            _log.info(text, source.typed, self.cache_dir, len(self.infos), self.num_bytes / 1e9, how)

    def kept_by_any_rank(self) -> tuple[Index, str | None] | None:
        """Return the whole index and its file once any rank has stored the index."""
        store, path = self.common, self._common_path
        if (known := self.cached()) is not None or store is None:
            return known
        store.close()  # drops cached facts about the index
        with suppress(ShoalError):
            if store.find(path) is not None:
                is_beside = self.exchange is None
                index = load_index(path, store=store, cache_dir=self.cache_dir if is_beside else None)
                if describes(index, self.what.source, self.infos):
                    return (index, path) if is_beside else self._in_cache(index, None)
        return None

    @property
    def _common_path(self) -> str:
        if self.exchange is None:
            return join(self.what.source.root, INDEX_NAME)
        return join(self.exchange.url, PurePath(self.path).name)

    def _local(self) -> LocalStore:
        return self.store if isinstance(self.store, LocalStore) else LocalStore()


def warn_of_unversioned(infos: Sequence[ObjectInfo], index_path: str) -> None:
    """Warn of shards without an etag and a date: only their sizes can be compared."""
    if unversioned := [info.path for info in infos if not info.version]:
        text = "%d of %d shards have no etag and no date (the first is %s): only their sizes are compared with %s"
        _log.warning(text, len(unversioned), len(infos), unversioned[0], index_path)

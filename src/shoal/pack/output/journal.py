"""Journal of an unfinished packing: records in a hidden directory ``.shoal-pack`` beside the shards.

The plan identifies the job: it is written first and removed last. A finished shard has its part of the index, an
ordinary index file. `clean` knows a job's shards by the digests that are recorded before publishing. Notes hold other
results of the packing.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from shoal.errors import IndexFileError, StorageError
from shoal.index.index_file import decode, encode
from shoal.index.shard_scan import Buffer
from shoal.index.table import Index
from shoal.processes.calls_in_threads import called_in_order
from shoal.storage.files.atomic_writes import can_link, remove_abandoned, write_atomically
from shoal.storage.sources.shard_selection import PACKING, PACKING_PLAN
from shoal.storage.storage_errors import os_failure
from shoal.storage.store_protocol import ObjectInfo, Store
from shoal.storage.urls import join, relative, scheme_of

_PLAN, _LOCK, _PART, _NOTE, _MADE = PACKING_PLAN.rpartition("/")[2], "lock", ".part", ".note", ".made"
_GROUP = ".group"
_ABANDONED_SECONDS = 60.0
_NUM_THREADS = 32  # requests of small records to a store, side by side
_MOST_REPLACED = 8  # replacements of a record during one read
_OF_BEGINNING = (".tmp", _NOTE, _MADE)  # records of a packing without a finished shard


class Journal:
    """The records of the packing with this ``plan`` into ``url``."""

    def __init__(self, url: str, *, plan: str, store: Store) -> None:
        self._url, self._plan, self._store = url, plan, store
        self.directory = join(url, PACKING)
        self.lock_path = self._path(_LOCK)  # the lock among processes of this machine

    def exists(self) -> bool:
        """Return True if a local directory has a journal."""
        return Path(self.directory).exists()

    def begin(self, settings: Mapping[str, Any], *, shared: bool = False, replaces: bool = False) -> bool:
        """Record the plan, with the requested settings in readable form; False if another machine was faster.

        ``shared`` tells later runs that engines may be running the units. A store with conditional writes replaces a
        record only if ``replaces`` is true.
        """
        record = {"plan": self._plan, "asked": dict(settings), **({"shared": True} if shared else {})}
        path, data = self._path(_PLAN), json.dumps(record).encode()
        if not replaces:
            try:
                return self._store.put_if(path, data, replaces=None)
            except StorageError as error:
                if error.errno != errno.ENOTSUP:
                    raise
        self._store.put(path, data)
        return True

    def lacks(self) -> str:
        """Return why the store would replace an existing object; empty if it refuses. A trial note shows it."""
        if not scheme_of(self._url):
            return "" if can_link(self.directory) else "this file system has no hard links"
        path = self._path(f"{os.urandom(8).hex()}{_NOTE}")
        try:
            # Other bytes each time: after a lost answer, equal bytes count as written. A third write,
            # since another machine that finishes this job removes all notes.
            if all(self._store.put_if(path, data, replaces=None) for data in (b"first", b"second", b"third")):
                return "this store wrote an object over an existing object, which the request forbade"
        except StorageError as error:
            if error.errno != errno.ENOTSUP:
                raise
            return error.message
        finally:
            self._store.delete(path)
        return ""

    def planned(self) -> dict[str, Any] | None:
        """Return the record of the plan, of this or another packing; None if no packing has begun."""
        data = self._read(_PLAN)
        if data is None:
            return None
        with suppress(ValueError):
            known = json.loads(data)
            if isinstance(known, dict):
                return known
        return {}

    def is_own(self) -> bool:
        """Return True if this packing is the one under way."""
        return (self.planned() or {}).get("plan") == self._plan

    def has_progress(self, paths: Sequence[str]) -> bool:
        """Return True if one of these paths shows that a packing has written more than its plan."""
        kept = (self._path(_PLAN), self._path(_LOCK))
        return any(path not in kept and not path.endswith(_OF_BEGINNING) for path in paths)

    def made(self, name: str, digest: str) -> None:
        """Record the digest of a shard that is about to be published, for `clean`."""
        self._write(self._path(f"{name}.{digest}-{self._plan}{_MADE}"), [])

    def unmake(self, name: str, digest: str) -> bool:
        """Remove the records of a late shard; False if another packing has made the same bytes."""
        self._store.close()
        others = [path for path in self._paths() if path.startswith(self._path(f"{name}.{digest}-"))]
        ending = f"-{self._plan}{_MADE}"
        for path in self._paths():
            if path.startswith(self._path(f"{name}.")) and path.endswith((ending, f"-{self._plan}{_PART}")):
                self._store.delete(path)
        if self.planned() is None:  # else the directory, and the lock in it, are another packing's
            self._remove_directory()
        return all(path.endswith(ending) for path in others)

    def keep(self, part: Index) -> None:
        """Record the index of one finished shard."""
        self._write(self._part_path(part.shard_names[0], int(part.shard_bytes[0])), encode(part))

    def kept(self, name: str) -> Index | None:
        """Return the index of a finished shard; None if it is unfinished or has changed since."""
        info = self._store.find(join(self._url, name))
        data = None if info is None else self._read_path(self._part_path(name, info.num_bytes))
        return None if data is None else self._decoded(data)

    def finished(self) -> dict[str, ObjectInfo]:
        """Return the record of each finished shard, by the shard's name; one listing, and no record is read."""
        if not scheme_of(self._url) and not Path(self._url).is_dir():
            return {}
        sizes: dict[str, int] = {}
        records: dict[tuple[str, int], ObjectInfo] = {}
        ending = f"-{self._plan}{_PART}"
        for info in self._listed(self._url):
            name = relative(info.path, self._url)
            if not name.startswith(f"{PACKING}/"):
                sizes[name] = info.num_bytes
            elif name.endswith(ending) and info.num_bytes:  # a crash of the machine may leave an empty record
                num_bytes = name.removesuffix(ending).rpartition(".")[2]
                records[_shard_of(name), int(num_bytes)] = info
        return {name: record for (name, num_bytes), record in records.items() if sizes.get(name) == num_bytes}

    def parts(self, records: Iterable[ObjectInfo]) -> Iterator[Index | None]:
        """Yield the part in each record of `finished`, read side by side; None for a lost or damaged record."""

        def read(record: ObjectInfo) -> Index | None:
            data = self._read_record(record)
            part = None if data is None else self._decoded(data)
            if part is None:
                self._store.delete(record.path)
            return part

        return called_in_order(read, records, num_threads=self._num_threads)

    def _decoded(self, data: bytes) -> Index | None:
        with suppress(IndexFileError):
            part = decode(data)
            if part.metadata.get("plan") == self._plan:
                return part
        return None

    def keep_group(self, key: str, data: Sequence[Buffer]) -> None:
        """Store merged parts under a key, until this packing is finished."""
        self._store.put(self._path(f"{key}-{self._plan}{_GROUP}"), data)

    def group(self, key: str) -> tuple[int, Callable[[int, int], Buffer]] | None:
        """Return the number of bytes of merged parts, and a function that reads a range; None without parts."""
        path = self._path(f"{key}-{self._plan}{_GROUP}")
        info = self._store.find(path)
        return None if info is None else (info.num_bytes, partial(self._store.read_range, path))

    def withdraw(self, part: Index) -> None:
        """Remove the record of a finished shard, to make the shard again."""
        self._store.delete(self._part_path(part.shard_names[0], int(part.shard_bytes[0])))

    def forget(self, name: str) -> None:
        """Remove all records of a shard that was finished after the commit."""
        for path in self._paths():
            if path.startswith(self._path(f"{name}.")) and path.endswith((_MADE, _PART)):
                self._store.delete(path)
        self._remove_directory()

    def note(self, name: str, data: bytes) -> None:
        """Store a result of this packing until it is finished."""
        self._store.put(self._path(f"{name}-{self._plan}{_NOTE}"), data)

    def noted(self, name: str) -> bytes | None:
        """Return the result that an earlier run of this packing stored under a name; None if there is none."""
        return self._read(f"{name}-{self._plan}{_NOTE}")

    def records(self) -> list[ObjectInfo]:
        """Return all records, of any plan; none if there is no journal."""
        if not scheme_of(self.directory) and not Path(self.directory).is_dir():
            return []
        own = (_PART, _GROUP, _NOTE, _MADE, ".tmp", f"/{_PLAN}", f"/{_LOCK}")
        return [info for info in self._listed(self.directory) if info.path.endswith(own)]

    def made_by_name(self, records: Sequence[ObjectInfo]) -> dict[str, set[str]]:
        """Return the recorded digests of each name."""
        made: dict[str, set[str]] = {}
        parts = []
        for info in records:
            name = info.path.rpartition("/")[2]
            if name.endswith(_MADE):
                shard, _, digest = name.rpartition("-")[0].rpartition(".")
                made.setdefault(shard, set()).add(digest)
            elif name.endswith(_PART):
                parts.append(info)

        def read(info: ObjectInfo) -> Index | None:
            with suppress(IndexFileError):
                return decode(bytes(self._store.read_range(info.path, 0, info.num_bytes)))
            return None

        # A shard of `Writer` has no other record.
        unknown = [info for info in parts if _shard_of(info.path) not in made]
        for part in called_in_order(read, unknown, num_threads=self._num_threads):
            if part is not None:
                made.setdefault(part.shard_names[0], set()).add(str(part.metadata["digest"]))
        return made

    def remove_records(self) -> None:
        """Remove all records, the plan last, since readers look for it. Other files stay."""
        kept = (f"/{_PLAN}", f"/{_LOCK}")
        self._delete(info.path for info in self.records() if not info.path.endswith(kept))
        self._remove_plan()

    def clear(self) -> None:
        """Remove the directory with all its files, the plan last."""
        kept = (self._path(_PLAN), self._path(_LOCK))
        self._delete(path for path in self._paths() if path not in kept)
        self._remove_plan()

    def remove_abandoned(self, *, is_alone: bool) -> None:
        """Remove unfinished files of dead processes of this machine.

        If other processes may be working, only files without a lock and without a write for a minute are removed:
        unfinished records have no lock, and a shard has none in its first microseconds.
        """
        if scheme_of(self._url):
            return
        for path in Path(self.directory).glob("*.tmp"):
            if not is_alone:
                with suppress(FileNotFoundError):
                    if path.name.startswith(".") or time.time() - path.stat().st_mtime < _ABANDONED_SECONDS:
                        continue
            remove_abandoned(str(path))

    def _delete(self, paths: Iterable[str]) -> None:
        for _ in called_in_order(self._store.delete, paths, num_threads=self._num_threads):
            pass

    @property
    def _num_threads(self) -> int:
        return 1 if self._store.reads_ahead else _NUM_THREADS

    def _remove_plan(self) -> None:
        self._store.delete(self._path(_PLAN))
        self._remove_directory()

    def _remove_directory(self) -> None:
        if not scheme_of(self._url):
            self._store.delete(self._path(_LOCK))
            with suppress(OSError):
                Path(self.directory).rmdir()

    def _paths(self) -> list[str]:
        """Return all paths in the directory, which other machines may be removing."""
        if scheme_of(self.directory):
            return [info.path for info in self._listed(self.directory)]
        try:
            return [str(path) for path in Path(self.directory).iterdir()]
        except FileNotFoundError:
            return []

    def _listed(self, directory: str) -> list[ObjectInfo]:
        # Drops cached facts about objects of other machines; and some stores list versions that differ from the version
        # of a single request.
        self._store.close()
        infos = list(self._store.list(directory))
        self._store.close()
        return infos

    def _write(self, path: str, buffers: Sequence[Buffer]) -> None:
        """Store a record without waiting for the disk: each wait takes 0.1 to 60 ms, and a shard stores four records.

        If the machine loses the record, the shard is made again, with the same bytes.
        """
        if scheme_of(path):
            self._store.put(path, buffers)
            return
        try:
            write_atomically(path, buffers, durable=False)
        except OSError as error:
            raise os_failure(error, path, verb="write") from error
        self._store.close()  # drops cached facts about an earlier file of this name

    def _read(self, name: str) -> bytes | None:
        return self._read_path(self._path(name))

    def _read_path(self, path: str) -> bytes | None:
        info = self._store.find(path)
        return None if info is None else self._read_record(info)

    def _read_record(self, info: ObjectInfo) -> bytes | None:
        """Return the bytes of a record, which another machine may replace with the same record; None if it is gone."""
        for _ in range(_MOST_REPLACED):
            with suppress(StorageError):
                return bytes(self._store.read_range(info.path, 0, info.num_bytes))
            self._store.close()  # drops cached facts about the earlier object
            current = self._store.find(info.path)
            if current is None:
                return None
            info = current
        return bytes(self._store.read_range(info.path, 0, info.num_bytes))

    def _part_path(self, name: str, num_bytes: int) -> str:
        # With plan and size in the name, a listing tells which shards are finished.
        return self._path(f"{name}.{num_bytes}-{self._plan}{_PART}")

    def _path(self, name: str) -> str:
        return join(self._url, f"{PACKING}/{name}")


def _shard_of(part_path: str) -> str:
    """Return the name of a shard by the path of its record."""
    return part_path.rpartition("/")[2].rpartition("-")[0].rpartition(".")[0]

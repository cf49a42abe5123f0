"""Journal of an unfinished packing: records in a hidden directory ``.shoal-pack`` beside the shards.

They are the plan, which identifies the job; for each finished shard its part of the index, an ordinary index file; the
digests of all shards that were begun to be published, by which `clean` knows what the job made; and notes of what it
computed. The plan is the first record and the last one to go.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.errors import IndexFileError, StorageError
from shoal.index.index_file import decode, encode
from shoal.index.table import Index
from shoal.storage.atomic_writes import remove_abandoned
from shoal.storage.sources.shard_selection import PACKING, PACKING_PLAN
from shoal.storage.store_protocol import ObjectInfo, Store
from shoal.storage.urls import join, scheme_of

_PLAN, _LOCK, _PART, _NOTE, _MADE = PACKING_PLAN.rpartition("/")[2], "lock", ".part", ".note", ".made"
_OF_BEGINNING = (".tmp", _NOTE, _MADE)  # records that a packing leaves before its first shard is finished


class Journal:
    """The records of the packing with this ``plan`` into ``url``."""

    def __init__(self, url: str, *, plan: str, store: Store) -> None:
        self._url, self._plan, self._store = url, plan, store

    @property
    def directory(self) -> str:
        """Path of the directory, without a slash at its end."""
        return join(self._url, PACKING)

    @property
    def lock_path(self) -> str:
        """Path of the file that processes of one machine lock."""
        return self._path(_LOCK)

    def exists(self) -> bool:
        """Return True if a local directory has a journal."""
        return Path(self.directory).exists()

    def begin(self, asked: Mapping[str, Any]) -> None:
        """Record the plan, with the requested settings in readable form."""
        self._store.put(self._path(_PLAN), json.dumps({"plan": self._plan, "asked": dict(asked)}).encode())

    def planned(self) -> dict[str, Any] | None:
        """Return the record of the plan, of this packing or another one; None if nothing was begun."""
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
        """Return True if one of these paths is more than what merely beginning a packing leaves."""
        kept = (self._path(_PLAN), self._path(_LOCK))
        return any(path not in kept and not path.endswith(_OF_BEGINNING) for path in paths)

    def made(self, name: str, digest: str) -> None:
        """Record that a shard with this digest is about to be published, so that `clean` knows whose it is."""
        self._store.put(self._path(f"{name}.{digest}{_MADE}"), b"")

    def keep(self, part: Index) -> None:
        """Record that the one shard of this index is finished."""
        self._store.put(self._path(part.shard_names[0] + _PART), encode(part))

    def kept(self, name: str) -> Index | None:
        """Return the index of a finished shard; None if it is unfinished or has changed since."""
        data = self._read(name + _PART)
        if data is None:
            return None
        try:
            part = decode(data)
        except IndexFileError:
            return None
        info = self._store.find(join(self._url, name))
        is_same = info is not None and info.num_bytes == int(part.shard_bytes[0])
        return part if is_same and part.metadata.get("plan") == self._plan else None

    def withdraw(self, name: str) -> None:
        """Remove the record of a finished shard, which is to be made again."""
        self._store.delete(self._path(name + _PART))

    def forget(self, name: str) -> None:
        """Remove all records of a shard that was finished only after the index was written."""
        self.withdraw(name)
        for path in self._paths():
            if path.startswith(self._path(f"{name}.")) and path.endswith(_MADE):
                self._store.delete(path)
        self._remove_directory()

    def note(self, name: str, data: bytes) -> None:
        """Store data that this packing has computed, until it is finished."""
        self._store.put(self._path(f"{name}-{self._plan}{_NOTE}"), data)

    def noted(self, name: str) -> bytes | None:
        """Return the data that an earlier run of this packing stored under a name; None if there is none."""
        return self._read(f"{name}-{self._plan}{_NOTE}")

    def records(self) -> list[ObjectInfo]:
        """Return all records, of any plan; none if there is no journal."""
        if not scheme_of(self.directory) and not Path(self.directory).is_dir():
            return []
        own = (_PART, _NOTE, _MADE, ".tmp", f"/{_PLAN}", f"/{_LOCK}")
        return [info for info in self._store.list(self.directory) if info.path.endswith(own)]

    def made_by_name(self, records: Sequence[ObjectInfo]) -> dict[str, set[str]]:
        """Return the digests of all bytes that were made for each name, by the records of the job."""
        made: dict[str, set[str]] = {}
        for info in records:
            name = info.path.rpartition("/")[2]
            if name.endswith(_MADE):
                shard, _, digest = name.removesuffix(_MADE).rpartition(".")
                made.setdefault(shard, set()).add(digest)
            elif name.endswith(_PART):
                with suppress(IndexFileError):
                    part = decode(bytes(self._store.read_range(info.path, 0, info.num_bytes)))
                    made.setdefault(part.shard_names[0], set()).add(str(part.metadata["digest"]))
        return made

    def take_over(self) -> None:
        """Make this the packing that may write here, so that tasks of another one stop."""
        if self.planned() is not None:
            self.begin({})

    def remove_records(self) -> None:
        """Remove all records; that of the plan, for which readers look, goes last. Other files stay."""
        for info in self.records():
            if not info.path.endswith((f"/{_PLAN}", f"/{_LOCK}")):
                self._store.delete(info.path)
        self._remove_plan()

    def clear(self) -> None:
        """Remove the directory with all that is in it; the file that marks it as one goes last."""
        kept = (self._path(_PLAN), self._path(_LOCK))
        for path in self._paths():
            if path not in kept:
                self._store.delete(path)
        self._remove_plan()

    def remove_abandoned(self) -> None:
        """Remove what processes of this machine have left unfinished when they died."""
        if not scheme_of(self._url):
            for path in Path(self.directory).glob("*.tmp"):
                remove_abandoned(str(path))

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
            return [info.path for info in self._store.list(self.directory)]
        try:
            return [str(path) for path in Path(self.directory).iterdir()]
        except FileNotFoundError:
            return []

    def _read(self, name: str) -> bytes | None:
        path = self._path(name)
        try:
            info = self._store.find(path)
            return None if info is None else bytes(self._store.read_range(path, 0, info.num_bytes))
        except StorageError:
            self._store.close()  # drops what is known of a file that another machine may have removed meanwhile
            if self._store.find(path) is None:
                return None
            raise

    def _path(self, name: str) -> str:
        return join(self._url, f"{PACKING}/{name}")

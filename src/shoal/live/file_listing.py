"""The complete files of a source at a moment, in their order."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import SourceError
from shoal.formats.shard_format import Format
from shoal.indexing.open_source import known_suffixes
from shoal.storage.retry import with_retries
from shoal.storage.sources.source import SourceLike, expand, printed, schemes_of, texts_of
from shoal.storage.store_of_url import in_store, open_store
from shoal.storage.store_protocol import ObjectInfo, Store

ORDERS = ("name", "mtime")

_log = logging.getLogger("shoal")


class FileKey(NamedTuple):
    """The sort key of a file: its name; with order="mtime" its modification time, then its name."""

    modified_ns: int
    name: str


@dataclass(frozen=True, slots=True)
class FollowSpec:
    """The files to follow, their order, and the signs of a complete file."""

    source: SourceLike
    order: str
    settle_seconds: float
    marker: str | None
    format: str | Format | None
    storage_options: Mapping[str, Any] | None


class FileListing:
    """The complete files of a source at the moment of a call."""

    def __init__(self, spec: FollowSpec) -> None:
        self._spec = spec
        self._source = in_store(spec.source, spec.storage_options)
        once = open_store(self._source, spec.storage_options)
        self.store: Store = with_retries(once, spec.storage_options)
        self._suffixes = known_suffixes(spec.format)
        self._sizes: dict[str, int] = {}
        self._complete: dict[str, FileKey] = {}  # a file is looked at until it is complete
        self.paths: dict[str, str] = {}
        self._has_warned = False
        self._check_directory()

    def _check_directory(self) -> None:
        """Raise `SourceError` if the directory does not exist: a wait for a mistyped directory never ends."""
        texts, _ = texts_of(self._source)
        if schemes_of(texts) != {""}:
            return
        for text in texts:
            fixed, *magic = re.split(r"[*?\[{]", text, maxsplit=1)
            directory = Path(f"{fixed}_" if magic else fixed).expanduser()
            directory = directory.parent if magic else directory
            if not directory.exists():
                msg = f"{printed(self._source)}: there is no directory {directory} to follow"
                raise SourceError(msg, hint="make it first; it may be empty")

    def files(self) -> list[FileKey]:
        """Return the complete files, sorted."""
        spec = self._spec
        try:
            listed = expand(self._source, suffixes=self._suffixes, store=self.store)
        except SourceError as error:  # usually no file yet; the warning reveals a mistake
            if not self._has_warned:
                _log.warning("nothing to read yet: %s", error.message)
                self._has_warned = True
            return []
        self.paths = dict(zip(listed.names, listed.paths, strict=True))
        if spec.marker is not None:
            self.paths = {name: path for name, path in self.paths.items() if not name.endswith(spec.marker)}
        for name, path in self.paths.items():
            if name not in self._complete and (info := self._complete_info(path)) is not None:
                self._complete[name] = FileKey((info.modified_ns or 0) if spec.order == "mtime" else 0, name)
        return sorted(self._complete[name] for name in self.paths if name in self._complete)

    def written_ns(self, name: str) -> int:
        """Return the time when a file became complete, by the modification time of the file or its marker."""
        info = self.store.find(self.paths[name] + (self._spec.marker or ""))
        return 0 if info is None else (info.modified_ns or 0) + round(self._spec.settle_seconds * 1e9)

    def _complete_info(self, path: str) -> ObjectInfo | None:
        """Return the description of a file if it is complete; O(1) requests."""
        spec, info = self._spec, self.store.find(path)
        if info is None or (spec.marker is not None and self.store.find(path + spec.marker) is None):
            return None
        if spec.settle_seconds:
            before, self._sizes[path] = self._sizes.get(path), info.num_bytes
            age_seconds = time.time() - (info.modified_ns or 0) / 1e9
            if age_seconds < spec.settle_seconds or before not in (None, info.num_bytes):
                return None
        return info

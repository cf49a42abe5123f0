"""The file or URL that an index is written to, refused before the work if not writable, or if it would hide shards."""

from __future__ import annotations

import argparse
import os
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.cli.display.preview import printable
from shoal.cli.options.source_options import storage_options_of
from shoal.errors import ShoalError, StorageError, UsageError
from shoal.formats.shard_format import Format
from shoal.index.table import Index
from shoal.indexing.index_files import load_index, save_index
from shoal.storage.cache_directory import cache_directory, expand_home
from shoal.storage.files.local_store import LocalStore
from shoal.storage.retry import with_retries
from shoal.storage.sources.shard_selection import INDEX_NAME
from shoal.storage.sources.source import Source, schemes_of
from shoal.storage.store_of_url import open_store
from shoal.storage.store_protocol import Store
from shoal.storage.urls import join, object_path, parent, scheme_of

_NOT_WRITEABLE = ("http", "https")
_HINT = "--output FILE writes it elsewhere; shoal.open(..., index=FILE) reads it there"


@dataclass(frozen=True, slots=True)
class IndexOutput:
    """The path or URL of an index, and the store that writes it."""

    path: str
    store: Store

    def existing(self) -> Index | None:
        """Return the index that exists already; None if there is none that can be read."""
        try:
            return load_index(self.path, store=self.store) if self.store.find(self.path) is not None else None
        except ShoalError:
            return None

    def write(self, index: Index) -> int:
        """Write the index and return its size in bytes; if a remote store refuses it, keep it on this machine."""
        try:
            save_index(index, self.path, store=self.store)
        except StorageError as error:
            if not scheme_of(self.path):
                raise
            kept = str(Path(cache_directory(), "unwritten", f"{index.fingerprint}.index"))
            save_index(index, kept, store=LocalStore())
            msg = f"{printable(self.path)}: the index could not be written: {error.message}"
            hint = f"it is kept in {kept}, which shoal.open(..., index=FILE) takes; copy it to its destination"
            raise StorageError(msg, hint=hint) from error
        return self.store.stat(self.path).num_bytes


def index_output(arguments: argparse.Namespace, found: Source, shard_format: Format, store: Store) -> IndexOutput:
    """Return where the index goes: to ``--output``, a file or URL, or beside the shards.

    Refuses what is not writable, and an index that would hide other shards in its directory.
    """
    asked: str | None = arguments.output
    if asked is None:
        target = _beside(found, store)
        _refuse_partial(found, shard_format, target)
        return target
    return _named(arguments, asked, found.paths)


def index_file(arguments: argparse.Namespace, path: str, store: Store) -> IndexOutput:
    """Return where the index goes that is at ``path`` in ``store``: to ``--output``, or over itself."""
    asked: str | None = arguments.output
    if asked is not None:
        return _named(arguments, asked, [path])
    if not scheme_of(path):
        return _local_file(Path(path))
    _refuse_read_only(path)
    return IndexOutput(path, store)


def _named(arguments: argparse.Namespace, asked: str, sources: Sequence[str]) -> IndexOutput:
    if not scheme_of(asked):
        return _local_file(Path(expand_home(asked)).absolute())
    same = schemes_of([asked]) == schemes_of(sources)
    options = storage_options_of(arguments)
    other = with_retries(open_store(asked, options if same else None), options)
    path = join(object_path(asked).rstrip("/"), INDEX_NAME) if asked.endswith("/") else object_path(asked)
    _refuse_read_only(path)
    return IndexOutput(path, other)


def _beside(found: Source, store: Store) -> IndexOutput:
    if not scheme_of(found.root):
        return _local_file(Path(found.root, INDEX_NAME))
    if found.root.endswith("://"):
        msg = f"{found.typed}: these shards have no directory in common that could hold an index"
        raise UsageError(msg, hint=_HINT)
    path = join(found.root, INDEX_NAME)
    _refuse_read_only(path)
    return IndexOutput(path, store)


def _refuse_read_only(path: str) -> None:
    if scheme_of(path) in _NOT_WRITEABLE:
        msg = f"{printable(path)}: the index cannot be written here: nothing is written over http"
        raise StorageError(msg, hint=f"{_HINT}; put it beside the shards, and it is found there")


def _local_file(path: Path) -> IndexOutput:
    if path.is_dir():
        path /= INDEX_NAME
    directory = next(above for above in path.parents if above.exists())
    if not directory.is_dir() or not os.access(directory, os.W_OK):
        raise StorageError(f"{path}: the index cannot be written here", hint=_HINT)
    return IndexOutput(str(path), LocalStore())


def _refuse_partial(found: Source, shard_format: Format, target: IndexOutput) -> None:
    """Raise an error if the directory holds more shards: an index of some would hide them when all are opened."""
    named = set(found.paths)
    beside = next(_others(found, named, shard_format, target), None)
    if beside is None:
        return
    msg = f"{target.path} would know only {len(named)} of the shards in its directory; it would lack {beside}"
    stem = posixpath.basename(found.paths[0]).partition(".")[0]
    path, root = join(found.root, f"{stem}.index"), found.root
    hint = f"--output {path} writes it separately (as a source of its own), or index all with `shoal index {root}`"
    raise UsageError(msg, hint=hint)


def _others(found: Source, named: set[str], shard_format: Format, target: IndexOutput) -> Iterator[str]:
    """Yield the shards beside the index that are not among those named."""
    existing = target.existing()
    for name in existing.shard_names if existing is not None else ():
        path = join(found.root, name)
        if path not in named and target.store.find(path) is not None:
            yield path
    if found.complete:
        return
    if not scheme_of(found.root):
        for directory in sorted({Path(shard).parent for shard in found.paths}):
            files = (str(file) for file in sorted(directory.iterdir()))
            yield from (file for file in files if file not in named and _is_shard(file, shard_format))
        return
    directories = {parent(path) for path in found.paths}
    for info in target.store.list(found.root):
        if info.path not in named and parent(info.path) in directories and _is_shard(info.path, shard_format):
            yield info.path


def _is_shard(path: str, shard_format: Format) -> bool:
    name = posixpath.basename(path)
    return name.lower().endswith(shard_format.suffixes) and not name.startswith(".")

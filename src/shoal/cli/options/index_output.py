"""Choose the file or URL of a new index; refuse a target that is read-only or would hide shards."""

from __future__ import annotations

import argparse
import os
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
from shoal.tools.samples.preview import printable

_READ_ONLY = ("http", "https")
_HINT = "--output FILE writes the index elsewhere; shoal.open(..., index=FILE) reads the file"


@dataclass(frozen=True, slots=True)
class IndexOutput:
    """The path or URL of a new index, and its store."""

    path: str
    store: Store

    def existing(self) -> Index | None:
        """Return the existing index; None for a missing or unreadable index."""
        try:
            return load_index(self.path, store=self.store) if self.store.find(self.path) is not None else None
        except ShoalError:
            return None

    def write(self, index: Index) -> int:
        """Write the index and return its size in bytes; if a remote store refuses, keep the index here."""
        try:
            save_index(index, self.path, store=self.store)
        except StorageError as error:
            if not scheme_of(self.path):
                raise
            kept = str(Path(cache_directory(), "unwritten", f"{index.fingerprint}.index"))
            save_index(index, kept, store=LocalStore())
            msg = f"{printable(self.path)}: the index could not be written: {error.message}"
            hint = f"the index is kept in {kept}; copy the file to its destination, or use shoal.open(..., index=FILE)"
            raise StorageError(msg, hint=hint) from error
        return self.store.stat(self.path).num_bytes


def index_output(arguments: argparse.Namespace, shards: Source, shard_format: Format, store: Store) -> IndexOutput:
    """Return the target ``--output``, or the file beside the shards.

    Raises an error if the target is read-only, or if the index would hide other shards in its directory.
    """
    if arguments.output is not None:
        return _named(arguments, shards.paths)
    target = _beside(shards, store)
    _refuse_partial(shards, shard_format, target)
    return target


def index_file(arguments: argparse.Namespace, path: str, store: Store) -> IndexOutput:
    """Return the target ``--output``, or the index file at ``path`` itself."""
    if arguments.output is not None:
        return _named(arguments, [path])
    if not scheme_of(path):
        return _local_file(Path(path))
    _refuse_read_only(path)
    return IndexOutput(path, store)


def _named(arguments: argparse.Namespace, sources: Sequence[str]) -> IndexOutput:
    output: str = arguments.output
    if not scheme_of(output):
        return _local_file(Path(expand_home(output)).absolute())
    same = schemes_of([output]) == schemes_of(sources)
    options = storage_options_of(arguments)
    store = with_retries(open_store(output, options if same else None), options)
    path = join(object_path(output).rstrip("/"), INDEX_NAME) if output.endswith("/") else object_path(output)
    _refuse_read_only(path)
    return IndexOutput(path, store)


def _beside(shards: Source, store: Store) -> IndexOutput:
    if not scheme_of(shards.root):
        return _local_file(Path(shards.root, INDEX_NAME))
    if shards.root.endswith("://"):
        msg = f"{shards.typed}: these shards have no common directory for an index"
        raise UsageError(msg, hint=_HINT)
    path = join(shards.root, INDEX_NAME)
    _refuse_read_only(path)
    return IndexOutput(path, store)


def _refuse_read_only(path: str) -> None:
    if scheme_of(path) in _READ_ONLY:
        msg = f"{printable(path)}: the index cannot be written here: http is read-only"
        raise StorageError(msg, hint=f"{_HINT}; shoal.open() also finds an index beside its shards")


def _local_file(path: Path) -> IndexOutput:
    if path.is_dir():
        path /= INDEX_NAME
    directory = next(above for above in path.parents if above.exists())
    if not directory.is_dir() or not os.access(directory, os.W_OK):
        raise StorageError(f"{path}: the index cannot be written here", hint=_HINT)
    return IndexOutput(str(path), LocalStore())


def _refuse_partial(shards: Source, shard_format: Format, target: IndexOutput) -> None:
    """Raise an error if the directory holds other shards: a partial index would hide these shards from shoal.open()."""
    named = set(shards.paths)
    other = next(_others(shards, named, shard_format, target), None)
    if other is None:
        return
    msg = f"{target.path} would have only {len(named)} of the shards in its directory, and not {other}"
    stem = posixpath.basename(shards.paths[0]).partition(".")[0]
    path, root = join(shards.root, f"{stem}.index"), shards.root
    hint = f"--output {path} writes the index as a separate source; or index all shards with `shoal index {root}`"
    raise UsageError(msg, hint=hint)


def _others(shards: Source, named: set[str], shard_format: Format, target: IndexOutput) -> Iterator[str]:
    """Yield the unnamed shards beside the index."""
    existing = target.existing()
    for name in existing.shard_names if existing is not None else ():
        path = join(shards.root, name)
        if path not in named and target.store.find(path) is not None:
            yield path
    if shards.complete:
        return
    if not scheme_of(shards.root):
        for directory in sorted({Path(shard).parent for shard in shards.paths}):
            files = (str(file) for file in sorted(directory.iterdir()))
            yield from (file for file in files if file not in named and _is_shard(file, shard_format))
        return
    directories = {parent(path) for path in shards.paths}
    for info in target.store.list(shards.root):
        if info.path not in named and parent(info.path) in directories and _is_shard(info.path, shard_format):
            yield info.path


def _is_shard(path: str, shard_format: Format) -> bool:
    name = posixpath.basename(path)
    return name.lower().endswith(shard_format.suffixes) and not name.startswith(".")

"""Manifests beside the shards of a directory (``index.json``), which describe them better than their suffixes.

A manifest names the shards of its directory, in order, and they must match its description. A directory tree may have
several manifests, one for each stream.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from posixpath import basename, dirname, splitext
from typing import Any

from shoal.errors import SourceError, StorageError
from shoal.figures import counted
from shoal.formats.format_registry import options_of
from shoal.formats.metadata.manifests import (
    MANIFEST_NAME,
    Expected,
    Manifest,
    check_hashes,
    named_shards,
    read_manifest,
)
from shoal.formats.metadata.third_party_index import FORMATS_WITH_INDEXES, foreign_names
from shoal.formats.shard_format import Format
from shoal.hints import pointer_in
from shoal.storage.sources.source import Source
from shoal.storage.stat_many import find_all
from shoal.storage.storage_errors import is_forbidden
from shoal.storage.store_protocol import ObjectInfo, Store
from shoal.storage.urls import join, relative

_log = logging.getLogger("shoal")

MANIFEST_SUFFIXES = (MANIFEST_NAME,)  # so that a listing of a directory includes its manifests
_COPY_HINT = "copy the missing shards too; or name the existing shards by a glob"
_LIMIT_BYTES = 256 << 20
_AT_ONCE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Described:
    """The shards of a source and their description: the format (None: by suffix), and the expected contents by path.

    ``rows`` are rows of the tables that list the shards, by name. ``version`` is the version of a table; empty for
    plain shards.
    """

    source: Source
    format: Format | None = None
    expected: Mapping[str, Expected] = field(default_factory=dict)
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    version: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _NamedShards:
    """The shards that manifests have named so far, in order."""

    formats: list[Format] = field(default_factory=list)
    expected: dict[str, Expected] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)  # paths of each shard, plain and packed


def described(source: Source, store: Store) -> Described:
    """Return the shards that the manifests of a source name; all its shards if no manifest can be used.

    Raises `SourceError`: a manifest is unusable or does not name all shards beside it, manifests declare different
    formats, or no manifest covers some shards; `StorageError`: a named shard does not exist.
    """
    paths, others = _manifests_and_others(source)
    others = [path for path in others if not path.endswith(MANIFEST_NAME)]
    if not paths or source.kind == "glob":
        return Described(with_paths(source, others) if 0 < len(others) < len(source.paths) else source)
    shards = _NamedShards()
    used = []
    for path in paths:
        manifest = read_manifest(read_whole(store.stat(path), store), path=path)
        if manifest is not None and _add(shards, manifest, path, store):
            used.append(path)
    if not used:
        if not others:
            msg = f"{source.typed}: there are no shards, and {paths[0]} is not the index.json of a dataset"
            raise SourceError(msg, hint="name the directory that holds the shards, or the files by a glob")
        return Described(with_paths(source, others))
    unnamed = [path for path in others if path not in shards.known]
    _refuse_unnamed(unnamed, used)
    _refuse_mixture(source, shards.formats, used, unnamed)
    return Described(with_paths(source, shards.expected), shards.formats[0], shards.expected)


def in_named_order(source: Source, store: Store) -> Described:
    """Return the shards of a source in the order of its manifests, but without their descriptions.

    This applies if the user gives a format, as pickles and blocks of tokens require. Names alone do not give the order:
    ``chunk-0-10`` sorts before ``chunk-0-2``. Raises `SourceError`: a manifest cannot be read, or does not name a shard
    beside it; `StorageError`: a named shard does not exist.
    """
    manifests, others = _manifests_and_others(source)
    if not manifests or not others:
        return Described(source)
    ranks: dict[str, int] = {}
    used = []
    existing = set(others)
    for path in manifests:
        shards = named_shards(read_whole(store.stat(path), store), path=path)
        used += [path] * bool(shards)
        for shard in shards:
            names = [join(dirname(path), name) for name in (shard.name, shard.packed_name) if name is not None]
            if ranks.keys().isdisjoint(names):
                ranks.update(dict.fromkeys(names, len(ranks)))
                if existing.isdisjoint(names):
                    msg = f"{path} names {names[-1]}, which does not exist"
                    raise StorageError(msg, hint=_COPY_HINT)
    _refuse_unnamed([path for path in others if path not in ranks], used)
    last = len(ranks)
    return Described(with_paths(source, sorted(others, key=lambda path: ranks.get(path, last))))


def third_party_indexes(paths: Sequence[str], format: Format, store: Store) -> dict[str, tuple[str, int]]:  # noqa: A002
    """Return the indexes of other tools beside shards, as path and size, by shard path.

    Search beside the first shard; if an index is there, search beside all others: 2 or 3 requests without indexes.
    Search beside all shards if the format has sidecars, since a sidecar changes the samples; only then a failure
    raises `StorageError`.
    """
    if format.name not in FORMATS_WITH_INDEXES or not paths:
        return {}
    if format.has_sidecar:
        return _indexes_beside(paths, store)
    try:
        names = foreign_names(paths[0])
        kind = next((names.index(name) for name in dict.fromkeys(names) if store.find(name) is not None), None)
        if kind is None:
            return {}
        infos = find_all([foreign_names(path)[kind] for path in paths], store)
    except StorageError as error:
        _log.info("shoal does not look for indexes of other tools: %s", error.message)
        return {}
    pairs = ((path, info) for path, info in zip(paths, infos, strict=True) if info is not None)
    indexes = {path: (info.path, info.num_bytes) for path, info in pairs if 0 < info.num_bytes <= _LIMIT_BYTES}
    _log.info("%d of %d shards have an index of other tools beside them", len(indexes), len(paths))
    return indexes


def _indexes_beside(paths: Sequence[str], store: Store) -> dict[str, tuple[str, int]]:
    pairs = zip(paths, _infos_beside(paths, store), strict=True)
    return {path: (info.path, info.num_bytes) for path, info in pairs if info is not None}


def versions_beside(paths: Sequence[str], format: Format, store: Store) -> list[tuple[str, int, str]]:  # noqa: A002
    """Return path, size and version of the indexes that a format needs beside its shards; empty for most formats."""
    infos = _infos_beside(paths, store) if format.has_sidecar else []
    return [(info.path, info.num_bytes, info.version) for info in infos if info is not None]


def _infos_beside(paths: Sequence[str], store: Store) -> Sequence[ObjectInfo | None]:
    """Find the indexes with the names of these shards and another suffix."""
    try:
        return find_all([f"{splitext(path)[0]}.idx" for path in paths], store)
    except StorageError as error:
        if not is_forbidden(error):  # some stores answer "forbidden" for missing objects
            raise
        return [None] * len(paths)


def needed_beside(path: str, format: Format, store: Store) -> dict[str, Any]:  # noqa: A002
    """Return the index that a format needs beside a shard, as arguments for `scan_again`; none for most formats."""
    index = _indexes_beside([path], store).get(path) if format.has_sidecar else None
    return {} if index is None else {"index": partial(store.read_range, index[0]), "index_bytes": index[1]}


def compare_hashes(what: Described, store: Store) -> int:
    """Compare shards with their hashes in manifests, and return the number compared; `ShardError` if a hash differs."""
    num_compared = 0
    for path, name in zip(what.source.paths, what.source.names, strict=True):
        expected = what.expected.get(path)
        if expected is not None and expected.hashes:
            num_bytes = store.stat(path).num_bytes
            starts = range(0, num_bytes, _AT_ONCE_BYTES)
            parts = (store.read_range(path, first, min(num_bytes, first + _AT_ONCE_BYTES)) for first in starts)
            num_compared += check_hashes(parts, expected, shard=name) > 0
    return num_compared


def _manifests_and_others(source: Source) -> tuple[list[str], list[str]]:
    """Return the manifests, top directory first because its manifest may name all shards, and the other paths."""
    manifests = [path for path in source.paths if basename(path) == MANIFEST_NAME]
    others = [path for path in source.paths if basename(path) != MANIFEST_NAME]
    return sorted(manifests, key=lambda path: (path.count("/"), path)), others


def read_whole(info: ObjectInfo, store: Store, *, limit_bytes: int = _LIMIT_BYTES) -> bytes:
    """Read a whole object; raises `SourceError` if it exceeds ``limit_bytes``, or is only a pointer to the content."""
    if info.num_bytes > limit_bytes:
        msg = f"{info.path}: this file has {info.num_bytes} bytes, and shoal reads at most {limit_bytes}"
        raise SourceError(msg, hint="name the shards by a glob")
    data = store.read_range(info.path, 0, info.num_bytes)
    if pointer := pointer_in(data):
        raise SourceError(f"{info.path}: {pointer[0]}", hint=pointer[1])
    return data


def _add(shards: _NamedShards, manifest: Manifest, path: str, store: Store) -> bool:
    """Add the shards of a manifest, unless all are known; return True if they were added."""
    directory = dirname(path)
    paths = [join(directory, shard.name) for shard in manifest.shards]
    if shards.known.issuperset(paths):
        return False
    if twice := [name for name, count in Counter(paths).items() if count > 1]:
        msg = f"{path} names {counted(len(twice), 'shard')} more than once; the first is {twice[0]}"
        raise SourceError(msg, hint="write the index.json again, or name the shards by a glob or a list")
    packed = [join(directory, shard.packed_name or shard.name) for shard in manifest.shards]
    shards.known.update(paths, packed)
    infos = find_all(paths, store)
    if None not in infos:
        shards.formats.append(manifest.format)
        shards.expected.update(zip(paths, (shard.expected for shard in manifest.shards), strict=True))
        return True
    if manifest.packed_format is not None and None not in find_all(packed, store):
        shards.formats.append(manifest.packed_format)
        expected = (shard.expected if shard.packed is None else shard.packed for shard in manifest.shards)
        shards.expected.update(zip(packed, expected, strict=True))
        return True
    missing = [name for name, info in zip(paths, infos, strict=True) if info is None]
    msg = f"{path} names {len(paths)} shards, but {len(missing)} do not exist; the first is {missing[0]}"
    raise StorageError(msg, hint=_COPY_HINT)


def _refuse_unnamed(unnamed: Iterable[str], used: Sequence[str]) -> None:
    """Raise if a manifest does not name a shard beside it: the shard would be left out silently."""
    directories = {dirname(path): path for path in used}
    if left := [path for path in unnamed if dirname(path) in directories]:
        manifest = directories[dirname(left[0])]
        msg = f"{manifest} does not name {len(left)} of the shards beside it; the first is {left[0]}"
        hint = "write the index.json again (Streaming: merge_index), move these shards, or name shards by a glob"
        raise SourceError(msg, hint=hint)


def _refuse_mixture(source: Source, formats: Sequence[Format], used: Sequence[str], unnamed: Sequence[str]) -> None:
    kinds = [(each.name, options_of(each)) for each in formats]
    different = [number for number, kind in enumerate(kinds) if kind != kinds[0]]
    if unnamed:
        what = f"shards that {used[0]} names ({formats[0].name}), and others: {unnamed[0]}"
    elif different:
        other = different[0]
        what = f"{used[0]} ({kinds[0][0]}) and {used[other]} ({kinds[other][0]}) describe different formats"
    else:
        return
    msg = f"{source.typed}: {what}"
    raise SourceError(msg, hint="open one format at a time: name its directory, or its shards by a glob")


def with_paths(source: Source, paths: Iterable[str]) -> Source:
    """Return a copy of the source with these shards; a manifest as the source stands for its directory."""
    chosen = tuple(paths)
    kind = "directory" if source.kind == "file" else source.kind
    return replace(source, kind=kind, paths=chosen, names=tuple(relative(path, source.root) for path in chosen))

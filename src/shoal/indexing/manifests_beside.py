"""Manifests beside the shards of a directory, which say more about them than their suffixes do: ``index.json``.

Where there is one, the shards are those it names, in its order, and must match its description. A directory tree may
have several, one for each stream.
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
from shoal.formats.folder.class_directories import ClassDirectories, refuse_strays
from shoal.formats.folder.reader import METADATA_NAMES, Folder, metadata_rows
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
from shoal.indexing.folder_classes import classes_of_folder, given_classes
from shoal.storage.sources.source import Source
from shoal.storage.stat_many import find_all
from shoal.storage.storage_errors import is_forbidden
from shoal.storage.store_protocol import ObjectInfo, Store
from shoal.storage.urls import join, relative

_log = logging.getLogger("shoal")

MANIFEST_SUFFIXES = (MANIFEST_NAME,)  # with which a listing of a directory includes its manifests
_LIMIT_BYTES = 256 << 20
_AT_ONCE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Described:
    """The shards of a source and their description: the format, and by path what to expect.

    If ``format`` is None, the suffixes of the shards decide. ``rows`` are rows of tables, by the names of single files.
    """

    source: Source
    format: Format | None = None
    expected: Mapping[str, Expected] = field(default_factory=dict)
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(slots=True)
class _Found:
    """The shards named so far, in order."""

    formats: list[Format] = field(default_factory=list)
    expected: dict[str, Expected] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)  # paths of each shard, as it is and packed


def described(found: Source, store: Store) -> Described:
    """Return the shards that the manifests of a source name; all its shards if no manifest can be used.

    Raises `SourceError`: a manifest is unusable or does not name shards beside it, manifests declare different formats,
    or there are shards that no manifest covers; `StorageError`: a shard that a manifest names does not exist.
    """
    paths, others = _manifests_and_others(found)
    others = [path for path in others if not path.endswith(MANIFEST_NAME)]
    if not paths or found.kind == "glob":
        return Described(_with_paths(found, others) if 0 < len(others) < len(found.paths) else found)
    shards = _Found()
    used = []
    for path in paths:
        manifest = read_manifest(read_whole(store.stat(path), store), path=path)
        if manifest is not None and _add(shards, manifest, path, store):
            used.append(path)
    if not used:
        if not others:
            msg = f"{found.asked}: no shards are there, and {paths[0]} is not the index.json of a dataset"
            raise SourceError(msg, hint="name the directory that holds the shards, or the files by a glob")
        return Described(_with_paths(found, others))
    unnamed = [path for path in others if path not in shards.known]
    _refuse_unnamed(unnamed, used)
    _refuse_mixture(found, shards.formats, used, unnamed)
    return Described(_with_paths(found, shards.expected), shards.formats[0], shards.expected)


def in_named_order(found: Source, store: Store) -> Described:
    """Return the shards of a source in the order of its manifests, which are used for nothing else.

    Used if a format is given, as pickles and blocks of tokens require. Names alone do not give the order:
    ``chunk-0-10`` sorts before ``chunk-0-2``.

    Raises `SourceError`: a manifest cannot be read, or does not name a shard beside it; `StorageError`: a shard that a
    manifest names does not exist.
    """
    manifests, others = _manifests_and_others(found)
    if not manifests or not others:
        return Described(found)
    ranks: dict[str, int] = {}
    used = []
    there = set(others)
    for path in manifests:
        shards = named_shards(read_whole(store.stat(path), store), path=path)
        used += [path] * bool(shards)
        for shard in shards:
            names = [join(dirname(path), name) for name in (shard.name, shard.packed_name) if name is not None]
            if ranks.keys().isdisjoint(names):
                ranks.update(dict.fromkeys(names, len(ranks)))
                if there.isdisjoint(names):
                    msg = f"{path} names {names[-1]}, which is not there"
                    raise StorageError(msg, hint="copy it too; or name by a glob those that are there")
    _refuse_unnamed([path for path in others if path not in ranks], used)
    last = len(ranks)
    return Described(_with_paths(found, sorted(others, key=lambda path: ranks.get(path, last))))


def described_files(found: Source, format: Folder, store: Store) -> Described:  # noqa: A002
    """Return the single files of a folder, with their classes, and the rows of the tables among them.

    Raises `SourceError`: a table is unusable, lists files that do not exist, or does not list all that do.
    """
    tables = [path for path in found.paths if basename(path) in METADATA_NAMES]
    source = _with_paths(found, [path for path in found.paths if basename(path) not in METADATA_NAMES])
    rows: dict[str, Mapping[str, Any]] = {}
    for path in tables:
        data = read_whole(store.stat(path), store)
        found_rows = metadata_rows(data, name=relative(path, found.root), path=path)
        format.check_rows(found_rows, path=path)
        rows |= found_rows
    names = set(source.names)
    if tables and (absent := rows.keys() - names):
        msg = f"{tables[0]} lists {len(absent)} files that are not there; the first is {min(absent)}"
        raise SourceError(msg, hint="copy them too, or take their rows out; file_name is relative to the table")
    if tables and (silent := names - rows.keys()):
        msg = f"{tables[0]} has no rows for {len(silent)} of {len(names)} files; the first is {min(silent)}"
        raise SourceError(msg, hint="add them, or take the table away")
    classes = _classes_asked(source, format, has_rows=bool(tables))
    kept = source if classes is None else _inside_classes(source, classes)
    return Described(kept, format.with_classes(classes), rows=rows)


def _classes_asked(source: Source, format: Folder, *, has_rows: bool) -> ClassDirectories | None:  # noqa: A002
    """Return the classes of a folder; None if there are to be no labels, or no file lies in a directory."""
    if format.labels is False or (format.labels is None and has_rows):
        return None
    if format.classes is not None:
        return given_classes(source.root, source.names, format.classes)
    is_whole = source.complete or bool(source.split_names)
    classes = classes_of_folder(source.root, source.names, is_whole=is_whole, split_names=source.split_names)
    if classes is None and format.labels:
        msg = f"{source.root}: no file lies in a directory that could be its class, {source.names[0]} for one"
        raise SourceError(msg, hint="open the directory that holds those of the classes, or leave out labels=True")
    return classes


def _inside_classes(source: Source, classes: ClassDirectories) -> Source:
    """Return the source without the files outside of the classes, which are logged; raises as `refuse_strays`."""
    numbers = classes.numbers_of(source.names)
    if -1 not in numbers:
        return source
    kinds = [splitext(name)[1].lower() for name in source.names]
    outside = [pair for pair, number in zip(zip(source.names, kinds, strict=True), numbers, strict=True) if number < 0]
    hint = "move them, or give Folder(labels=False) as format= for samples without classes"
    inside = {kind for kind, number in zip(kinds, numbers, strict=True) if number >= 0}
    refuse_strays(outside, inside, root=source.root, hint=hint)
    counts = ", ".join(f"{count:,} x {kind or 'no suffix'}" for kind, count in Counter(k for _, k in outside).items())
    _log.warning("%s: files outside of the classes are left out: %s", source.root, counts)
    pairs = zip(source.paths, numbers, strict=True)
    return _with_paths(source, [path for path, number in pairs if number >= 0])


def third_party_indexes(paths: Sequence[str], format: Format, store: Store) -> dict[str, tuple[str, int]]:  # noqa: A002
    """Return the indexes that other tools left beside shards, as path and size, by shard path.

    Checks beside the first shard and, only if there is one, beside all others: 2 or 3 requests if there are none. If
    the format has sidecars, checks beside all, since samples depend on them. Raises `StorageError` if that cannot be
    done.
    """
    if format.name not in FORMATS_WITH_INDEXES or not paths:
        return {}
    if format.has_sidecar:
        return _indexes_of_all(paths, store)
    try:
        names = foreign_names(paths[0])
        kind = next((names.index(name) for name in dict.fromkeys(names) if store.find(name) is not None), None)
        if kind is None:
            return {}
        infos = find_all([foreign_names(path)[kind] for path in paths], store)
    except StorageError as error:
        _log.info("no index of other tools is looked for: %s", error.message)
        return {}
    pairs = ((path, info) for path, info in zip(paths, infos, strict=True) if info is not None)
    found = {path: (info.path, info.num_bytes) for path, info in pairs if 0 < info.num_bytes <= _LIMIT_BYTES}
    _log.info("%d of %d shards have an index of other tools beside them", len(found), len(paths))
    return found


def _indexes_of_all(paths: Sequence[str], store: Store) -> dict[str, tuple[str, int]]:
    pairs = zip(paths, _infos_beside(paths, store), strict=True)
    return {path: (info.path, info.num_bytes) for path, info in pairs if info is not None}


def versions_beside(paths: Sequence[str], format: Format, store: Store) -> list[tuple[str, int, str]]:  # noqa: A002
    """Return name, size and version of the indexes beside shards that their format needs; empty for most formats."""
    infos = _infos_beside(paths, store) if format.has_sidecar else []
    return [(info.path, info.num_bytes, info.version) for info in infos if info is not None]


def _infos_beside(paths: Sequence[str], store: Store) -> Sequence[ObjectInfo | None]:
    """Find the indexes that are named as these shards, with another suffix."""
    try:
        return find_all([f"{splitext(path)[0]}.idx" for path in paths], store)
    except StorageError as error:
        if not is_forbidden(error):  # some stores forbid to ask for what is not there
            raise
        return [None] * len(paths)


def needed_beside(path: str, format: Format, store: Store) -> dict[str, Any]:  # noqa: A002
    """Return the index beside a shard that its format needs, as arguments for `scan_again`; none for most formats."""
    found = _indexes_of_all([path], store).get(path) if format.has_sidecar else None
    return {} if found is None else {"index": partial(store.read_range, found[0]), "index_bytes": found[1]}


def compare_hashes(what: Described, store: Store) -> int:
    """Compare all shards that have hashes in their manifest with these, and return the number compared.

    Raises `ShardError`: a hash differs.
    """
    num_compared = 0
    for path, name in zip(what.source.paths, what.source.names, strict=True):
        expected = what.expected.get(path)
        if expected is not None and expected.hashes:
            num_bytes = store.stat(path).num_bytes
            starts = range(0, num_bytes, _AT_ONCE_BYTES)
            parts = (store.read_range(path, first, min(num_bytes, first + _AT_ONCE_BYTES)) for first in starts)
            num_compared += check_hashes(parts, expected, shard=name) > 0
    return num_compared


def _manifests_and_others(found: Source) -> tuple[list[str], list[str]]:
    """Return the manifests, and the rest; those of a directory before those below it, as they may name all shards."""
    manifests = [path for path in found.paths if basename(path) == MANIFEST_NAME]
    others = [path for path in found.paths if basename(path) != MANIFEST_NAME]
    return sorted(manifests, key=lambda path: (path.count("/"), path)), others


def read_whole(info: ObjectInfo, store: Store, *, limit_bytes: int = _LIMIT_BYTES) -> bytes:
    """Read a whole object of at most so many bytes; raises `SourceError` if it has more, or is a pointer to them."""
    if info.num_bytes > limit_bytes:
        msg = f"{info.path}: it has {info.num_bytes} bytes, and is read whole"
        raise SourceError(msg, hint=f"at most {limit_bytes} are; name the shards by a glob")
    data = store.read_range(info.path, 0, info.num_bytes)
    if pointer := pointer_in(data):
        raise SourceError(f"{info.path}: {pointer[0]}", hint=pointer[1])
    return data


def _add(shards: _Found, manifest: Manifest, path: str, store: Store) -> bool:
    """Add the shards of a manifest, unless all are known already; return True if they were added."""
    directory = dirname(path)
    paths = [join(directory, shard.name) for shard in manifest.shards]
    if shards.known.issuperset(paths):
        return False
    if twice := [name for name, count in Counter(paths).items() if count > 1]:
        msg = f"{path} names {counted(len(twice), 'shard')} more than once; the first is {twice[0]}"
        raise SourceError(msg, hint="write the index.json again, or name the shards by a glob or a list")
    packed = [join(directory, shard.packed_name or shard.name) for shard in manifest.shards]
    shards.known.update(paths, packed)
    there = find_all(paths, store)
    if None not in there:
        shards.formats.append(manifest.format)
        shards.expected.update(zip(paths, (shard.expected for shard in manifest.shards), strict=True))
        return True
    if manifest.packed_format is not None and None not in find_all(packed, store):
        shards.formats.append(manifest.packed_format)
        expected = (shard.expected if shard.packed is None else shard.packed for shard in manifest.shards)
        shards.expected.update(zip(packed, expected, strict=True))
        return True
    missing = [name for name, info in zip(paths, there, strict=True) if info is None]
    msg = f"{path} names {len(paths)} shards, and {len(missing)} are not there; the first is {missing[0]}"
    raise StorageError(msg, hint="copy them too; or name by a glob those that are there")


def _refuse_unnamed(unnamed: Iterable[str], used: Sequence[str]) -> None:
    """Raise if a shard lies beside a manifest that does not name it, as it would be left out silently."""
    directories = {dirname(path): path for path in used}
    if left := [path for path in unnamed if dirname(path) in directories]:
        manifest = directories[dirname(left[0])]
        msg = f"{manifest} does not name {len(left)} of the shards beside it; the first is {left[0]}"
        hint = "write the index.json again (Streaming: merge_index), take them away, or name shards by a glob"
        raise SourceError(msg, hint=hint)


def _refuse_mixture(found: Source, formats: Sequence[Format], used: Sequence[str], unnamed: Sequence[str]) -> None:
    kinds = [(one.name, options_of(one)) for one in formats]
    different = [number for number, kind in enumerate(kinds) if kind != kinds[0]]
    if unnamed:
        what = f"shards that {used[0]} names ({formats[0].name}), and others: {unnamed[0]}"
    elif different:
        other = different[0]
        what = f"{used[0]} ({kinds[0][0]}) and {used[other]} ({kinds[other][0]}) describe different formats"
    else:
        return
    msg = f"{found.asked}: {what}"
    raise SourceError(msg, hint="open one format at a time: name its directory, or its shards by a glob")


def _with_paths(found: Source, paths: Iterable[str]) -> Source:
    """Return a copy of the source with these shards; a manifest named as the source stands for its directory."""
    chosen = tuple(paths)
    kind = "directory" if found.kind == "file" else found.kind
    return replace(found, kind=kind, paths=chosen, names=tuple(relative(path, found.root) for path in chosen))

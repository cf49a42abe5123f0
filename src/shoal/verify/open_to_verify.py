"""Opening of a dataset for verification, even if it is damaged."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from posixpath import basename, splitext
from typing import Any

from shoal.errors import IndexFileError, ShardError, SourceError, StorageError
from shoal.formats.decoding.images import IMAGE_SPECS
from shoal.formats.metadata.manifests import MANIFEST_NAME, read_manifest
from shoal.formats.rows.mds.writer import mds_index_of
from shoal.formats.shard_format import Format
from shoal.index.assembly import joined, subset
from shoal.index.table import Index
from shoal.indexing.build import build_index
from shoal.indexing.changed_shards import ShardCheck
from shoal.indexing.index_files import is_sent_instead, load_index
from shoal.indexing.open_source import (
    choose_format,
    described_shards,
    format_of_index,
    known_suffixes,
    open_source,
    shards_of,
)
from shoal.indexing.opened_dataset import Opened
from shoal.indexing.split_selection import ALL_SPLITS, SplitLike, select_split
from shoal.pipeline.stages.decode import Decode
from shoal.pipeline.stored_types import declared_features
from shoal.storage.cache_directory import expand_home
from shoal.storage.files.local_store import LocalStore
from shoal.storage.retry import with_retries
from shoal.storage.sources.shard_selection import INDEX_NAME
from shoal.storage.sources.source import Source, SourceLike, expand
from shoal.storage.storage_errors import is_broken, is_missing, is_without_ranges
from shoal.storage.store_of_url import in_store, open_store
from shoal.storage.store_protocol import Store
from shoal.storage.urls import join, object_path, scheme_of
from shoal.verify.shard_checks import check_shards
from shoal.verify.verify_report import Damage, VerifyReport, words_of

_IMAGES = "rgb8"


@dataclass(frozen=True, slots=True)
class Verification:
    """Dataset to be verified: its shards, ``source``, in their ``store``, and ``opened`` with the index and its shards.

    ``opened`` is None if the index is unreadable; ``index_path`` and ``index_store`` are None if the index is cached on
    this machine. ``damages`` were found during opening. ``decode``, if set, decodes the fields of each sample.
    """

    source: Source
    store: Store
    opened: Opened | None
    format: Format
    index_path: str | None
    index_store: Store | None
    damages: tuple[Damage, ...] = ()
    decode: Decode | None = None

    def decoding(self, names: Sequence[str] | None) -> Verification:
        """Return this verification with decoding of each field by named decoders; None means no decoding.

        Images, and columns that Hugging Face `datasets` describes, are always decoded. Raises `UsageError` if a decoder
        or its library is missing.
        """
        if names is None or self.opened is None:
            return self
        features = declared_features(self.opened)
        images = () if any(name in IMAGE_SPECS for name in names) else (_IMAGES,)
        described = ("hf",) if features and not any(name in ("hf", "hf-names") for name in names) else ()
        return replace(self, decode=Decode((*images, *described, *names), features=features))


def open_to_verify(
    source: SourceLike,
    *,
    split: SplitLike = None,
    index: str | os.PathLike[str] | None = None,
    format: str | Format | None = None,  # noqa: A002 - the word of the public interface
    storage_options: Mapping[str, Any] | None = None,
) -> Verification:
    """Find shards and their index, and record mismatches between them as damages.

    All splits of a directory are verified, unless ``split`` names one. Without an index beside the shards, an index
    cached on this machine is used, or made now. Raises `ShoalError` if there is nothing to verify, or the source cannot
    be listed.
    """
    located = in_store(source, storage_options)
    store = with_retries(open_store(located, storage_options), storage_options)
    shards, suffixes = shards_of(located, format, store)
    shards = _of_split(shards, split, suffixes, store)
    if shards.kind == "index":
        index, shards = shards.paths[0], _directory_of(shards, format, store)
    path, index_store = _index_location(index, shards, store, storage_options)
    if path is None or index_store is None:
        try:
            opened = open_source(source, split=split or ALL_SPLITS, format=format, storage_options=storage_options)
        except (ShardError, StorageError) as error:  # the first of possibly many
            if isinstance(error, StorageError) and not is_broken(error):
                raise
            described = described_shards(shards, format, store)
            chosen = choose_format(described.source, described.format or format)
            return _scanned_one_by_one(described.source, store, chosen)
        return Verification(described_shards(shards, format, store).source, store, opened, opened.format, None, None)
    try:
        known = load_index(path, store=index_store)
    except (IndexFileError, StorageError) as error:
        if isinstance(error, StorageError) and not _is_no_index(error, index):
            raise
        damage = Damage("index", "", None, None, error.message)
        described = described_shards(shards, format, store)
        chosen = choose_format(described.source, described.format or format)
        return Verification(described.source, store, None, chosen, path, index_store, (damage,))
    chosen = format_of_index(known, path, format)
    if any(basename(path) == MANIFEST_NAME for path in shards.paths):  # it is not a shard, but lists shards
        beside = located if shards.kind == "list" or split is not None else shards.root
        suffixes = tuple({*known_suffixes(chosen), *(splitext(name)[1] for name in known.shard_names)} - {""})
        shards = _of_split(expand(beside, suffixes=suffixes, store=store), split, suffixes, store)
        kept = [number for number, path in enumerate(shards.paths) if basename(path) != MANIFEST_NAME]
        names, paths = (tuple(row[number] for number in kept) for row in (shards.names, shards.paths))
        shards = replace(shards, names=names, paths=paths)
    known, paths, unknown = _paired(known, shards)
    check = ShardCheck(known, paths, store=store, format=chosen)
    opened = Opened(store, known, paths, chosen, path, check)
    what = "the index does not know this shard"
    damages = tuple(Damage("unknown", name, None, None, what) for name in unknown)
    if has_manifest(known) and shards.complete:
        damages += _manifest_damages(known, shards.root, store=store)
    return Verification(shards, store, opened, chosen, path, index_store, damages)


def _of_split(shards: Source, split: SplitLike, suffixes: Sequence[str], store: Store) -> Source:
    """Return all shards of a source, or the shards of a split."""
    return shards if split is None else select_split(shards, split, suffixes=suffixes, store=store).source


def verify(dataset: Verification, *, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Find all damage of a dataset (`shoal.verify.shard_checks.check_shards`)."""
    report = VerifyReport()
    if dataset.opened is not None:
        report = check_shards(dataset.opened, progress=progress, decode=dataset.decode)
    report.damages += dataset.damages
    return report


def _scanned_one_by_one(shards: Source, store: Store, format: Format) -> Verification:  # noqa: A002
    """Index each shard separately, and record a damage for each failure."""
    parts: list[Index] = []
    paths: list[str] = []
    damages = []
    for name, path in zip(shards.names, shards.paths, strict=True):
        alone = replace(shards, names=(name,), paths=(path,))
        try:
            parts.append(build_index(alone, store=store, format=format, workers=0))
        except (ShardError, StorageError) as error:
            if isinstance(error, StorageError) and not is_broken(error):
                raise
            byte = error.byte if isinstance(error, ShardError) else None
            damages.append(Damage("unreadable", name, byte, None, words_of(error, path)))
        else:
            paths.append(path)
    opened = None
    if parts:
        index = joined(parts)
        check = ShardCheck(index, paths, store=store, format=format)
        opened = Opened(store, index, tuple(paths), format, None, check)
    return Verification(shards, store, opened, format, None, None, tuple(damages))


def _directory_of(shards: Source, format: str | Format | None, store: Store) -> Source:  # noqa: A002
    """Return the shards beside an index file, which may have any name."""
    beside, _ = shards_of(shards.root, format, store)
    if beside.kind != "index":
        return beside
    # Over http, directories cannot be listed and resolve to their index again: take the shards that it names.
    names = load_index(shards.paths[0], store=store).shard_names
    paths = tuple(join(shards.root, name) for name in names)
    return replace(shards, kind="directory", names=tuple(names), paths=paths)


def _index_location(
    index: str | os.PathLike[str] | None, shards: Source, store: Store, storage_options: Mapping[str, Any] | None
) -> tuple[str | None, Store | None]:
    """Return the path of the index file and its store; None for both if there is no index."""
    if index is None:
        path = join(shards.root, INDEX_NAME)
        try:
            is_found = (
                not shards.root.endswith("://") and store.find(path) is not None and not is_sent_instead(path, store)
            )
        except StorageError as error:
            if not (_is_no_index(error, index) or is_without_ranges(error)):
                raise
            is_found = not is_without_ranges(error)
        return (path, store) if is_found else (None, None)
    text = os.fspath(index)
    if not scheme_of(text):
        return str(Path(expand_home(text)).absolute()), LocalStore()
    return object_path(text), with_retries(open_store(text, storage_options), storage_options)


def _is_no_index(error: StorageError, index: str | os.PathLike[str] | None) -> bool:
    """Return True if the path cannot be an index (a directory, a dangling link), or a default path is missing."""
    return is_broken(error) or (index is None and is_missing(error))


def _paired(index: Index, shards: Source) -> tuple[Index, tuple[str, ...], list[str]]:
    """Return the requested part of the index, the path of each of its shards, and shards that it does not know."""
    bases = [basename(name) for name in index.shard_names]
    counts = Counter(bases)
    by_base = {base: number for number, base in enumerate(bases) if counts[base] == 1}
    numbers = {name: number for number, name in enumerate(index.shard_names)}
    path_of: dict[int, str] = {}
    unknown = []
    for name, path in zip(shards.names, shards.paths, strict=True):
        number = numbers.get(name, by_base.get(basename(name)))
        if number is None or number in path_of:
            unknown.append(name)
        else:
            path_of[number] = path
    if shards.complete:
        paths = tuple(path_of.get(number, join(shards.root, name)) for number, name in enumerate(index.shard_names))
        return index, paths, unknown
    chosen = sorted(path_of)
    if not chosen:
        msg = f"{shards.typed}: the index knows none of these {len(shards.names)} shards"
        raise IndexFileError(msg, hint="name its own shards, or make an index of these with `shoal index`")
    return subset(index, chosen), tuple(path_of[number] for number in chosen), unknown


def has_manifest(index: Index) -> bool:
    """Return True if shoal wrote an ``index.json`` beside these shards."""
    return index.format == "mds" and "plan" in index.metadata


def _manifest_damages(index: Index, root: str, *, store: Store) -> tuple[Damage, ...]:
    """Return the damage of the ``index.json`` in the directory ``root``, if any."""
    path = join(root, MANIFEST_NAME)
    try:
        info = store.find(path)
        data = b"" if info is None else bytes(store.read_range(path, 0, info.num_bytes))
        manifest = None if info is None else read_manifest(data, path=MANIFEST_NAME)
    except SourceError as error:
        what = error.message.removeprefix(f"{MANIFEST_NAME}: ")
    except StorageError as error:
        if not is_broken(error):
            raise
        what = words_of(error, path)
    else:
        what = "it is not there" if info is None else "it is some other JSON"
        if manifest is not None:
            # Compare everything: Streaming takes names and encodings of columns from the manifest, not from the shards.
            if json.loads(data).get("shards") == json.loads(mds_index_of(index))["shards"]:
                return ()
            what = "it lists other shards or columns, or other numbers of bytes or samples"
    return (Damage("index", MANIFEST_NAME, None, None, f"{what}; readers of MosaicML Streaming need it"),)


def write_manifest(index: Index, root: str, *, store: Store) -> None:
    """Rewrite the ``index.json`` for the shards of this index."""
    store.put(join(root, MANIFEST_NAME), mds_index_of(index))

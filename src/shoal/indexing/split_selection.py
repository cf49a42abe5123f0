"""Selection of the split to read, made before any shard is opened, so that train and test never mix by accident."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from posixpath import basename

import numpy as np

from shoal.errors import SourceError, UsageError
from shoal.formats.folder.reader import METADATA_NAMES
from shoal.formats.metadata.splits import (
    DATASET_DICT,
    ENERGON_SPLITS,
    Splits,
    splits_in_dataset_dict,
    splits_in_energon,
    splits_in_names,
)
from shoal.formats.rows.tar.reader import Tar
from shoal.index.table import Index
from shoal.indexing.manifests_beside import read_whole
from shoal.order.arrays.index_ranges import Runs
from shoal.storage.sources.patterns import expand_braces
from shoal.storage.sources.source import Source, expand
from shoal.storage.store_protocol import Store
from shoal.storage.urls import join

_log = logging.getLogger("shoal")

SplitLike = str | Sequence[str] | None

ALL_SPLITS = "all"

_LIMIT_BYTES = 64 << 20  # a split.yaml of a million shards has 40 MB


@dataclass(frozen=True, slots=True)
class SelectedSplit:
    """The shards to read, and the keys of excluded samples by path."""

    source: Source
    left_out: Mapping[str, frozenset[str]] = field(default_factory=dict)


def select_split(source: Source, split: SplitLike, *, suffixes: Sequence[str], store: Store) -> SelectedSplit:
    """Return the shards of the named splits; all shards of a source without splits.

    A directory is searched for a file that declares splits: one or two requests if its shards are tar or Arrow files.
    Raises `SourceError`: the source holds several splits and ``split`` is None, or it lacks the named split.
    """
    splits = _splits_of(source, store) if source.kind == "directory" or split is not None else None
    chosen = _chosen(splits, split, what=source.typed, where=source.root)
    if splits is None or chosen is None:
        return SelectedSplit(source)
    directory = splits.directories.get(chosen[0]) if len(chosen) == 1 else None
    if directory is not None and source.kind == "directory":
        # As if the user had named this directory: with the index and the manifests in it.
        _refuse_shared_tables(source, splits)
        split_source = expand(join(source.root, directory), suffixes=suffixes, store=store)
        return SelectedSplit(replace(split_source, split_names=source.names))
    shard_names = {name for split_name in chosen for name in splits.parts[split_name]}
    if len(shard_names) == len(source.names) and not splits.left_out:
        return SelectedSplit(source)
    _refuse_shared_tables(source, splits)
    shards = [shard for shard in zip(source.names, source.paths, strict=True) if shard[0] in shard_names]
    names, paths = zip(*shards, strict=True)
    left_out = {join(source.root, name): keys for name, keys in splits.left_out.items() if name in shard_names}
    return SelectedSplit(replace(source, kind="list", names=names, paths=paths, split_names=source.names), left_out)


def shards_of_split(index: Index, split: SplitLike, *, path: str) -> list[int]:
    """Return the numbers of an index's shards in the named splits, by shard names; raises as `select_split`."""
    splits = splits_in_names(index.shard_names)
    chosen = _chosen(splits, split, what=path, where=path)
    if splits is None or chosen is None:
        return list(range(index.num_shards))
    shard_names = {name for split_name in chosen for name in splits.parts[split_name]}
    return [number for number, name in enumerate(index.shard_names) if name in shard_names]


def samples_left(selected: SelectedSplit, index: Index, paths: Sequence[str], store: Store) -> Runs | None:
    """Return the samples of an index that no key excludes, None for all; reads the headers of shards.

    Raises `SourceError`: a shard lacks an excluded key; `ShardError` or `StorageError`: a shard cannot be read.
    """
    left_out = selected.left_out
    if not left_out:
        return None
    mask = np.ones(index.num_samples, dtype=np.bool_)
    first_samples = index.extent_first_sample[index.shard_first_extent]
    for number, (name, path) in enumerate(zip(index.shard_names, paths, strict=True)):
        if keys := left_out.get(path):
            stored_keys = Tar().keys(partial(store.read_range, path), store.stat(path).num_bytes, shard=name)
            if unknown := sorted(keys.difference(stored_keys)):
                msg = f"{name}: {len(unknown)} excluded samples are missing; the first has the key {unknown[0]!r}"
                raise SourceError(msg, hint="the file that declares the splits is for other shards: correct this file")
            excluded = [sample for sample, key in enumerate(stored_keys) if key in keys]
            mask[int(first_samples[number]) + np.array(excluded, dtype=np.int64)] = False
    _log.info("%d samples are excluded by the dataset's own splits", int(np.count_nonzero(~mask)))
    return Runs.of(mask, index.num_samples)


def _splits_of(source: Source, store: Store) -> Splits | None:
    """Return the splits that a file in the directory declares, or that the shard names imply."""
    readers: dict[str, tuple[tuple[str, ...], Callable[..., Splits]]] = {
        ".arrow": ((DATASET_DICT,), splits_in_dataset_dict),
        ".tar": (ENERGON_SPLITS, partial(splits_in_energon, expand=expand_braces)),
    }
    for suffix, (file_names, read_splits) in readers.items():
        if source.kind == "directory" and any(name.endswith(suffix) for name in source.names):
            for path in (join(source.root, name) for name in file_names):
                if (info := store.find(path)) is not None:
                    data = read_whole(info, store, limit_bytes=_LIMIT_BYTES)
                    return read_splits(data, source.names, path=path)
    return splits_in_names(source.names)


def _chosen(splits: Splits | None, split: SplitLike, *, what: str, where: str) -> list[str] | None:
    """Return the names of the splits to read; None for the shards of all splits."""
    if split is None:
        if splits is None or not (splits.must_be_chosen or splits.is_declared):
            return None
        filled = splits.filled
        if not filled:
            msg = f"{what}: {splits.source} lists the splits {splits}, but none of their shards exist"
            raise SourceError(msg, hint="copy these shards, too, or name shards by a glob")
        if len(filled) == 1:
            _log.info("%s: %s is read, by %s", what, splits, splits.source)
            return filled
        msg = f"{what}: this source has the splits {splits}, by {splits.source}; choose one or more"
        both = ", ".join(f'"{name}"' for name in filled[:2])
        hint = f'split="{filled[0]}" reads one, split=[{both}] several, split="{ALL_SPLITS}" all'
        raise SourceError(msg, hint=hint)
    names = _names(split)
    if splits is None:
        if names == [ALL_SPLITS]:
            return None
        msg = f"{what}: split={', '.join(names)} was given, but no splits are known below {where}"
        hint = (
            "splits are directories or files with names such as train, val and test, or lie in dataset_dict.json or "
            "Energon's split.yaml; leave out split=, or name the shards by a glob"
        )
        raise SourceError(msg, hint=hint)
    if names == [ALL_SPLITS] and ALL_SPLITS not in splits.parts:
        return splits.filled if splits.is_declared else None
    full_names = [splits.named(name) for name in names]
    pairs = zip(names, full_names, strict=True)
    unknown = [name for name, full_name in pairs if full_name is None or not splits.parts[full_name]]
    if unknown:
        msg = f"{what}: there is no split {unknown[0]!r}; the splits, by {splits.source}, are {splits}"
        raise SourceError(msg, hint=f'split="{splits.filled[0]}"' if splits.filled else "no split has a shard")
    return list(dict.fromkeys(name for name in full_names if name is not None))


def _names(split: str | Sequence[str]) -> list[str]:
    names = [split] if isinstance(split, str) or not isinstance(split, Sequence) else list(split)
    if not names or "" in names or any(not isinstance(name, str) for name in names):
        msg = f"split= takes the name of a split, or a list of names; got {split!r:.80}"
        raise UsageError(msg, hint=f'split="train", split=["train", "test"] or split="{ALL_SPLITS}"')
    return names


def _refuse_shared_tables(source: Source, splits: Splits) -> None:
    """Raise if a metadata table covers files of all splits: one split would drop some of its rows."""
    in_splits = {name for shards in splits.parts.values() for name in shards}
    for name in source.names:
        if name not in in_splits and basename(name) in METADATA_NAMES:
            msg = f"{source.typed}: {name} describes files of all splits, but one split was requested"
            raise SourceError(msg, hint="put a table into the directory of each split")

"""Matching of the shards of a source to those of an index."""

from __future__ import annotations

from collections import Counter
from posixpath import basename

from shoal.errors import IndexFileError
from shoal.index.table import Index
from shoal.storage.sources.source import Source


def missing_from(index: Index, source: Source) -> list[str]:
    """Return the relative names of the shards of ``source`` that ``index`` does not list."""
    known = set(index.shard_names)
    return [name for name in source.names if name not in known]


def match_all(index: Index, source: Source, *, index_path: str) -> list[int]:
    """Return the number in ``index`` of every shard of ``source``, found by relative name, else by unique base name.

    Raises `IndexFileError`: a shard is unknown or its base name ambiguous; two shards match the same one; or the source
    is a whole directory and the index lists shards that are not in it.
    """
    by_name = {name: number for number, name in enumerate(index.shard_names)}
    by_base: dict[str, list[int]] = {}
    for name, number in by_name.items():
        by_base.setdefault(basename(name), []).append(number)
    numbers, unknown = [], []
    for name, path in zip(source.names, source.paths, strict=True):
        if name in by_name:
            numbers.append(by_name[name])
            continue
        candidates = by_base.get(basename(name), [])
        if len(candidates) > 1:
            both = " and ".join(index.shard_names[number] for number in candidates[:2])
            msg = f"{path} could be either of {both} in the index {index_path}"
            raise IndexFileError(msg, hint="name the directory that the index was made for")
        numbers.extend(candidates)
        unknown += [] if candidates else [path]
    _refuse(index, source, numbers, unknown, index_path)
    return numbers


def _refuse(index: Index, source: Source, numbers: list[int], unknown: list[str], index_path: str) -> None:
    if unknown:
        msg = f"the index {index_path} does not know {len(unknown)} of {len(source.paths)} shards, first {unknown[0]}"
        raise IndexFileError(msg, hint=f"run `shoal index {source.root}` again")
    twice = [number for number, count in Counter(numbers).items() if count > 1]
    if twice:
        name = index.shard_names[twice[0]]
        msg = f"{source.asked}: two shards have the name {name} of the index {index_path}"
        raise IndexFileError(msg, hint="name the directory that the index was made for")
    if source.complete and len(numbers) < len(index.shard_names):
        absent = sorted(set(range(len(index.shard_names))) - set(numbers))
        msg = (
            f"{source.root} lacks {len(absent)} of the {len(index.shard_names)} shards that the index {index_path} "
            f"names, first {index.shard_names[absent[0]]}"
        )
        raise IndexFileError(
            msg, hint=f"restore them, name by a glob those you want, or run `shoal index {source.root}`"
        )

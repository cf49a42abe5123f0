"""Matching of the shards of a source to those of an index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from posixpath import basename

from shoal.errors import IndexFileError
from shoal.index.table import Index
from shoal.indexing.changed_shards import looks_indexed
from shoal.storage.sources.source import Source
from shoal.storage.store_protocol import ObjectInfo

_OTHER_DIRECTORY = "name the directory that the index was made for"


def describes(index: Index, source: Source, infos: Sequence[ObjectInfo]) -> bool:
    """Return True if the index has every shard of ``source`` as ``infos`` say and, for a directory, no other."""
    numbers = {name: number for number, name in enumerate(index.shard_names)}
    if not numbers.keys() >= set(source.names) or (source.complete and len(numbers) > len(source.names)):
        return False
    return all(looks_indexed(index, numbers[name], info) for name, info in zip(source.names, infos, strict=True))


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
        candidates = [by_name[name]] if name in by_name else by_base.get(basename(name), [])
        if len(candidates) > 1:
            both = " and ".join(index.shard_names[number] for number in candidates[:2])
            raise IndexFileError(f"{path} could be either of {both} in the index {index_path}", hint=_OTHER_DIRECTORY)
        numbers.extend(candidates)
        unknown += [] if candidates else [path]
    if unknown:
        msg = f"the index {index_path} does not know {len(unknown)} of {len(source.paths)} shards, first {unknown[0]}"
        raise IndexFileError(msg, hint=f"run `shoal index {source.root}` again")
    if twice := [number for number, count in Counter(numbers).items() if count > 1]:
        msg = f"{source.asked}: two shards have the name {index.shard_names[twice[0]]} of the index {index_path}"
        raise IndexFileError(msg, hint=_OTHER_DIRECTORY)
    num_known = len(index.shard_names)
    if source.complete and len(numbers) < num_known:
        absent = sorted(set(range(num_known)) - set(numbers))
        lacking = f"{source.root} lacks {len(absent)} of the {num_known} shards that the index {index_path} names"
        msg = f"{lacking}, first {index.shard_names[absent[0]]}"
        hint = f"restore them, name by a glob those you want, or run `shoal index {source.root}`"
        raise IndexFileError(msg, hint=hint)
    return numbers

"""Appending of new shards to an index: known shards are not read, and their samples keep their ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from shoal.errors import IndexFileError, UsageError
from shoal.figures import counted
from shoal.formats.folder.reader import Folder
from shoal.formats.metadata.manifests import Expected
from shoal.formats.shard_format import Format
from shoal.index.index_generations import appended
from shoal.index.table import Index
from shoal.indexing.build import Progress, build_index
from shoal.indexing.changed_shards import ShardCheck
from shoal.indexing.checksums import extent_checksums
from shoal.indexing.opened_dataset import Opened
from shoal.storage.sources.source import Source
from shoal.storage.stat_many import stat_all
from shoal.storage.store_protocol import Store

_FEW = 3  # names in a message

AddColumns = Callable[[Opened, Index], Index]
"""Reads the columns of an index from the samples of new shards; returns the index of the new shards with columns."""


class Listed(NamedTuple):
    """The shards of a source beside an index: new paths in the order of the source, and the numbers of lost shards."""

    new_names: tuple[str, ...]
    new_paths: tuple[str, ...]
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Appended:
    """An index with new shards after its earlier shards; ``dropped`` are the names of shards that were left out."""

    index: Index
    new_names: tuple[str, ...]
    dropped: tuple[str, ...]


def compare_listing(index: Index, source: Source) -> Listed:
    """Compare the shards of a source with the shards of an index, by name."""
    known = set(index.shard_names)
    new = [(name, path) for name, path in zip(source.names, source.paths, strict=True) if name not in known]
    listed = set(source.names)
    missing = tuple(number for number, name in enumerate(index.shard_names) if name not in listed)
    return Listed(tuple(name for name, _ in new), tuple(path for _, path in new), missing)


def append_shards(
    index: Index,
    source: Source,
    *,
    store: Store,
    format: Format,  # noqa: A002  # the word of the public interface
    drop_missing: bool = False,
    add_columns: AddColumns | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
    expected: Mapping[str, Expected] | None = None,
) -> Appended:
    """Return an index with the new shards of a source after all known shards; only new shards are read.

    Known shards keep their numbers, and their samples their ids, in any order of the source. If the index has
    checksums or columns, they are read for the new shards, too (``add_columns``). ``drop_missing`` leaves out known
    shards that the source lacks: samples of later shards then get other ids.

    Time: one request for the size of each known shard, the copy of their rows, and the scan of the new shards.

    Raises `IndexFileError`: the source lacks shards of the index, or a known shard has another size; `UsageError`: the
    format is a folder of files; and the errors of `build_index`.
    """
    if isinstance(format, Folder):
        msg = f"{source.typed}: a folder of single files has no shards to append"
        raise UsageError(msg, hint="`shoal index` lists a folder again, without reading its files")
    listed = compare_listing(index, source)
    dropped = tuple(index.shard_names[number] for number in listed.missing)
    if dropped and not drop_missing:
        msg = f"{source.typed} lacks {counted(len(dropped), 'shard')} of the index: {_some(dropped)}"
        hint = "restore them; or `shoal index --append --drop-missing` leaves them out, and later samples get other ids"
        raise IndexFileError(msg, hint=hint)
    _refuse_changed(index, source, store)
    if not listed.new_names:
        return Appended(appended(index, None, without=listed.missing) if dropped else index, (), dropped)
    extent_bytes = index.metadata.get("extent_bytes")
    new_source = replace(source, kind="list", names=listed.new_names, paths=listed.new_paths)
    new = build_index(
        new_source, store=store, format=format, extent_bytes=extent_bytes if isinstance(extent_bytes, int) else None,
        workers=workers, progress=progress, expected=expected,
    )  # fmt: skip
    check = ShardCheck(new, listed.new_paths, store=store, format=format)
    if index.extent_checksum is not None:
        new = replace(new, extent_checksum=extent_checksums(new, listed.new_paths, store=store, check=check.check))
    if index.columns:
        if add_columns is None:
            msg = f"the index has the columns {', '.join(index.columns)}, but nothing reads them from new shards"
            raise UsageError(msg, hint="`shoal index --append` reads them")
        new = add_columns(Opened(store, new, listed.new_paths, format, None, check), index)
    return Appended(appended(index, new, without=listed.missing), listed.new_names, dropped)


def with_columns_of(newest: Opened, known: Opened, add_columns: AddColumns | None) -> Opened:
    """Return a dataset with the columns that the index of an earlier version of it has."""
    if add_columns is None or not known.index.columns.keys() - newest.index.columns.keys():
        return newest
    # No file has this index, so each worker gets a copy of it.
    return replace(newest, index=add_columns(newest, known.index), index_path=None)


def _refuse_changed(index: Index, source: Source, store: Store) -> None:
    """Raise `IndexFileError` for a known shard of another size; another time alone is checked at the first use."""
    numbers = {name: number for number, name in enumerate(index.shard_names)}
    known = [(numbers[name], path) for name, path in zip(source.names, source.paths, strict=True) if name in numbers]
    infos = stat_all([path for _, path in known], store)
    changed = [
        (info, int(index.shard_bytes[number]))
        for (number, _), info in zip(known, infos, strict=True)
        if info.num_bytes != index.shard_bytes[number]
    ]
    if changed:
        info, before_bytes = changed[0]
        msg = f"{counted(len(changed), 'shard')} of the index changed: {info.path} has {info.num_bytes:,} bytes, and "
        msg += f"had {before_bytes:,}"
        raise IndexFileError(
            msg, hint="new data belongs into new shards; `shoal index` makes an index of all shards anew"
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _FEW:,} more" if len(names) > _FEW else ""
    return ", ".join(names[:_FEW]) + more

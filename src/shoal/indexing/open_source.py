"""Opening of a dataset: from the source that the user names to shards with an index.

The first of these indexes is used: the given index, an index as the source, `shoal.index` beside the shards, the index
that this machine made before. Else an index is built and kept: on this machine and, on request, beside the shards of an
object store. A shard that an index lacks is never left out silently.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from shoal.errors import IndexFileError, SourceError, StorageError
from shoal.formats.compressed.reader import Compressed
from shoal.formats.folder.reader import METADATA_NAMES, Folder
from shoal.formats.format_registry import (
    format_given,
    format_named,
    format_of,
    options_of,
    suffixes_in_directories,
    suffixes_of_packages,
)
from shoal.formats.rows.token_files import options_in_name
from shoal.formats.shard_format import Format
from shoal.index.assembly import subset
from shoal.index.table import Index
from shoal.indexing.build import OPTIONS, Progress
from shoal.indexing.changed_shards import ShardCheck, describes, match_all
from shoal.indexing.described_folder import described_files
from shoal.indexing.growing.unindexed import Unindexed
from shoal.indexing.index_files import (
    is_sent_instead,
    load_index,
    publish_beside,
    store_of_published,
    was_left_by_opening,
)
from shoal.indexing.index_making import IndexMaking, warn_of_unversioned
from shoal.indexing.manifests_beside import MANIFEST_SUFFIXES, Described, described, in_named_order
from shoal.indexing.opened_dataset import Opened
from shoal.indexing.split_selection import SplitLike, samples_left, select_split, shards_of_split
from shoal.indexing.tables.agreed_versions import agreed_snapshot
from shoal.indexing.tables.snapshot_protocol import (
    CURRENT,
    TableKind,
    TableRequest,
    WantedVersion,
    version_text,
)
from shoal.indexing.tables.table_kinds import named_table, table_of_log
from shoal.indexing.tables.table_versions import TableVersions
from shoal.order.arrays.index_ranges import Runs
from shoal.processes.job_rank import JobRank, local_size_of
from shoal.storage.cache_directory import cache_directory, expand_home
from shoal.storage.files.local_store import LocalStore
from shoal.storage.objects.torch_store import reachable_torch_store
from shoal.storage.retry import retried, rule_of, with_retries
from shoal.storage.sources.local_patterns import local_path
from shoal.storage.sources.shard_selection import INDEX_NAME, PACKING_PLAN
from shoal.storage.sources.source import Source, SourceLike, expand, printed, schemes_of
from shoal.storage.sources.table_logs import LoggedTableError
from shoal.storage.stat_many import find_all
from shoal.storage.stat_together import stat_together
from shoal.storage.storage_errors import is_forbidden, is_without_ranges
from shoal.storage.store_of_url import in_store, open_store
from shoal.storage.store_protocol import ObjectInfo, Store
from shoal.storage.urls import join, object_path, scheme_of, without_secrets

_log = logging.getLogger("shoal")

SamplesLeft = Callable[[Index, Sequence[str]], Runs | None]

# Formats whose compressed shards mostly have no suffix for their codec, from TensorFlow and LitData.
_CODEC_UNSAID = ("tfrecord", "litdata", "litdata_tokens")
# Formats whose shards follow the order of an index.json beside them, even if the user gives the format.
_IN_NAMED_ORDER = ("mds", "litdata", "jsonl", "csv", "tsv")


def open_source(
    source: SourceLike,
    *,
    split: SplitLike = None,
    index: str | os.PathLike[str] | None = None,
    format: str | Format | None = None,  # noqa: A002 - the word of the public interface
    storage_options: Mapping[str, Any] | None = None,
    publish_index: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    job_rank: JobRank | None = None,
) -> Opened:
    """Find the shards of ``source``, and their index; build the index if there is none.

    `shoal.storage.sources.source.expand` describes ``source``. In ``index`` (a file or URL), or in a `shoal.index`
    beside the shards, shards are found by relative name, or by base name if they lie elsewhere. ``split`` names one or
    several splits of a directory, or "all"; it may be None for a single split. ``storage_options``
    (docs/guides/remote-data.md) also apply to ``index`` if it is in a store of the same kind. With ``publish_index``,
    the index is written beside the shards of an object store. ``progress`` is called while an index is built (see
    `build_index`). O(shards), unless an index is built. The ranks of a job (``job_rank``) index disjoint shares if they
    share a directory: beside the index, or a cache directory on a shared file system; the ranks of one machine always
    do.

    Raises `SourceError`: the source names nothing, shards of unknown or different formats, several splits without a
    choice, or an unfinished packing; `IndexFileError`: the index lacks a shard, or lists more shards than the directory
    has; `StorageError`: a shard is missing, or stat fails; `ShardError`: a shard cannot be indexed.
    """
    shards = find_source(
        source, split=split, index=index, format=format, storage_options=storage_options, publish_index=publish_index,
        cache_dir=cache_dir, progress=progress, job_rank=job_rank,
    )  # fmt: skip
    return shards.whole


def find_source(
    source: SourceLike,
    *,
    split: SplitLike = None,
    index: str | os.PathLike[str] | None = None,
    format: str | Format | None = None,  # noqa: A002
    storage_options: Mapping[str, Any] | None = None,
    publish_index: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    job_rank: JobRank | None = None,
    wanted: WantedVersion = CURRENT,
    add_columns: Callable[[Opened, Index], Index] | None = None,
) -> Opened | Unindexed:
    """Find the shards of ``source``, and their index if there is one; arguments and errors as in `open_source`.

    ``wanted`` chooses a version of a table; ``add_columns`` reads the columns of an index for another version.
    """
    directory = cache_directory(cache_dir)
    finding = _Finding(storage_options, format, directory, progress, job_rank, add_columns)
    table = named_table(source)
    if table is None:
        source = in_store(source, storage_options)
        store_once = open_store(source, storage_options)
        store = with_retries(store_once, storage_options)
        # Retry the whole search, not each listing: an abandoned listing must not be read to its end first.
        look = partial(shards_of, source, format, store_once)
        try:
            shards, suffixes = retried(look, rule_of(storage_options), what=f"find the shards of {printed(source)}")
        except LoggedTableError as error:
            table = table_of_log(source, error)
    if table is not None:
        return finding.table(*table, wanted, split=split, index=index)
    wanted.refuse_for(printed(source))
    if shards.kind == "index":
        if index is not None:
            msg = f"{shards.typed}: the source is an index, but index={without_secrets(os.fspath(index))} is another"
            raise SourceError(msg, hint="give the shards as the source, or leave out index=")
        return finding.opening(shards, store, format).beside_index(split)
    if shards.left_out:
        counts = ", ".join(f"{count:,} x {suffix}" for suffix, count in shards.left_out.items())
        _log.info("%s: left out, as they are not shards by their suffixes: %s", shards.typed, counts)
    selected = select_split(shards, split, suffixes=suffixes, store=store)
    what = described_shards(selected.source, format, store)
    shards = what.source
    opening = finding.opening(shards, store, what.format or format)
    left = partial(samples_left, selected, store=store)
    if index is not None:
        return _with_samples(
            opening.with_index(*_given_index(os.fspath(index), shards, storage_options, directory)), left
        )
    if (beside := _beside(shards, INDEX_NAME, store)) and (index_beside := opening.index_in_directory(beside.path)):
        return _with_samples(opening.with_index(index_beside, beside.path), left)
    refuse_unfinished(shards, store)
    publish = partial(publish_beside, source=shards, store=store, replaces=beside, is_asked=publish_index)
    shared = store_of_published(shards, storage_options) if publish_index else None
    unindexed = finding.unindexed(opening, what, publish, shared)
    return finding.made(unindexed, left if selected.left_out else None)


def _with_samples(opened: Opened, left: SamplesLeft) -> Opened:
    """Return a dataset with the samples that its splits, or its version, have."""
    stored = left(opened.index, opened.paths)
    return opened if stored is None else replace(opened, stored=stored)


@dataclass(frozen=True, slots=True)
class _Finding:
    """Arguments of `find_source` for shards and tables alike."""

    storage_options: Mapping[str, Any] | None
    format: str | Format | None
    cache_dir: str
    progress: Progress | None
    job_rank: JobRank | None
    add_columns: Callable[[Opened, Index], Index] | None = None

    def opening(self, source: Source, store: Store, format: str | Format | None) -> _Opening:  # noqa: A002
        return _Opening(source, store, format, self.cache_dir, local_size_of(self.job_rank))

    def unindexed(
        self, opening: _Opening, what: Described, publish: Callable[[Index], str | None], shared: Store | None
    ) -> Unindexed:
        """Return shards whose index is in no given file and not beside them."""
        job_rank, chosen = self.job_rank, choose_format(what.source, opening.format)
        is_of_machines = job_rank is not None and job_rank.local_size < job_rank.world_size
        exchange = reachable_torch_store() if is_of_machines and shared is None else None
        making = IndexMaking(
            what, opening.store, chosen, self.cache_dir, self.progress, publish, job_rank, shared, exchange
        )
        return Unindexed(making, opening.opened)

    def made(self, unindexed: Unindexed, left: SamplesLeft | None) -> Opened | Unindexed:
        """Return the shards with the cached index; else without an index, unless the index says which samples to take.

        ``left`` returns the samples to take; None for all.
        """
        known = unindexed.making.cached()
        if known is None and left is None:
            return unindexed
        opened = unindexed.whole if known is None else unindexed.opened(*known)
        return opened if left is None else _with_samples(opened, left)

    def table(
        self,
        kind: TableKind,
        root: str,
        wanted: WantedVersion,
        *,
        split: SplitLike,
        index: str | os.PathLike[str] | None,
    ) -> Opened | Unindexed:
        """Find the files of a version of a table, and their index if there is one."""
        if self.format is not None:
            msg = f"{without_secrets(root)}: format= was given, but a table says how its files are read"
            raise SourceError(msg, hint="leave out format=")
        request = TableRequest(root, wanted, split, dict(self.storage_options or {}))
        snapshot = agreed_snapshot(kind, request, self.job_rank)
        source = snapshot.source
        reopen = partial(open_table, replace(self, progress=None, job_rank=None), kind, root, split)
        versions = TableVersions(reopen, wanted, without_secrets(root), self.add_columns, self.storage_options)
        if not source.paths:
            msg = f"{source.typed}: its version {version_text(snapshot.version)} has no files to read"
            raise SourceError(msg, hint="open another version=, or a predicate= that some files match")
        options = self.storage_options if snapshot.storage_options is None else snapshot.storage_options
        store = snapshot.store or with_retries(open_store(source.paths[0], options), options)
        opening = replace(self.opening(source, store, snapshot.format), versions=versions)
        left: SamplesLeft | None = None
        if snapshot.deleted:
            left = lambda known, _: snapshot.rows_left(known)  # noqa: E731
        if index is not None:
            given, path = _given_index(os.fspath(index), source, self.storage_options, self.cache_dir)
            snapshot.check_index(given, path)
            opened = opening.with_index(given, path)
            return opened if left is None else _with_samples(opened, left)
        what = Described(source, snapshot.format, rows=snapshot.rows, version=snapshot.version)
        return self.made(self.unindexed(opening, what, lambda _: None, None), left)


def open_table(finding: _Finding, kind: TableKind, root: str, split: SplitLike, wanted: WantedVersion) -> Opened:
    """Open another version of a table."""
    return finding.table(kind, root, wanted, split=split, index=None).whole


def known_suffixes(format: str | Format | None = None) -> tuple[str, ...]:  # noqa: A002
    """Return the suffixes of shards in a directory: of ``format``, or of all formats."""
    if format is None:
        return suffixes_in_directories()
    chosen = format_given(format)
    if isinstance(chosen, Compressed) and chosen.inner.name in _CODEC_UNSAID:
        return chosen.suffixes + chosen.inner.suffixes
    return chosen.suffixes


def wanted_suffixes(format: str | Format | None = None) -> tuple[str, ...]:  # noqa: A002
    """Return the suffixes to list in a directory: of shards, and of the manifests that describe them."""
    if format is None:
        return known_suffixes() + MANIFEST_SUFFIXES
    name = format_given(format).name
    if name == Folder.name:
        return known_suffixes(format) + METADATA_NAMES
    return known_suffixes(format) + (MANIFEST_SUFFIXES if name.startswith(_IN_NAMED_ORDER) else ())


def shards_of(
    source: SourceLike,
    format: str | Format | None,  # noqa: A002
    store: Store,
) -> tuple[Source, tuple[str, ...]]:
    """Return the shards of a source, as `expand` finds them, and their suffixes.

    If a directory has no shards of our formats, suffixes of formats of other packages are added.
    """
    suffixes = wanted_suffixes(format)
    if format is not None:
        return expand(source, suffixes=suffixes, store=store), suffixes
    return expanded(source, suffixes, store)


def expanded(source: SourceLike, suffixes: tuple[str, ...], store: Store) -> tuple[Source, tuple[str, ...]]:
    """Return the shards with suffixes of our formats, or else of formats of other packages; and the suffixes."""
    try:
        return expand(source, suffixes=suffixes, store=store), suffixes
    except SourceError:
        more = suffixes_of_packages()
        if not more:
            raise
    return expand(source, suffixes=suffixes + more, store=store), suffixes + more


def described_shards(source: Source, format: str | Format | None, store: Store) -> Described:  # noqa: A002
    """Return the shards as manifests describe them; if the user gives a format, manifests only set their order."""
    if format is None:
        return described(source, store)
    chosen = format_given(format)
    return described_files(source, chosen, store) if isinstance(chosen, Folder) else in_named_order(source, store)


def choose_format(source: Source, format: str | Format | None = None) -> Format:  # noqa: A002
    """Return the given format, by name or as an object, or the format of the suffixes of all shards.

    Raises `SourceError`: a suffix is unknown, or two shards have different formats.
    """
    if format is not None:
        return format_given(format)
    first = format_of(source.paths[0])
    for path in source.paths:
        other = format_of(path)
        if other.name != first.name:
            msg = f"{source.typed}: shards of two formats: {source.paths[0]} ({first.name}) and {path} ({other.name})"
            raise SourceError(msg, hint="open one format at a time: a glob with a suffix, or format=")
    return first


@dataclass(frozen=True, slots=True)
class _Opening:
    """Shards to open: their source, store and format; ``local_size`` processes of this machine open these shards."""

    source: Source
    store: Store
    format: str | Format | None
    cache_dir: str
    local_size: int
    versions: TableVersions | None = None

    def stat(self, paths: Sequence[str]) -> list[ObjectInfo]:
        return stat_together(paths, self.store, cache_dir=self.cache_dir, num_processes=self.local_size)

    def opened(self, index: Index, paths: Sequence[str], chosen: Format, index_path: str | None) -> Opened:
        check = ShardCheck(index, tuple(paths), store=self.store, format=chosen, cache_dir=self.cache_dir)
        return Opened(
            self.store, index, tuple(paths), chosen, index_path, check, left_out=self.source.left_out,
            past=self.versions, latest=self.versions,
        )  # fmt: skip

    def with_index(self, known: Index, index_path: str) -> Opened:
        """Open shards with an index, which may also have other shards."""
        chosen = format_of_index(known, index_path, self.format)
        numbers = match_all(known, self.source, index_path=index_path)
        paths = self.source.paths
        if self.source.complete:
            # A whole directory has the order of its index: the index may be older than the rule of sorting.
            paths = tuple(path for _, path in sorted(zip(numbers, paths, strict=True)))
            numbers = sorted(numbers)
        opened = self.opened(_part_of(known, numbers), paths, chosen, index_path)
        _compare(opened, self.stat(paths), index_path, self.source)
        return opened

    def beside_index(self, split: SplitLike) -> Opened:
        """Open the shards beside an index; the source is the index file."""
        path = self.source.paths[0]
        index = load_index(path, store=self.store, cache_dir=self.cache_dir)
        chosen = format_of_index(index, path, self.format)
        index = _part_of(index, shards_of_split(index, split, path=path))
        paths = [join(self.source.root, name) for name in index.shard_names]
        infos = find_all(paths, self.store)
        if missing := [shard for shard, info in zip(paths, infos, strict=True) if info is None]:
            msg = f"{path}: {len(missing)} of its {len(paths)} shards are not beside it; the first is {missing[0]}"
            raise StorageError(msg, hint="if the shards are elsewhere, open the shards with index=FILE")
        opened = self.opened(index, paths, chosen, path)
        _compare(opened, [info for info in infos if info is not None], path, self.source)
        return opened

    def index_in_directory(self, path: str) -> Index | None:
        """Load the index beside the shards; None if the index does not fit the shards."""
        source = self.source
        try:
            index = load_index(path, store=self.store, cache_dir=self.cache_dir)
        except IndexFileError:
            if not is_sent_instead(path, self.store):
                raise
            return None
        if was_left_by_opening(index) and not describes(index, source, self.stat(source.paths)):
            _log.info("shards have changed since %s was published by an earlier opening: the index is made again", path)
            return None
        known = set(index.shard_names)
        if not source.complete and (new := [name for name in source.names if name not in known]):
            _log.info("%s: the index %s lacks %d shards and is not used; %s", source.typed, path, len(new), new[0])
            return None
        return index


def _part_of(index: Index, shards: list[int]) -> Index:
    return index if shards == list(range(index.num_shards)) else subset(index, shards)


def format_of_index(index: Index, index_path: str, format: str | Format | None) -> Format:  # noqa: A002
    """Return the format of an index's shards, which ``format`` must match.

    Raises `IndexFileError`: the index was made with another format; `SourceError`: the index was made with a format
    that is not shoal's own, and ``format`` is None.
    """
    options = index.metadata.get(OPTIONS, {})
    if format is None:
        return format_named(index.format, options)
    chosen = format_given(format)
    if chosen.name != index.format:
        msg = f"format={chosen.name!r} was given, but the index {index_path} is of {index.format!r} shards"
        raise IndexFileError(msg, hint="leave out format=, or name another index")
    # A name alone has no options, so the options of the index apply.
    is_plain = isinstance(format, str) and options_in_name(format) is None
    if not is_plain and options_of(chosen) != options:
        msg = f"format={chosen.name!r} has {options_of(chosen)}, but the index {index_path} was made with {options}"
        raise IndexFileError(msg, hint="leave out format=, or make the index again with this format=")
    return format_named(index.format, options) if is_plain else chosen


def _given_index(
    index: str, source: Source, storage_options: Mapping[str, Any] | None, cache_dir: str
) -> tuple[Index, str]:
    """Load the index of ``index=``, which may be in another store than the shards; return it and its path."""
    if schemes_of([index]) == {""}:
        path = str(Path(expand_home(local_path(index))).absolute())
        return load_index(path, store=LocalStore()), path
    same = schemes_of([index]) == schemes_of(source.paths)
    other = with_retries(open_store(index, storage_options if same else None), storage_options)
    return load_index(object_path(index), store=other, cache_dir=cache_dir), object_path(index)


def refuse_unfinished(source: Source, store: Store) -> None:
    """Raise `SourceError` if a directory holds an unfinished packing, whose shards are not all of the dataset."""
    if source.complete and _beside(source, PACKING_PLAN, store) is not None:
        msg = f"{source.typed}: a packing was begun here and is not finished; its shards are not all of the dataset"
        hint = "run the same `shoal pack` or `repack` again to finish the packing, or remove it with "
        hint += "`shoal pack --clean`; use a glob to read the existing shards"
        raise SourceError(msg, hint=hint)


def _beside(source: Source, name: str, store: Store) -> ObjectInfo | None:
    """Find the file of this name beside the shards; None if there is none or access is forbidden."""
    if source.root.endswith("://"):  # shards of several hosts or buckets
        return None
    path = join(source.root, name)
    try:
        return store.find(path)
    except StorageError as error:
        # Some stores answer "forbidden" for objects that do not exist.
        if not ((is_forbidden(error) or is_without_ranges(error)) and scheme_of(path)):
            raise
        level = logging.WARNING if is_without_ranges(error) else logging.INFO
        _log.log(level, "nothing is read beside the shards: %s", error.message)
        return None


def _compare(opened: Opened, infos: Sequence[ObjectInfo], index_path: str, source: Source) -> None:
    """Log the shards that differ from the index, and the cost of scanning them, which every machine pays once."""
    index = opened.index
    if suspects := [shard for shard, info in enumerate(infos) if not opened.check.is_accepted(shard, info)]:
        num_bytes = sum(infos[shard].num_bytes for shard in suspects)
        cost = f"{num_bytes:,} bytes" if index.extent_checksum is not None else f"up to {num_bytes:,} bytes"
        text = (
            "%d of %d shards differ in size or time from %s (the first is %s): each machine scans these shards again "
            "before use, and reads %s; `%s` writes the new sizes and times into the index"
        )
        first, repair = infos[suspects[0]].path, _repair_command(source, index_path)
        _log.warning(text, len(suspects), len(infos), index_path, first, cost, repair)
    warn_of_unversioned(infos, index_path)


def _repair_command(source: Source, index_path: str) -> str:
    """Return the shell command that updates an index of sound shards."""
    is_beside = index_path in (join(source.root, INDEX_NAME), *source.paths)
    words = [index_path] if is_beside else ["SHARDS" if source.kind == "list" else source.typed, "--index", index_path]
    output = ["--output", "FILE"] if scheme_of(index_path) in ("http", "https") else []
    return shlex.join(["shoal", "verify", *words, "--repair-index", *output])

"""The source of shards, listed again: known shards keep their numbers, new shards come after them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import ShoalError, SourceError, StorageError
from shoal.figures import counted
from shoal.formats.shard_format import Format
from shoal.index.table import Index
from shoal.indexing.generations.appending import AddColumns, append_shards, compare_listing, with_columns_of
from shoal.indexing.index_files import bound_cache, load_index, save_index
from shoal.indexing.manifests_beside import Described
from shoal.indexing.open_source import described_shards, open_source, refuse_unfinished, shards_of
from shoal.indexing.opened_dataset import Opened
from shoal.indexing.split_selection import SplitLike, select_split
from shoal.storage.cache_directory import cache_directory, mark_used
from shoal.storage.files.local_store import LocalStore
from shoal.storage.files.machine_locks import machine_lock
from shoal.storage.retry import retried, rule_of, with_retries
from shoal.storage.sources.source import SourceLike, printed, texts_of
from shoal.storage.stat_many import stat_all
from shoal.storage.store_of_url import in_store, open_store
from shoal.storage.urls import without_secrets

_log = logging.getLogger("shoal")

_FEW = 3  # names in a message


@dataclass(frozen=True)
class RelistedSource:
    """The `Latest` of shards: the arguments of `shoal.open`, and the reader of columns of new shards."""

    source: SourceLike
    split: SplitLike = None
    index: str | os.PathLike[str] | None = None
    format: str | Format | None = None
    storage_options: Mapping[str, Any] | None = None
    add_columns: AddColumns | None = None

    @property
    def name(self) -> str:
        """The source, split and index, as the user named them."""
        texts = [without_secrets(text) for text in texts_of(self.source)[0]]
        return json.dumps(
            [texts, str(self.split), None if self.index is None else without_secrets(os.fspath(self.index))]
        )

    def look_again(self, opened: Opened) -> Opened:
        """Return the dataset with the shards that the source has now; ``opened`` itself if they are the same.

        If the source is an index, or ``index`` was given, the index file says which shards there are. Else the source
        is listed, and only new shards are read, once on each machine. A warning names shards that left.
        """
        store_once = open_store(in_store(self.source, self.storage_options), self.storage_options)
        look = partial(shards_of, self.source, self.format, store_once)
        shards, suffixes = retried(
            look, rule_of(self.storage_options), what=f"find the shards of {printed(self.source)}"
        )
        if shards.kind == "index" or self.index is not None:
            return self._by_index(opened)
        store = with_retries(store_once, self.storage_options)
        selected = select_split(shards, self.split, suffixes=suffixes, store=store)
        if selected.left_out:
            msg = f"{shards.typed}: its own splits exclude single samples, so it cannot be looked at again"
            raise SourceError(msg, hint="open the shards of a split by a glob, or make a new run")
        described = described_shards(selected.source, self.format, store)
        refuse_unfinished(described.source, store)
        return self._relisted(opened, described)

    def _by_index(self, opened: Opened) -> Opened:
        """Return the dataset of the index file, which `shoal index --append` may have made longer."""
        given = {"split": self.split, "index": self.index, "format": self.format}
        again = open_source(self.source, storage_options=self.storage_options, **given)  # type: ignore[arg-type]
        if again.index.fingerprint == opened.index.fingerprint:
            return opened
        _warn_of_missing(opened.index, [n for n, name in enumerate(opened.index.shard_names)
                                        if name not in set(again.index.shard_names)])  # fmt: skip
        again = with_columns_of(again, opened, self.add_columns)
        return replace(again, cache=opened.cache, past=opened.past, latest=opened.latest)

    def _relisted(self, opened: Opened, described: Described) -> Opened:
        source, index = described.source, opened.index
        listed = compare_listing(index, source)
        if not listed.new_names and not listed.missing:
            return opened
        _warn_of_missing(index, listed.missing)
        path_of = dict(zip(index.shard_names, opened.paths, strict=True))
        path_of.update(zip(source.names, source.paths, strict=True))
        appended, path = self._cached_or_made(opened, described, listed.new_paths, listed.missing)
        paths = tuple(path_of[name] for name in appended.shard_names)
        check = opened.check.of_part(appended, paths)
        _log.info("%s: %s", source.typed, f"{counted(len(listed.new_names), 'new shard')} for the next epoch")
        return replace(opened, index=appended, paths=paths, check=check, index_path=path)

    def _cached_or_made(
        self, opened: Opened, described: Described, new_paths: tuple[str, ...], missing: tuple[int, ...]
    ) -> tuple[Index, str | None]:
        """Return the index with the new shards, from the cache of this machine if another process has made it."""
        index = opened.index
        infos = stat_all(new_paths, opened.store)
        words = [index.fingerprint, sorted(index.columns), missing, described.source.names]
        words += [(info.path, info.num_bytes, info.version) for info in infos]
        key = hashlib.blake2b(json.dumps(words).encode(), digest_size=16).hexdigest()
        directory, local = cache_directory(), LocalStore()
        path = str(Path(directory, "indexes", f"{key}.index"))
        with machine_lock(f"{path}.lock", what=f"indexes {len(new_paths)} new shards") as signal_waiting:
            mark_used(path)
            try:
                if local.find(path) is not None:
                    return load_index(path, store=local, trusted=True), path
            except ShoalError as error:
                _log.warning("the cached index cannot be used and is made again: %s", error.message)
            made = append_shards(
                index, described.source, store=opened.store, format=opened.format, drop_missing=True,
                add_columns=self.add_columns, expected=described.expected, progress=lambda *_: signal_waiting(),
            ).index  # fmt: skip
            try:
                save_index(made, path, store=local)
                bound_cache(directory)
            except StorageError as error:
                _log.warning("the index cannot be kept, and each process makes it: %s", error.message)
                return made, None
        return made, path


def _warn_of_missing(index: Index, missing: tuple[int, ...] | list[int]) -> None:
    """Warn of shards that left the source, before the epoch that lacks them."""
    if not missing:
        return
    counts = np.diff(index.extent_first_sample[index.shard_first_extent])[list(missing)]
    names = [index.shard_names[number] for number in missing]
    more = f" and {len(names) - _FEW:,} more" if len(names) > _FEW else ""
    text = "%s left the source, with %s samples: %s. The next epoch lacks them, and later samples have other ids there"
    num_samples = f"{int(counts.sum()):,}"
    _log.warning(text, counted(len(names), "shard"), num_samples, ", ".join(names[:_FEW]) + more)

"""Publishing of an index beside remote shards when a dataset is opened, so that no other machine has to build it.

A published index is a by-product of opening and must not get in anybody's way: it is used only while it describes
exactly the shards that exist, and is rebuilt otherwise. An index that somebody made with `shoal index`, in contrast, is
trusted, and any difference from it is an error.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from shoal.errors import StorageError
from shoal.index.index_file import encode
from shoal.index.table import Index
from shoal.indexing.index_store import save_index
from shoal.indexing.shard_check import looks_indexed
from shoal.storage.objects.object_options import OBJECT_SCHEMES
from shoal.storage.sources.named_files import INDEX_NAME
from shoal.storage.sources.source import Source
from shoal.storage.store import Find, ObjectInfo, Put, PutIf
from shoal.storage.urls import join, scheme_of

_log = logging.getLogger("shoal")

_MARK = "left_by_opening"
# In other stores writing a file may mean more than that: a commit, for instance.
_PLAIN_STORES = (*OBJECT_SCHEMES, "memory")


class _Place(Find, Put, Protocol):
    """Store methods needed to publish an index."""


def hint_at_publishing(index: Index, *, source: Source, store: _Place, replaces: ObjectInfo | None = None) -> None:
    """Log how to make the index available to other machines; nothing is written beside shards unless asked for."""
    del index, store, replaces
    if _may_publish(source):
        _log.info("%s: publish_index=True keeps the index beside the shards, for other machines to find", source.asked)


def publish_beside(index: Index, *, source: Source, store: _Place, replaces: ObjectInfo | None = None) -> str | None:
    """Write the index beside the shards, if these are a whole directory of an object store; return its path or None.

    ``replaces`` is an outdated index published there earlier. An index that another machine has written since is kept,
    since it may know newer shards; a store without conditional writes is overwritten in any case. A refusal by the
    store is only logged.
    """
    if not _may_publish(source):
        return None
    path = join(source.root, INDEX_NAME)
    try:
        is_ours = _write(replace(index, metadata={**index.metadata, _MARK: True}), path, store, replaces)
    except StorageError as error:
        _log.warning("the index is not published beside the shards: %s", error.message)
        return None
    if not is_ours:
        _log.info("another machine has published an index meanwhile; it stays: %s", path)
        return None
    _log.info("the index is published beside the shards: %s", path)
    return path


def _may_publish(source: Source) -> bool:
    """True if the source is a whole directory of a store in which writing a file does nothing else."""
    return source.complete and scheme_of(source.root) in _PLAIN_STORES


def _write(index: Index, path: str, store: _Place, replaces: ObjectInfo | None) -> bool:
    """Write an index unless another one is there; return True if it was written."""
    try:
        if isinstance(store, PutIf):
            return store.put_if(path, encode(index), replaces=replaces)
    except StorageError as error:
        if error.errno != errno.ENOTSUP:
            raise
        text = "%s is written without a condition, and would replace what another machine wrote just now: %s"
        _log.info(text, path, error.message)
    save_index(index, path, store=store)
    return True


def was_left_by_opening(index: Index) -> bool:
    """True if this index was published by opening a dataset, not made by `shoal index`."""
    return bool(index.metadata.get(_MARK))


def describes(index: Index, source: Source, infos: Sequence[ObjectInfo]) -> bool:
    """True if the index has every shard of ``source`` as ``infos`` describe it and, for a directory, no other."""
    numbers = {name: number for number, name in enumerate(index.shard_names)}
    if not numbers.keys() >= set(source.names) or (source.complete and len(numbers) > len(source.names)):
        return False
    return all(looks_indexed(index, numbers[name], info) for name, info in zip(source.names, infos, strict=True))

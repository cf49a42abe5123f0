"""The ``index.json`` beside MDS shards that shoal wrote: shoal does not need it, but MosaicML Streaming does."""

from __future__ import annotations

import json

from shoal.errors import SourceError, StorageError
from shoal.formats.mds.writer import mds_index_of
from shoal.formats.metadata.manifests import MANIFEST_NAME, read_manifest
from shoal.index.table import Index
from shoal.storage.refusals import is_broken
from shoal.storage.store import Store
from shoal.storage.urls import join
from shoal.verify.damage_report import Damage, words_without_path


def has_manifest(index: Index) -> bool:
    """Return True if shoal wrote an ``index.json`` beside these shards."""
    return index.format == "mds" and "plan" in index.metadata


def manifest_damages(index: Index, root: str, *, store: Store) -> tuple[Damage, ...]:
    """Return the damage of the ``index.json`` in the directory ``root``: none or one."""
    path = join(root, MANIFEST_NAME)
    try:
        info = store.find(path)
    except StorageError as error:
        if not is_broken(error):
            raise
        return (_damage(words_without_path(error, path)),)
    if info is None:
        return (_damage("it is not there"),)
    try:
        data = bytes(store.read_range(path, 0, info.num_bytes))
        found = read_manifest(data, path=MANIFEST_NAME)
    except SourceError as error:
        return (_damage(error.message.removeprefix(f"{MANIFEST_NAME}: ")),)
    if found is None:
        return (_damage("it is some other JSON"),)
    # Compare all of it: Streaming takes names and encodings of columns from here, not from the shards.
    if json.loads(data).get("shards") != json.loads(mds_index_of(index))["shards"]:
        return (_damage("it names other shards or columns, or says that shards have other bytes or samples"),)
    return ()


def write_manifest(index: Index, root: str, *, store: Store) -> None:
    """Rewrite the ``index.json`` for the shards of this index."""
    store.put(join(root, MANIFEST_NAME), mds_index_of(index))


def _damage(what: str) -> Damage:
    return Damage("index", MANIFEST_NAME, None, None, f"{what}; readers of MosaicML Streaming need it")

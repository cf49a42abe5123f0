"""The ``index.json`` beside MDS shards of ours: shoal needs its own index alone, readers of Streaming need this one."""

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

__all__ = ["has_manifest", "manifest_damages", "write_manifest"]


def has_manifest(index: Index) -> bool:
    """Whether shoal has written one beside these shards."""
    return index.format == "mds" and "plan" in index.metadata


def manifest_damages(index: Index, root: str, *, store: Store) -> tuple[Damage, ...]:
    """What is wrong with the ``index.json`` in the directory ``root``: nothing, or one thing."""
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
    # All of it, as readers of Streaming take names and encodings of columns from here, and not from the shards.
    if json.loads(data).get("shards") != json.loads(mds_index_of(index))["shards"]:
        return (_damage("it names other shards or columns, or says that shards have other bytes or samples"),)
    return ()


def write_manifest(index: Index, root: str, *, store: Store) -> None:
    """Write it anew, for the shards of this index."""
    store.put(join(root, MANIFEST_NAME), mds_index_of(index))


def _damage(what: str) -> Damage:
    return Damage("index", MANIFEST_NAME, None, None, f"{what}; readers of MosaicML Streaming need it")

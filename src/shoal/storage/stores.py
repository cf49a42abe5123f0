"""Which store reads a source: chosen by the scheme of its URLs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.errors import SourceError, UsageError
from shoal.storage.http import HttpStore
from shoal.storage.local import LocalStore
from shoal.storage.memory import MemoryStore
from shoal.storage.protocol import Store
from shoal.storage.remote_sources import members_of
from shoal.storage.sources import SourceLike, schemes_of, texts_of
from shoal.storage.urls import without_secrets

__all__ = ["open_store", "store_of"]


def open_store(source: SourceLike, storage_options: Mapping[str, Any] | None = None) -> Store:
    """The store that reads ``source``, as yet without a connection.

    Raises
    ------
    SourceError
        No store knows the scheme, or the source mixes schemes.
    UsageError
        The store does not know an option, or a library that it needs is not installed.
    """
    texts, _ = texts_of(source)
    schemes = schemes_of(texts)
    if len(schemes) > 1:
        named = ", ".join(f"{scheme}://" if scheme else "files of this machine" for scheme in sorted(schemes))
        msg = f"the source mixes {named}: all its shards lie in one kind of store"
        raise SourceError(msg, hint="open each on its own")
    store = store_of(texts[0] if "" not in schemes else "", storage_options)
    if isinstance(store, HttpStore):
        for url in members_of(texts):
            store.learn(url)
    return store


def store_of(url: str, storage_options: Mapping[str, Any] | None = None) -> Store:
    """The store for one URL, or for a path of this machine."""
    options = dict(storage_options or {})
    scheme = next(iter(schemes_of([url])))
    if scheme in ("http", "https"):
        return HttpStore(options)
    if scheme not in ("", "memory"):
        msg = f"{without_secrets(url)}: no store knows the scheme {scheme}://"
        raise SourceError(msg, hint="http(s):// and memory:// are known, and files of this machine")
    if options:
        place = f"{scheme}://" if scheme else "files of this machine"
        msg = f"storage_options: {place} take none, and {', '.join(sorted(options))} was given"
        raise UsageError(msg, hint="leave storage_options out")
    return MemoryStore() if scheme else LocalStore()

"""Choice of the store for a source: a filesystem that is passed in, else one by the scheme of its URLs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.errors import SourceError, UsageError
from shoal.plugins.doors import Door, names
from shoal.storage.files.local_store import LocalStore
from shoal.storage.http.http_client import say_what_is_faster
from shoal.storage.http.http_options import positive_seconds
from shoal.storage.http.http_store import HttpStore
from shoal.storage.memory_store import MemoryStore
from shoal.storage.objects.fsspec_store import FileSystemStore, filesystem_for, url_in
from shoal.storage.objects.object_options import OBJECT_SCHEMES
from shoal.storage.objects.object_store import ObjectStore
from shoal.storage.sources.remote_patterns import members_of
from shoal.storage.sources.source import SourceLike, schemes_of, texts_of
from shoal.storage.store_protocol import Store
from shoal.storage.urls import has_unescaped_password, without_secrets

DEADLINE = "deadline_seconds"


def in_store(source: SourceLike, storage_options: Mapping[str, Any] | None) -> SourceLike:
    """Return ``source``; with the option ``filesystem``, return the URLs of its paths in that filesystem."""
    options: object = storage_options  # callers may pass something else
    if not isinstance(options, Mapping | None):
        msg = f"storage_options is a dict, not {type(options).__name__}"
        raise UsageError(msg, hint='storage_options={"region": "eu-west-1"}')
    filesystem = (storage_options or {}).get("filesystem")
    if filesystem is None:
        return source
    texts, is_single = texts_of(source)
    urls = [url_in(filesystem, text) for text in texts]
    return urls[0] if is_single else urls


def options_of_sides(
    source: SourceLike, url: str, storage_options: Mapping[str, Any] | None
) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """Return the options of a source and of an output: options of a remote store do not go to files of this machine.

    Both sides get the options if a filesystem is passed in, or if both are local; a local store then refuses them.
    """
    options = dict(storage_options or {})
    are_local = [schemes_of(texts_of(side)[0]) == {""} for side in (source, url)]
    if not options or "filesystem" in options or all(are_local):
        return storage_options, storage_options
    return None if are_local[0] else options, None if are_local[1] else options


def open_store(source: SourceLike, storage_options: Mapping[str, Any] | None = None) -> Store:
    """Return the store that reads ``source``; opens no connection.

    Raises `SourceError` if no store knows the scheme, or the source mixes schemes; `UsageError` if the store does not
    know an option, or a library that it needs is missing.
    """
    texts, _ = texts_of(source)
    schemes = schemes_of(texts)
    if len(schemes) > 1:
        kinds = ", ".join(f"{scheme}://" if scheme else "files of this machine" for scheme in sorted(schemes))
        msg = f"the source mixes {kinds}: all its shards must be in one kind of store"
        raise SourceError(msg, hint="open each on its own")
    for text in texts:
        if has_unescaped_password(text):
            msg = f"{without_secrets(text)}: the password in this URL has an unescaped /, ? or #, which ends a host"
            raise SourceError(msg, hint="escape them as %2F, %3F and %23, or give the password in storage_options")
    store = _store_of(next(iter(schemes)), without_secrets(texts[0]), dict(storage_options or {}))
    if isinstance(store, HttpStore):
        for url in members_of(texts):
            store.learn(url)
    return store


def deadline_of(storage_options: Mapping[str, Any] | None) -> float | None:
    """Return the deadline for retries in seconds, or None; raise `UsageError` if it is invalid."""
    requested = (storage_options or {}).get(DEADLINE)
    return None if requested is None else positive_seconds(DEADLINE, requested)


def _store_of(scheme: str, shown: str, options: dict[str, Any]) -> Store:
    options.pop(DEADLINE, None)  # an option of the retries
    if (filesystem := options.pop("filesystem", None)) is not None:
        _refuse(options, "a filesystem object takes none")
        return FileSystemStore(filesystem)
    if scheme in STORES:
        return STORES.make(scheme, options)
    if (filesystem_of_scheme := filesystem_for(scheme, options)) is not None:
        return FileSystemStore(filesystem_of_scheme)
    msg = f"{shown}: no store knows the scheme {scheme}://"
    tables = (other for other in names("shoal.tables") if not other.startswith("."))
    more = "".join(f", {other}://" for other in (*(other for other in STORES if other not in STORES.own), *tables))
    hint = f"shoal reads http(s)://, s3://, gs://, az://, memory://{more}, and paths; with fsspec also its schemes"
    raise SourceError(msg, hint=hint)


def _https(options: dict[str, Any]) -> Store:
    say_what_is_faster()
    return HttpStore(options)


def _memory(options: dict[str, Any]) -> Store:
    _refuse(options, "memory:// takes none")
    return MemoryStore()


def _files(options: dict[str, Any]) -> Store:
    num_files = options.pop("max_open_files", None)
    _refuse(options, "files of this machine take only max_open_files")
    return LocalStore() if num_files is None else LocalStore(max_open=_num_open(num_files))


STORES: Door[Store] = Door(
    "shoal.stores",
    {"": _files, "memory": _memory, "http": HttpStore, "https": _https, **dict.fromkeys(OBJECT_SCHEMES, ObjectStore)},
    members=(
        "read_range", "reads_ahead", "advise", "stat", "find", "put", "map", "reader", "list", "delete", "close",
    ),
)  # fmt: skip
"""Makers of stores by scheme; a maker receives the options."""


def _num_open(max_open: object) -> int:
    """Return how many files a store keeps open if ``max_open`` files may be open in all; readers need the rest."""
    text = str(max_open)
    if isinstance(max_open, bool) or not text.isdecimal() or int(text) < 1:
        msg = f"storage_options: max_open_files is a number of files, 1 or more; got {max_open!r:.40}"
        raise UsageError(msg, hint='{"max_open_files": 32}')
    return max(1, int(text) * 3 // 4)


def _refuse(options: Mapping[str, Any], who_takes: str) -> None:
    if options:
        msg = f"storage_options: {who_takes}, but {', '.join(sorted(options))} was given"
        raise UsageError(msg, hint="leave them out")

"""Resolution of URLs, with or without globs and braces, to objects in a remote store.

A name with a known suffix is assumed to be a shard, which saves a request; the first read shows if it does not exist.
All other names are resolved by listing, once per directory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from shoal.errors import SourceError, StorageError
from shoal.storage.objects.object_options import OBJECT_SCHEMES
from shoal.storage.sources.patterns import expand_braces, has_braces, has_magic, matcher
from shoal.storage.sources.shard_selection import (
    INDEX_NAME,
    INDEX_SUFFIX,
    NamedFiles,
    SourceKind,
    has_suffix,
    nearest_names,
    select_matches,
    select_shards,
)
from shoal.storage.store_protocol import ObjectInfo, Store
from shoal.storage.urls import is_top, join, object_path, parent, relative, scheme_of, tagged_path, without_secrets

# Checking this many objects one by one takes longer than listing their directory.
_MANY_MEMBERS = 8
# But a directory may hold far more objects than are needed: then the listing is given up.
_LISTED_PER_MEMBER = 4
_LISTED_AT_LEAST = 2000


def remote_files(texts: Sequence[str], suffixes: Sequence[str], store: Store) -> list[NamedFiles]:
    """Return the files in ``store`` that each text names; ``texts`` are URLs of one scheme."""
    members = dict.fromkeys(members_of(texts))
    num_alike = Counter(map(object_path, members))
    # Paths of URLs that differ in the query alone include its digest.
    paths = {url: object_path(url) if num_alike[object_path(url)] == 1 else tagged_path(url) for url in members}
    return [_named(text, paths, suffixes, store) for text in texts]


def members_of(texts: Sequence[str]) -> list[str]:
    """Return every URL that ``texts`` with braces name, with its query."""
    return [member for text in texts for member in expand_braces(text)]


def _named(text: str, paths: dict[str, str], suffixes: Sequence[str], store: Store) -> NamedFiles:
    if has_braces(text):
        return _members(text, paths, suffixes, store)
    if _is_glob(text):
        return NamedFiles("glob", _fixed_directory(text), _matches(text, suffixes, store))
    path = paths[text]
    if _looks_like_file(text, suffixes):
        kind: SourceKind = "index" if object_path(text).endswith(INDEX_SUFFIX) else "file"
        return NamedFiles(kind, parent(path), [path])
    return _directory_or_file(path, suffixes, store)


def _is_glob(text: str) -> bool:
    # Brackets before the path belong to the address of a host.
    url = object_path(text)
    return has_magic(url[_first_of_path(url) :])


def _first_of_path(url: str) -> int:
    """Return the position of the path: in memory, or in the user's filesystem, there may be no bucket."""
    first = url.find("://") + 3
    if scheme_of(url) not in ("http", "https", *OBJECT_SCHEMES):
        return first
    slash = url.find("/", first)
    return slash + 1 if slash >= 0 else len(url)


def _looks_like_file(url: str, suffixes: Sequence[str]) -> bool:
    # A program answers a URL with a query, which has nothing below it.
    path = object_path(url)
    is_named = has_suffix(path, (*suffixes, INDEX_SUFFIX))
    return is_named or (path != url and "?" in url and not path.endswith("/"))


def _directory_or_file(path: str, suffixes: Sequence[str], store: Store) -> NamedFiles:
    directory = path if is_top(path) else path.rstrip("/")
    if scheme_of(path) in ("http", "https"):
        index = join(directory, INDEX_NAME)
        if store.find(index) is not None:
            return NamedFiles("index", directory, [index])
        if not path.endswith("/") and store.find(path) is not None:
            return NamedFiles("file", parent(path), [path])
        msg = f"{path}: there is no {INDEX_NAME}, and http cannot list other files"
        hint = f"name the shards by braces or a list, or add the {INDEX_NAME} that `shoal index` makes"
        raise SourceError(msg, hint=hint)
    below = [info.path for info in store.list(directory)]
    if below:
        return select_shards(directory, below, suffixes)
    if store.find(path) is not None:
        return NamedFiles("file", parent(path), [path])
    raise SourceError(f"{path}: there is no such object, and nothing below it", hint=_nearby(path, store))


def _members(text: str, paths: dict[str, str], suffixes: Sequence[str], store: Store) -> NamedFiles:
    members = list(expand_braces(text))
    listed = _listed(text, len(members), store)
    paths_of_members: list[str] = []
    missing: list[str] = []
    for member in members:
        path = paths[member]
        if _is_glob(member):
            paths_of_members += _matches(member, suffixes, store)
        elif (listed is None and _looks_like_file(member, suffixes)) or (listed is not None and path in listed):
            paths_of_members.append(path)
        elif listed is not None and _looks_like_file(member, suffixes):
            missing.append(path)
        else:
            paths_of_members += _directory_or_file(path, suffixes, store).paths
    if missing:
        shown = without_secrets(text) if scheme_of(text) in ("http", "https") else text
        msg = f"{shown}: {len(missing)} of the {len(members)} files it names are missing; the first is {missing[0]}"
        raise SourceError(msg, hint=_nearby(missing[0], store))
    return NamedFiles("braces", _fixed_directory(text), paths_of_members)


def _listed(text: str, num_members: int, store: Store) -> set[str] | None:
    """Return the objects in the pattern's fixed directory, if the listing is short; the store remembers them."""
    if num_members < _MANY_MEMBERS:
        return None
    most = num_members * _LISTED_PER_MEMBER + _LISTED_AT_LEAST
    try:
        infos = list(islice(store.list(_fixed_directory(text)), most + 1))
    except StorageError as error:
        if error.transient:
            raise
        return None  # some users may read but not list
    return {info.path for info in infos} if len(infos) <= most else None


def _matches(pattern: str, suffixes: Sequence[str], store: Store) -> list[str]:
    directory = _fixed_directory(pattern)
    infos = list(store.list(directory))
    if any(info.path == object_path(pattern) for info in infos):  # such an object takes precedence, as files do
        return [object_path(pattern)]
    is_match = matcher(relative(object_path(pattern), directory))
    paths = [info.path for info in infos]
    matched = [path for path in paths if is_match(relative(path, directory))]
    if shards := select_matches(directory, object_path(pattern), matched, paths, suffixes):
        return shards
    raise SourceError(f"{pattern}: matches nothing", hint=_among(directory, pattern, infos))


def _fixed_directory(pattern: str) -> str:
    """Return the directory before the first special character of a pattern: it does not depend on the matches."""
    url = object_path(pattern)
    first = _first_of_path(url)
    if "{" in url[:first]:  # braces may name several buckets
        return url[: url.find("://") + 3]
    special = re.compile(r"[*?\[{]").search(url, first)
    return parent(url[: special.start()] if special else url)


def _nearby(path: str, store: Store) -> str:
    directory = parent(path)
    try:
        return _among(directory, path, list(islice(store.list(directory), _LISTED_AT_LEAST)))
    except (StorageError, SourceError):  # buckets cannot be listed
        return "check the URL"


def _among(directory: str, missing: str, infos: Sequence[ObjectInfo]) -> str:
    """Return a hint: the contents of a directory, with the names most like the missing one first."""
    names = [relative(info.path, directory) for info in infos]
    if not names:
        return f"nothing is below {directory}"
    return f"{directory} holds {nearest_names(relative(missing, directory), names)}"

"""Recognition of tables: by scheme, by the suffix of a directory, or by the log in a directory."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from posixpath import splitext

from shoal.formats.format_registry import FORMATS
from shoal.indexing.tables.snapshot_protocol import TableKind
from shoal.plugins.doors import Door
from shoal.storage.cache_directory import expand_home
from shoal.storage.objects.object_options import OBJECT_SCHEMES
from shoal.storage.sources.local_patterns import local_path
from shoal.storage.sources.shard_selection import INDEX_SUFFIX
from shoal.storage.sources.source import SourceLike, schemes_of, texts_of
from shoal.storage.sources.table_logs import LoggedTableError
from shoal.storage.urls import object_path, scheme_of

_KINDS: Door[TableKind] = Door("shoal.tables", {}, members=("name", "snapshot"))
_SCHEMES_OF_STORES = frozenset(("", "file", "http", "https", "memory", *OBJECT_SCHEMES))
# The entry point of a suffix is not named as its kind of table.
_BY_SUFFIX: Door[TableKind] = Door(_KINDS.group, {}, members=("snapshot",))


def named_table(source: SourceLike) -> tuple[TableKind, str] | None:
    """Return the kind of a table and the table without its scheme, if the name of the source says that it is one.

    >>> named_table("data/train-{000..009}.tar")
    """
    texts, is_single = texts_of(source)
    if not is_single:
        return None
    text = texts[0].rstrip("/")
    scheme, name = scheme_of(text), text.lower()
    if scheme not in _SCHEMES_OF_STORES and scheme in _KINDS:
        kind = _KINDS.make(scheme)
        # Other names of a scheme are files: hf://datasets/user/name/*.tar.
        claims = getattr(kind, "claims", None)
        if claims is None:
            return kind, text.removeprefix(f"{scheme}://")
        return (kind, text) if claims(texts[0]) else None
    own = next((suffix for suffix in _KINDS.own if suffix.startswith(".") and name.endswith(suffix)), None)
    suffix = own or splitext(name)[1]
    if suffix and suffix not in _suffixes_of_files() and suffix in _BY_SUFFIX:
        return _BY_SUFFIX.make(suffix), text
    return None


@lru_cache(maxsize=1)
def _suffixes_of_files() -> frozenset[str]:
    """Return the suffixes that need no look at installed packages, which takes about 45 ms."""
    last = (f".{suffix.rpartition('.')[2]}" for entry in FORMATS.values() for suffix in entry.suffixes)
    return frozenset((*last, INDEX_SUFFIX, ".json", ".yaml"))


def table_of_log(source: SourceLike, error: LoggedTableError) -> tuple[TableKind, str]:
    """Return the kind of the table whose log was found, and its directory.

    Raises ``error`` if shoal cannot read such a table, or the source is not the directory of the table alone.
    """
    texts, is_single = texts_of(source)
    named = (
        object_path(texts[0]) if schemes_of(texts) != {""} else str(Path(expand_home(local_path(texts[0]))).absolute())
    )
    if not error.kind or error.kind not in _KINDS or not is_single or named.rstrip("/") != error.root:
        raise error
    return _KINDS.make(error.kind), error.root

"""The library of Lance: its import, opened versions of tables, and its errors as shoal's."""

from __future__ import annotations

import errno
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from shoal.errors import ShardError, SourceError, StorageError, UsageError
from shoal.hints import pip_install
from shoal.storage.urls import scheme_of, without_secrets

_MISSING = re.compile(r"not ?found|no such file", re.IGNORECASE)
_DAMAGED = re.compile(r"corrupt file", re.IGNORECASE)  # an OSError, like failed reads
_MOST_TEXT = 300


class Location(NamedTuple):
    """A version of a table: the URL that `lance.dataset` takes, its branch ("" for the main one), and its number."""

    url: str
    version: int
    branch: str = ""

    @property
    def words(self) -> str:
        """The version and the table, for errors."""
        branch = f" of branch {self.branch!r}" if self.branch else ""
        return f"version {self.version}{branch} of the Lance table {without_secrets(self.url)}"


def lance_library() -> Any:
    """Return the module lance; raises `UsageError` if it is not installed."""
    try:
        import lance  # noqa: PLC0415  # optional, and slow to import
    except ImportError as error:
        raise UsageError("Lance tables are read by the package pylance", hint=pip_install("pylance")) from error
    return lance


def opened_version(location: Location, options: Mapping[str, str]) -> Any:
    """Return a version of a table, opened by Lance."""
    lance = lance_library()
    with lance_errors(location.words, is_remote=bool(scheme_of(location.url))):
        if not location.branch:
            return lance.dataset(location.url, version=location.version, storage_options=dict(options) or None)
        main = lance.dataset(location.url, storage_options=dict(options) or None)
        return main.checkout_version((location.branch, location.version))


@contextmanager
def lance_errors(words: str, *, is_remote: bool, shard: str = "") -> Iterator[None]:
    """Turn errors of Lance into errors of shoal that name the version of the table.

    A missing file or version is final; errors of values, and files that Lance calls corrupt, are of the ``shard``, if
    one is given; other errors of a remote store are transient.
    """
    try:
        yield
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        if isinstance(error, SourceError | StorageError | ShardError | UsageError):
            raise
        text = str(error)
        short = text[:_MOST_TEXT] + "..." * (len(text) > _MOST_TEXT)
        if _MISSING.search(text):
            hint = "cleanup_old_versions() removes files of old versions: open the current version, or a tagged one"
            failure = StorageError(f"{words}: a file is missing: {short}", hint=hint)
            failure.errno = errno.ENOENT
            raise failure from None
        if shard and (isinstance(error, ValueError | KeyError) or _DAMAGED.search(text)):
            hint = "the table is damaged, or this pylance is too old for it: pip install --upgrade pylance"
            raise ShardError(f"{words}: {short}", shard=shard, hint=hint) from None
        raise StorageError(f"{words}: {short}", hint="this is the message of Lance", transient=is_remote) from None


class OpenedTable:
    """A version of a table, opened once in each process, since a forked child cannot use Lance's threads.

    >>> table = OpenedTable(Location("t.lance", 1), {})
    >>> table.location.words
    'version 1 of the Lance table t.lance'
    """

    def __init__(self, location: Location, options: Mapping[str, str]) -> None:
        self.location, self.options = location, dict(options)
        self._dataset: tuple[int, Any] = 0, None
        self._first_rows: dict[int, int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenedTable, (self.location, self.options)

    @property
    def is_remote(self) -> bool:
        """True if the files are in another store than files of this machine."""
        return scheme_of(self.location.url) not in ("", "file")

    def dataset(self) -> Any:
        """Return the opened version; several threads may open it, and the last one stays."""
        pid, dataset = self._dataset
        if pid != os.getpid():
            dataset = opened_version(self.location, self.options)
            self._dataset = os.getpid(), dataset
        return dataset

    def first_rows(self) -> dict[int, int]:
        """Return the number of rows before each fragment, without deleted ones."""
        if not self._first_rows:
            fragments = self.dataset().get_fragments()
            left = [each.physical_rows - each.num_deletions for each in fragments]
            firsts = itertools.accumulate(left, initial=0)
            self._first_rows = {each.metadata.id: first for each, first in zip(fragments, firsts, strict=False)}
        return self._first_rows

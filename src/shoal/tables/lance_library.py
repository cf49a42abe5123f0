"""The library of Lance: its import, opened versions of tables, its options of stores, and its errors as shoal's."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from shoal.errors import ShardError, SourceError, StorageError, UsageError
from shoal.hints import pip_install
from shoal.storage.urls import scheme_of, without_secrets

# shoal's names of options, and the names of the crate object_store, which Lance passes on.
_NAMES_FOR_ALL = {"anonymous": "skip_signature", "anon": "skip_signature", "endpoint_url": "endpoint"}
_NAMES = {
    "s3": {"key": "access_key_id", "secret": "secret_access_key", "token": "session_token"},
    "gs": {"endpoint": "base_url"},
    "az": {"account": "account_name"},
}
_PREFIXES = {"s3": "aws_", "gs": "google_", "az": "azure_"}
_OF_THE_CLIENT = frozenset(("allow_http", "connect_timeout", "timeout", "proxy_url", "user_agent"))
_SECONDS = {"timeout_seconds": "timeout", "connect_timeout_seconds": "connect_timeout"}
_OF_SHOAL = frozenset(("deadline_seconds", "max_open_files"))
_KINDS = {"s3a": "s3", "gcs": "gs", "azure": "az", "abfs": "az", "abfss": "az"}
_MISSING = re.compile(r"not ?found|no such file", re.IGNORECASE)
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


def lance_options(url: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return ``storage_options=`` as Lance takes them: texts, under the names of the crate object_store.

    Raises `UsageError` for an option that Lance cannot have.

    >>> lance_options("s3://bucket/a.lance", {"endpoint": "http://localhost:9000", "anonymous": True})
    {'aws_endpoint': 'http://localhost:9000', 'allow_http': 'true', 'aws_skip_signature': 'true'}
    """
    scheme = scheme_of(url)
    kind = _KINDS.get(scheme, scheme)
    known: dict[str, str] = {}
    for option, value in options.items():
        if option in _OF_SHOAL or kind in ("", "file"):
            continue
        if not isinstance(value, str | int | float):
            msg = (
                f"storage_options: {option}= is {type(value).__name__}, but Lance's own client takes texts and numbers"
            )
            raise UsageError(msg, hint="keys, an endpoint, a region and time limits reach the client of Lance")
        name = _NAMES_FOR_ALL.get(option, option)
        name = _NAMES.get(kind, {}).get(name, name)
        if option in _SECONDS:
            known[_SECONDS[option]] = f"{value} seconds"
            continue
        is_plain = name in _OF_THE_CLIENT or name.startswith(tuple(_PREFIXES.values()))
        known[name if is_plain else f"{_PREFIXES.get(kind, '')}{name}"] = _text(value)
        if name == "endpoint" and str(value).startswith("http://"):
            known["allow_http"] = "true"
    return known


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

    A missing file or version is final; other errors of a remote store are transient; other errors of values are of the
    ``shard``, if one is given.
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
        if shard and isinstance(error, ValueError | KeyError):
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


def _text(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

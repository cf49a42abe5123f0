"""Requests for tables: a version, a time, a predicate and files, as all kinds of tables understand them."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from shoal.errors import SourceError, UsageError
from shoal.hints import pip_install
from shoal.indexing.tables.snapshot_protocol import TableRequest
from shoal.storage.sources.source import Source
from shoal.storage.urls import join, relative, scheme_of, without_secrets

_log = logging.getLogger("shoal")

Condition = tuple[str, str, Any]
"""A column, an operator and a value."""
Predicate = list[list[Condition]]
"""Alternatives, each a list of conditions that hold together."""

_OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "in", "not in")
_PREDICATE = 'a list of conditions, predicate=[("day", ">=", "2026-01-01")], or a list of such lists (or)'


def needs(library: str, what: str) -> UsageError:
    """Return the error for a missing library, which names the extra of shoal."""
    return UsageError(f"{what} needs {library}, which is not installed", hint=pip_install(library))


def root_of(request: TableRequest) -> str:
    """Return the directory of a table: an absolute path of this machine, or a URL."""
    root = _local(request.root)
    return root if scheme_of(root) else os.path.abspath(os.path.expanduser(root))  # noqa: PTH100, PTH111  # texts


def refuse_split(request: TableRequest) -> None:
    """Raise `SourceError` if a split is wanted: a table has none."""
    if request.split not in (None, "all"):
        msg = f"{without_secrets(request.root)}: split={request.split!r} was given, but a table has no splits"
        raise SourceError(msg, hint='leave out split=; predicate=[("split", "=", "train")] chooses files by a column')


def refuse_version_and_time(request: TableRequest) -> None:
    """Raise `UsageError` if a version and a time are both given."""
    if request.wanted.version is not None and request.wanted.timestamp is not None:
        raise UsageError("version= and timestamp= were both given", hint="give one of them")


def time_of(timestamp: str) -> datetime:
    """Return a time in ISO 8601; without an offset it is in UTC. Raises `UsageError` for another text.

    >>> time_of("2026-11-01T12:00:00").isoformat()
    '2026-11-01T12:00:00+00:00'
    """
    try:
        time = datetime.fromisoformat(timestamp)
    except (TypeError, ValueError):
        msg = f"timestamp= is a time in ISO 8601; got {timestamp!r:.60}"
        raise UsageError(msg, hint='timestamp="2026-11-01T12:00:00Z"') from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def predicate_of(request: TableRequest) -> Predicate:
    """Return the predicate as alternatives of conditions; empty without one. Raises `UsageError` if it is malformed.

    Conditions are written as for filters of pyarrow.
    """
    given = request.wanted.predicate
    if given is None:
        return []
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise UsageError(f"predicate= is {given!r:.80}", hint=_PREDICATE)
    is_flat = all(_is_condition(part) for part in given)
    groups = [given] if is_flat else given
    return [[_condition(part) for part in _group(group)] for group in groups]


def source_of(typed: str, root: str, paths: Sequence[str]) -> Source:
    """Return files of a table as a source, in this order; their names are relative to ``root`` if all lie below it.

    Other files are named relative to the directory that holds all files.
    """
    plain = [_local(path) for path in paths]
    root = root.rstrip("/")
    if not all(path.startswith(f"{root}/") for path in plain):
        root = os.path.commonpath(plain) if len(plain) > 1 else os.path.dirname(plain[0])  # noqa: PTH120
        root = re.sub(r":/(?!/)", "://", root, count=1)
    names = tuple(relative(path, root) for path in plain)
    return Source("list", without_secrets(typed), root, names, tuple(plain))


def source_of_nothing(typed: str) -> Source:
    """Return a source without files."""
    return Source("list", without_secrets(typed), "", (), ())


def path_below(root: str, path: str) -> str:
    """Return the path of a file in a log: relative to the table, or absolute.

    >>> path_below("/data/table", "day=1/a.parquet"), path_below("/data/table", "file:///old/a.parquet")
    ('/data/table/day=1/a.parquet', '/old/a.parquet')
    """
    return _local(path) if scheme_of(path) or path.startswith("/") else join(root, path)


def pruned(request: TableRequest, source: Source, num_files: int) -> Source:
    """Return the source with the number of files that the predicate leaves out, and log this number."""
    if request.wanted.predicate is None:
        return source
    num_left_out = num_files - len(source.paths)
    text = "%s: predicate= leaves out %d of %d files by their statistics; rows of the other files are not filtered"
    _log.info(text, without_secrets(request.root), num_left_out, num_files)
    return replace(source, left_out={".parquet": num_left_out} if num_left_out else {})


def _local(path: str) -> str:
    """Return a URL of a file on this machine as a path, and other URLs with the schemes that stores know."""
    if scheme_of(path) != "file":
        return re.sub(r"^s3[an]://", "s3://", path)
    return re.sub(r"^file:/*", "/", path)


def _is_condition(part: object) -> bool:
    return isinstance(part, Sequence) and not isinstance(part, str) and len(part) == 3 and isinstance(part[0], str)


def _group(group: object) -> Sequence[Any]:
    if not isinstance(group, Sequence) or isinstance(group, str) or not group or not all(map(_is_condition, group)):
        raise UsageError(f"predicate= has {group!r:.80}, which is not a list of conditions", hint=_PREDICATE)
    return group


def _condition(part: Sequence[Any]) -> Condition:
    name, operator, value = part
    operator = {"==": "="}.get(operator, operator)
    if operator not in _OPERATORS:
        msg = f"predicate= has the operator {operator!r}; the operators are {', '.join(_OPERATORS)}"
        raise UsageError(msg, hint=_PREDICATE)
    if value is None or (operator.endswith("in") and (isinstance(value, str | bytes | Mapping) or not list(value))):
        msg = f"predicate= compares {name!r} with {value!r:.60}"
        hint = 'give a value, or a list of values for "in" and "not in"; missing values cannot be chosen'
        raise UsageError(msg, hint=hint)
    return name, operator, list(value) if operator.endswith("in") else value

"""Resolution of a path, a glob or braces to files of this machine.

A file or directory of exactly that name always takes precedence over a pattern, also as the front of a longer one.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from itertools import islice
from urllib.parse import unquote, urlsplit

from shoal.errors import SourceError
from shoal.storage.files.small_files import is_lost_directory, lost_directories
from shoal.storage.sources.patterns import expand_braces, has_braces
from shoal.storage.sources.shard_selection import (
    INDEX_SUFFIX,
    NamedFiles,
    SourceKind,
    nearest_names,
    select_matches,
    select_shards,
)
from shoal.storage.sources.table_logs import logs_beside, refuse_partition, refuse_table
from shoal.storage.storage_errors import link_target
from shoal.storage.urls import scheme_of

_MAX_LISTED = 10_000


def local_files(text: str, suffixes: Sequence[str]) -> NamedFiles:
    """Return the files of this machine that ``text`` names: a path, a glob, braces."""
    pattern = os.path.expanduser(local_path(text))
    path = os.path.abspath(pattern)
    if os.path.isdir(path):
        return _below(path, suffixes)
    if os.path.lexists(path):
        kind: SourceKind = "index" if path.endswith(INDEX_SUFFIX) else "file"
        return NamedFiles(kind, os.path.dirname(path), [path])
    rest = _after_literal(pattern)
    if has_braces(rest):
        return NamedFiles("braces", fixed_directory(pattern), _members(pattern, suffixes))
    if glob.has_magic(rest):
        return NamedFiles("glob", fixed_directory(pattern), _matches(pattern, suffixes))
    raise SourceError(f"{text}: there is no such file or directory", hint=_what_is_there(path))


def local_path(text: str) -> str:
    """Return the local path of a ``file://`` URL; return a path, or another URL, unchanged."""
    if scheme_of(text) != "file" or os.path.lexists(text):
        return text
    url = urlsplit(text)
    if url.netloc not in ("", "localhost"):
        msg = f"{text}: a file:// URL names this machine, not {url.hostname}"
        raise SourceError(msg, hint="write file:///path, with three slashes")
    # Not url.path: it ends at "?" or "#", which a file name or a glob may contain.
    return unquote(text[len("file:") :].removeprefix("//").removeprefix("localhost"))


def _below(directory: str, suffixes: Sequence[str]) -> NamedFiles:
    refuse_partition(directory)
    paths = []
    for folder, directories, files in os.walk(directory, followlinks=True, onerror=_cannot_list):
        for name in directories:
            refuse_table(os.path.join(folder, name, ""), directory)
        directories[:] = [name for name in directories if not name.startswith(".") and not _is_circle(folder, name)]
        for name in files:
            if is_lost_directory(path := os.path.join(folder, name)):
                raise _lost(path)
        paths += [os.path.join(folder, name) for name in files]
    return select_shards(directory, paths, suffixes)


def _is_circle(folder: str, name: str) -> bool:
    """Return True if a link to a directory leads back to a directory that contains it."""
    path = os.path.join(folder, name)
    return os.path.islink(path) and (os.path.realpath(folder) + os.sep).startswith(os.path.realpath(path) + os.sep)


def _lost(path: str) -> SourceError:
    """Return the error of a link to a lost directory; a link with the name of a shard fails when it is opened."""
    msg = f"{path} is a link to {link_target(path)}, which does not exist"
    return SourceError(msg, hint="restore its target, or remove the link; or name the shards by a glob without it")


def _cannot_list(error: OSError) -> None:
    msg = f"{error.filename}: the directory cannot be listed: {error.strerror}"
    raise SourceError(msg, hint="check its permissions") from error


def _members(pattern: str, suffixes: Sequence[str]) -> list[str]:
    paths: list[str] = []
    missing: list[str] = []
    count = 0
    rest = _after_literal(pattern)
    front = pattern[: len(pattern) - len(rest)]
    for count, end in enumerate(expand_braces(rest), start=1):  # noqa: B007  # its last value is the number of members
        member = front + end
        path = os.path.abspath(member)
        if os.path.isdir(path):
            paths.extend(_below(path, suffixes).paths)
        elif os.path.lexists(path):  # opening a dangling link raises an error
            paths.append(path)
        elif glob.has_magic(_after_literal(member)):
            paths.extend(_matches(member, suffixes))
        else:
            missing.append(path)
    if missing:
        msg = f"{pattern}: {len(missing)} of the {count} files it names are missing; the first is {missing[0]}"
        raise SourceError(msg, hint=_what_is_there(missing[0]))
    return paths


def _matches(pattern: str, suffixes: Sequence[str]) -> list[str]:
    for path in lost_directories(as_glob(pattern)):
        raise _lost(os.path.abspath(path))
    paths = [os.path.abspath(path) for path in glob.glob(as_glob(pattern), recursive=True)]
    # Dangling links stay: opening one raises an error, and leaving it out would lose data silently.
    files, directory = {path for path in paths if not os.path.isdir(path)}, fixed_directory(pattern)
    refuse_partition(directory)
    if shards := select_matches(directory, os.path.abspath(pattern), files, logs_beside(files, directory), suffixes):
        return shards
    if paths:
        msg = f"{pattern}: matches {len(paths)} directories and no shards"
        raise SourceError(msg, hint=f"for the files below them, write {os.path.join(pattern, '**', '*')} with a suffix")
    msg = f"{pattern}: matches nothing"
    raise SourceError(msg, hint=_what_is_there(os.path.join(fixed_directory(pattern), os.path.basename(pattern))))


def as_glob(pattern: str) -> str:
    """Return the pattern for `glob`: directories with exactly these names match nothing else."""
    rest = _after_literal(pattern)
    return glob.escape(pattern[: len(pattern) - len(rest)]) + rest


def fixed_directory(pattern: str) -> str:
    """Return the directory before the first special character of a pattern: it does not depend on the matches."""
    rest = _after_literal(pattern)
    fixed = pattern[: len(pattern) - len(rest)] + re.split(r"[*?\[{]", rest, maxsplit=1)[0]
    return os.path.abspath(os.path.dirname(os.path.join(os.getcwd(), fixed)))


def _after_literal(pattern: str) -> str:
    """Return the rest of a pattern after existing directories: "*.tar" of "run[1]/*.tar", if run[1] exists."""
    parts, num_literal = pattern.split(os.sep), 0
    for number in range(1, len(parts)):
        directory = os.sep.join(parts[:number])
        if glob.has_magic(directory) or "{" in directory:
            if not os.path.isdir(directory):
                break
            num_literal = number
    return os.sep.join(parts[num_literal:])


def _what_is_there(path: str) -> str:
    """Return a hint: the nearest existing directory above ``path``, with the names most like the missing one."""
    directory, name = os.path.split(path)
    while not os.path.isdir(directory) and os.path.dirname(directory) != directory:
        directory, name = os.path.split(directory)
    try:
        with os.scandir(directory) as entries:
            names = [entry.name + "/" * entry.is_dir() for entry in islice(entries, _MAX_LISTED)]
    except OSError as error:
        return f"{directory} cannot be listed: {error.strerror}"
    return f"{directory} has no {name}; it holds {nearest_names(name, names)}" if names else f"{directory} is empty"

"""What a source names: files from a path, a directory, a glob, braces, or a list of those.

A file or directory of exactly that name always wins over what its characters could mean.
"""

# Paths are text in this room, as they are for every other store.
# ruff: noqa: PTH100, PTH109, PTH111, PTH112, PTH113, PTH114, PTH118, PTH119, PTH120, PTH122, PTH207

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit

from shoal.errors import SourceError
from shoal.storage.braces import expand_braces, has_braces
from shoal.storage.nearby import what_is_there
from shoal.storage.protocol import ObjectInfo, Stat

__all__ = ["INDEX_SUFFIX", "Source", "SourceKind", "SourceLike", "expand", "without_secrets"]

INDEX_SUFFIX = ".index"

SourceKind = Literal["file", "directory", "glob", "braces", "list", "index"]
SourceLike = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class Source:
    """The files that a source names, in the order in which their samples are numbered.

    ``asked`` is the source as it was written. ``root`` is the absolute directory that all of them lie below, as far
    as it can be told from what was written, so that it does not move when files come and go. ``names`` are relative
    to it, with "/" between parts and never ".."; ``paths`` are absolute. Of kind "index", the one name is that of an
    index file. ``complete`` says that all the shards of ``root`` were asked for, not some of them by name.
    """

    kind: SourceKind
    asked: str
    root: str
    names: tuple[str, ...]
    paths: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether the source is a whole directory, so that a shard left out would be data lost."""
        return self.kind == "directory"

    def stat(self, store: Stat) -> list[ObjectInfo]:
        """Size and version of every file; one call each, so a million files take seconds on a local disk."""
        return [store.stat(path) for path in self.paths]


@dataclass(frozen=True, slots=True)
class _Named:
    """What one pattern names: its files, and the directory that the pattern fixes."""

    kind: SourceKind
    root: str
    paths: list[str]


def expand(source: SourceLike, *, suffixes: Sequence[str]) -> Source:
    """The files that ``source`` names.

    A file names itself. A directory names the files below it, at any depth, whose names end in one of ``suffixes``,
    sorted by path; hidden files, files in hidden directories and index files are left out. A glob (``*``, ``?``,
    ``[...]``, ``**``) names the files it matches, sorted. Braces (``{000000..001023}``, ``{a,b}``) name every member,
    in the order written, and each must be there; ``::`` between sources, or a list, names them one after another.
    A file that ends in ``.index`` is an index. ``~`` and ``file://`` are understood.

    Raises
    ------
    SourceError
        Nothing, or not all of it, is there; the same file is named twice; or the scheme of a URL is not supported.
    """
    parts = _parts(source)
    asked = ", ".join(_printed(part) for part in parts)
    texts = [text for part in parts for text in _split(_as_text(part))]
    if not texts:
        msg = "the source is empty: it names no files"
        raise SourceError(msg, hint="give a file, a directory, a glob, braces, or a list of those")
    found = [_named(text, suffixes) for text in texts]
    alone = len(texts) == 1 and isinstance(source, str | os.PathLike)
    return _joined(found, kind=found[0].kind if alone else "list", asked=asked)


def _parts(source: object) -> list[object]:
    if isinstance(source, str | os.PathLike):
        return [source]
    if isinstance(source, Sequence) and not isinstance(source, bytes | bytearray | memoryview):
        return list(source)
    msg = f"a source is a path or a list of paths, not {type(source).__name__}"
    raise SourceError(msg, hint="give a file, a directory, a glob, braces, or a list of those")


def without_secrets(url: str) -> str:
    """``url`` without user, password, query and fragment: what may be printed."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+:/+)([^/?#]*)([^?#]*)", url)
    if match is None:
        return url
    scheme, host, path = match.groups()
    return f"{scheme}{host.rpartition('@')[2]}{path}"


def _printed(part: object) -> str:
    return without_secrets(os.fspath(part)) if isinstance(part, str | os.PathLike) else repr(part)


def _as_text(part: object) -> str:
    text = os.fspath(part) if isinstance(part, str | os.PathLike) else part
    if not isinstance(text, str):
        msg = f"a source is a path or a list of paths; this one holds {type(part).__name__} ({part!r:.80})"
        raise SourceError(msg, hint="paths are str or os.PathLike, and lists are not nested")
    if not text:
        msg = "the source is an empty path"
        raise SourceError(msg, hint='write "." for the current directory')
    return text


def _split(text: str) -> list[str]:
    """``a::b`` is a list in WebDataset's notation."""
    if "::" not in text or os.path.lexists(os.path.expanduser(text)):
        return [text]
    return [part for part in text.split("::") if part]


def _named(text: str, suffixes: Sequence[str]) -> _Named:
    pattern = os.path.expanduser(_local(text))
    path = os.path.abspath(pattern)
    if os.path.lexists(path):
        return _existing(path, suffixes)
    if has_braces(pattern):
        return _members(pattern, suffixes)
    if glob.has_magic(pattern):
        return _Named("glob", _fixed_directory(pattern), _matches(pattern))
    msg = f"{text}: there is no such file or directory"
    raise SourceError(msg, hint=what_is_there(path))


def _local(text: str) -> str:
    if text.startswith("pipe:"):
        msg = f"{text.split(maxsplit=1)[0]} ...: sources that run a command are not supported"
        raise SourceError(msg, hint="name the files themselves")
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", text)
    if match is None or os.path.lexists(text):
        return text
    url = urlsplit(text)
    if match[1].lower() != "file":
        msg = f"{without_secrets(text)}: the scheme {match[1]}:// is not supported yet"
        raise SourceError(msg, hint="paths and file:// work now; copy or mount the data")
    if url.netloc not in ("", "localhost"):
        msg = f"{without_secrets(text)}: a file:// URL names this machine, not {url.hostname}"
        raise SourceError(msg, hint="write file:///path, with three slashes")
    # Not url.path: it ends at "?" or "#", which in a file name mean themselves (or a glob).
    return unquote(text[len("file:") :].removeprefix("//").removeprefix("localhost"))


def _existing(path: str, suffixes: Sequence[str]) -> _Named:
    if os.path.isdir(path):
        return _Named("directory", path, _below(path, suffixes))
    kind: SourceKind = "index" if path.endswith(INDEX_SUFFIX) else "file"
    return _Named(kind, os.path.dirname(path), [path])


def _below(directory: str, suffixes: Sequence[str]) -> list[str]:
    wanted, others = [], Counter[str]()
    for place, directories, files in os.walk(directory, followlinks=True, onerror=_cannot_list):
        directories[:] = [name for name in directories if not name.startswith(".") and not _is_circle(place, name)]
        for name in files:
            if name.startswith(".") or name.endswith(INDEX_SUFFIX):
                continue
            if name.lower().endswith(tuple(suffixes)):
                wanted.append(os.path.join(place, name))
            else:
                others[os.path.splitext(name)[1] or name] += 1
    if not wanted:
        seen = ", ".join(f"{count} x {suffix}" for suffix, count in others.most_common(5)) or "no files"
        msg = f"{directory}: the directory holds no shards: looked for {', '.join(suffixes)}, found {seen}"
        raise SourceError(msg, hint="name the directory that holds the shards, or the files by a glob, with format=")
    return sorted(wanted)


def _is_circle(place: str, name: str) -> bool:
    """Whether a linked directory leads back to one that it lies in."""
    path = os.path.join(place, name)
    return os.path.islink(path) and (os.path.realpath(place) + os.sep).startswith(os.path.realpath(path) + os.sep)


def _cannot_list(error: OSError) -> None:
    msg = f"{error.filename}: the directory cannot be listed: {error.strerror}"
    raise SourceError(msg, hint="check its permissions") from error


def _members(pattern: str, suffixes: Sequence[str]) -> _Named:
    paths: list[str] = []
    missing: list[str] = []
    count = 0
    for member in expand_braces(pattern):
        count += 1
        path = os.path.abspath(member)
        if os.path.isfile(path):
            paths.append(path)
        elif os.path.isdir(path):
            paths.extend(_below(path, suffixes))
        elif glob.has_magic(member):
            paths.extend(_matches(member))
        else:
            missing.append(path)
    if missing:
        msg = f"{pattern}: {len(missing)} of the {count} files it names are missing; the first is {missing[0]}"
        raise SourceError(msg, hint=what_is_there(missing[0]))
    return _Named("braces", _fixed_directory(pattern), paths)


def _matches(pattern: str) -> list[str]:
    found = [os.path.abspath(path) for path in glob.glob(pattern, recursive=True)]
    files = sorted({path for path in found if os.path.isfile(path) and not path.endswith(INDEX_SUFFIX)})
    if files:
        return files
    if found:
        msg = f"{pattern}: matches {len(found)} directories and no shards"
        raise SourceError(msg, hint=f"for the files below them, write {os.path.join(pattern, '**', '*')} with a suffix")
    msg = f"{pattern}: matches nothing"
    raise SourceError(msg, hint=what_is_there(os.path.join(_fixed_directory(pattern), os.path.basename(pattern))))


def _fixed_directory(pattern: str) -> str:
    """The part of a pattern before its first special character, as a directory: the same whatever it matches."""
    fixed = re.split(r"[*?\[{]", os.path.join(os.getcwd(), pattern), maxsplit=1)[0]
    return os.path.abspath(os.path.dirname(fixed))


def _joined(found: list[_Named], *, kind: SourceKind, asked: str) -> Source:
    if kind == "list" and any(named.kind == "index" for named in found):
        msg = f"{asked}: an index is a source of its own, and not a part of a list"
        raise SourceError(msg, hint="pass it as index=, next to the list of shards")
    root = os.path.commonpath([named.root for named in found])
    paths = [path for named in found for path in named.paths]
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if twice:
        msg = f"{asked}: names {len(twice)} of {len(paths) - len(twice)} files more than once; the first is {twice[0]}"
        raise SourceError(msg, hint="name each file once: a sample is delivered exactly once per epoch")
    names = tuple(os.path.relpath(path, root).replace(os.sep, "/") for path in paths)
    return Source(kind=kind, asked=asked, root=root, names=names, paths=tuple(paths))

"""Resolution of a source to shards: a path or URL, a directory, a glob, braces, or a list of such texts."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal.errors import SourceError, UsageError
from shoal.storage.sources.local_patterns import local_files
from shoal.storage.sources.remote_patterns import remote_files
from shoal.storage.sources.shard_selection import NamedFiles, SourceKind
from shoal.storage.store_protocol import ObjectInfo, Store
from shoal.storage.urls import relative, scheme_of, without_secrets

# Shell commands that are sources in other tools (``pipe:aws s3 cp URL -``), and their options that change no bytes.
_COMMANDS = {
    ("aws", "s3", "cp"): {"--quiet", "--no-progress", "--only-show-errors"},
    ("gsutil", "cat"): set[str](),
    ("gsutil", "-q", "cat"): set[str](),
    ("gcloud", "storage", "cat"): set[str](),
    ("curl",): {"-s", "-L", "-f", "-S", "-sL", "-Ls", "-fsSL", "-sfL", "-sSL", "--silent", "--location", "--fail"},
}

# Filesystems of fsspec that precede another URL.
_BARE_FILESYSTEM = re.compile(r"simplecache|filecache|blockcache|cached|dir|reference|zip|tar|libarchive")
_FILESYSTEMS_IN_FILES = ("zip", "tar", "libarchive", "reference", "dir")

_SOURCE_HINT = "give a file, a directory, a glob, braces, or a list of them"

SourceLike = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class Source:
    """The files that a source names, in the order in which their samples are numbered.

    ``typed`` is the source as the user typed it. ``root`` is the absolute directory that holds all files; new files do
    not change ``root``, because it depends on ``typed`` alone. ``names`` are relative to ``root``, with "/" between
    parts and never ".."; ``paths`` are absolute. A source of kind "index" has one name, of an index file. If splits
    were chosen, ``split_names`` are the names of the files of all splits, relative to their directory. ``left_out``
    counts files that are not shards by suffix.
    """

    kind: SourceKind
    typed: str
    root: str
    names: tuple[str, ...]
    paths: tuple[str, ...]
    split_names: tuple[str, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """True if the source is a whole directory, so that omitting a shard would lose data."""
        return self.kind == "directory"

    def stat(self, store: Store) -> list[ObjectInfo]:
        """Return size and version of every file, by one call each: a million files take seconds on a local disk."""
        return [store.stat(path) for path in self.paths]


def expand(source: SourceLike, *, suffixes: Sequence[str], store: Store | None = None) -> Source:
    """Return the files that ``source`` names; ``store`` looks up URLs, and paths need none.

    A file names itself. A directory names the files below it, at any depth, whose names end in one of ``suffixes``,
    sorted by path; hidden files, files in hidden directories and index files are left out. A glob (``*``, ``?``,
    ``[...]``, ``**``) names the files it matches, sorted, but hidden ones only if it writes their "." or "_". Braces
    (``{000000..001023}``, ``{a,b}``) name every member, in the written order, and each must exist; ``::`` between
    sources, or a list, names them one after another. A file that ends in ``.index`` is an index. A source may use
    ``~``, ``file://``, and commands of other tools that read one URL (``pipe:aws s3 cp URL -``).

    On this machine, a file or directory of exactly that name takes precedence over a pattern. Remotely, a name that
    ends in one of ``suffixes`` is a file, and the first request for it shows if it does not exist.

    Raises `SourceError` if some of the files do not exist or one is named twice, `StorageError` if a store cannot list.
    """
    texts, is_single = texts_of(source)
    typed = printed(source)
    if schemes_of(texts) in (set(), {""}):
        parts = [local_files(text, suffixes) for text in texts]
    elif store is None:
        msg = f"{typed}: expanding a URL needs a store"
        raise UsageError(msg, hint="expand(source, suffixes=..., store=open_store(source))")
    else:
        parts = remote_files(texts, suffixes, store)
    return _joined(parts, kind=parts[0].kind if is_single else "list", typed=typed)


def texts_of(source: SourceLike) -> tuple[list[str], bool]:
    """Return the patterns of a source, and True if the source is a single pattern instead of a list.

    Raises `SourceError` if the source is empty, has a value that is not text, or has an unknown command.
    """
    untyped: object = source  # callers may pass something else
    if isinstance(untyped, str | os.PathLike):
        parts: Sequence[object] = [untyped]
    elif isinstance(untyped, Sequence) and not isinstance(untyped, bytes | bytearray | memoryview):
        parts = untyped
    else:
        raise SourceError(f"a source is a path or a list of paths, not {type(untyped).__name__}", hint=_SOURCE_HINT)
    texts = [_with_both_slashes(_url_of_pipe(text)) for part in parts for text in _split(_as_text(part))]
    if not texts:
        raise SourceError("the source is empty: it names no files", hint=_SOURCE_HINT)
    return texts, len(texts) == 1 and isinstance(source, str | os.PathLike)


def schemes_of(texts: Sequence[str]) -> set[str]:
    """Return the schemes of URLs; "" for files of this machine."""
    schemes = {"" if os.path.lexists(text) else scheme_of(text) for text in texts}
    return {"" if scheme == "file" else scheme for scheme in schemes}


def printed(source: SourceLike) -> str:
    """Return the source as it was written, without secrets."""
    return ", ".join(without_secrets(text) for text in texts_of(source)[0])


def _as_text(part: object) -> str:
    text = os.fspath(part) if isinstance(part, str | os.PathLike) else part
    if not isinstance(text, str):
        msg = f"a source is a path or a list of paths; this list holds {type(part).__name__} ({part!r:.80})"
        raise SourceError(msg, hint="paths are str or os.PathLike, and lists are not nested")
    if not text:
        raise SourceError("the source is an empty path", hint='write "." for the current directory')
    return text


def _url_of_pipe(text: str) -> str:
    """Return the URL that a ``pipe:`` reads; return other texts unchanged.

    >>> _url_of_pipe("pipe:aws s3 cp s3://bucket/train-{000..127}.tar -")
    's3://bucket/train-{000..127}.tar'
    """
    if not text.startswith("pipe:"):
        return text
    try:
        words = shlex.split(text[len("pipe:") :])
    except ValueError:
        words = []
    for command, harmless in _COMMANDS.items():
        if tuple(words[: len(command)]) == command:
            rest = [word for word in words[len(command) :] if word not in harmless]
            if command[0] == "aws" and rest[-1:] == ["-"]:
                del rest[-1]
            if len(rest) == 1 and scheme_of(rest[0]):
                return rest[0]
    # The command itself may hold a secret.
    msg = f"pipe:{words[0] if words else ''} ...: shoal runs no commands, and this command does more than read a URL"
    raise SourceError(msg, hint="name the URL itself; headers and credentials go into storage_options")


def _split(text: str) -> list[str]:
    """Split ``a::b``, WebDataset's notation of a list."""
    if "::" not in text or os.path.lexists(os.path.expanduser(text)):
        return [text]
    if (url := _end_of_chain(text)) is not None:
        msg = f"{without_secrets(text)}: this is a chain of fsspec's filesystems, but shoal reads none"
        kept = "cache= keeps its chunks on this machine; or pass filesystem= in storage_options"
        hint = f"name {without_secrets(url)} itself: {kept}"
        raise SourceError(msg, hint=hint)
    # Not the "::" between the brackets of an address, as in http://[::1]:8000/.
    return [part for part in re.split(r"::(?![^\[\]/]*\])", text) if part]


def _end_of_chain(text: str) -> str | None:
    """Return the URL at the end of a chain of fsspec, ``simplecache::https://host/a.tar``; None for other texts."""
    first, _, rest = text.partition("::")
    is_filesystem = _BARE_FILESYSTEM.fullmatch(first) is not None or scheme_of(first) in _FILESYSTEMS_IN_FILES
    return rest if is_filesystem and scheme_of(rest) else None


def _joined(parts: list[NamedFiles], *, kind: SourceKind, typed: str) -> Source:
    if kind == "list" and any(named.kind == "index" for named in parts):
        msg = f"{typed}: an index cannot be a part of a list"
        raise SourceError(msg, hint="pass it as index=, next to the list of shards")
    root = _common([named.root for named in parts])
    paths = [path for named in parts for path in named.paths]
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if twice:
        msg = f"{typed}: names {len(twice)} of {len(paths) - len(twice)} files more than once; the first is {twice[0]}"
        raise SourceError(msg, hint="name each file once: a sample is delivered exactly once per epoch")
    names = tuple(relative(path, root) for path in paths)
    left_out = Counter[str]()
    for part in parts:
        left_out.update(part.left_out)
    return Source(kind=kind, typed=typed, root=root, names=names, paths=tuple(paths), left_out=dict(left_out))


def _with_both_slashes(text: str) -> str:
    """Restore the two slashes of a URL that `pathlib.Path` has merged into one."""
    if scheme_of(text) in ("", "file") or os.path.lexists(text):
        return text
    return re.sub(r":/(?!/)", "://", text, count=1)


def _common(roots: list[str]) -> str:
    """Return the directory that contains all ``roots``; for URLs, at most their scheme."""
    if not scheme_of(roots[0]):
        return os.path.commonpath(roots)
    scheme, mark, _ = roots[0].partition("://")
    parts = [root.partition("://")[2].split("/") for root in roots]
    # All roots share as many leading names as the lowest and the highest.
    lowest, highest = min(parts), max(parts)
    num_shared = next((i for i, part in enumerate(lowest) if highest[i : i + 1] != [part]), len(lowest))
    is_without_host = all(root.startswith(f"{scheme}:///") for root in roots)
    return f"{scheme}{mark}{'/'.join(lowest[:num_shared]) or '/' * is_without_host}"

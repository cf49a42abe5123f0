"""The files that one pattern names, before those of a whole source are joined."""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from shoal.errors import SourceError
from shoal.storage.sources.patterns import is_hidden, matcher
from shoal.storage.sources.table_logs import refuse_table, refuse_tables_of
from shoal.storage.urls import relative

_log = logging.getLogger("shoal")

INDEX_SUFFIX = ".index"
INDEX_NAME = "shoal.index"

PACKING = ".shoal-pack"
"""Directory beside shards in which a packing run keeps unfinished work; removed when all is done."""

PACKING_PLAN = f"{PACKING}/plan.json"

_HINT = (
    "name the directory that holds the shards, or the files by a glob, with format=; "
    'where each file is a sample: format="folder", or shoal.formats.Folder(suffixes=[...]) for files of other kinds'
)

SourceKind = Literal["file", "directory", "glob", "braces", "list", "index"]


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """The files that a pattern names, and the directory that its fixed part names.

    ``left_out`` counts by suffix the files below a directory that are no shards.
    """

    kind: SourceKind
    root: str
    paths: list[str]
    left_out: Mapping[str, int] = field(default_factory=dict)


_COMPRESSED = (".gz", ".zlib", ".bz2", ".xz", ".zst", ".zstd", ".br", ".snappy")
_OF_MACOS = "__MACOSX"
# Results that `Dataset.map` of a dataset loaded from disk leaves beside it, which are no part of it.
_CACHE_OF_DATASETS = re.compile(r"/cache-[0-9a-f]{16}(_\d+_of_\d+)?\.arrow$")
_NUMBERED = re.compile(r"-\d{5,}-of-\d{5,}$")  # as TensorFlow names the shards of a dataset, behind the suffix


def has_suffix(name: str, suffixes: Sequence[str]) -> bool:
    """Return True if a name has one of the suffixes, in either case, and perhaps ``-00000-of-00042`` behind it.

    >>> has_suffix("A.TFRecord-00000-of-00042", [".tfrecord"]), has_suffix("a.tfrecord-00042", [".tfrecord"])
    (True, False)
    """
    lowered, wanted = name.lower(), tuple(suffixes)
    return lowered.endswith(wanted) or ("-of-" in lowered and _NUMBERED.sub("", lowered).endswith(wanted))


def select_shards(directory: str, paths: Iterable[str], suffixes: Sequence[str]) -> NamedFiles:
    """Return those of the files below ``directory`` that are shards, sorted, and counts of the others.

    Shards whose name, or a directory in it, begins with "." or "_" are left out, and a warning counts
    them: so do the tools that write such names. ``_year=2024`` is a partition. Where each file is a sample, only "."
    hides one.

    Raises `SourceError` if there are none, or they belong to a table whose log says which of them count.
    """
    wanted, hidden, others = [], [], Counter[str]()
    marks = _marks(suffixes)
    for path in paths:
        name = path.rpartition("/")[2]
        refuse_table(path, directory)
        if name.endswith(INDEX_SUFFIX):
            continue
        if _is_hidden(path[len(directory) :], marks):
            hidden += [path] if has_suffix(name, suffixes) else []
            continue
        if has_suffix(name, suffixes):
            wanted.append(path)
        else:
            others[_suffix_of(name) or name] += 1
    if not wanted:
        seen = ", ".join(f"{count} x {suffix}" for suffix, count in others.most_common(5)) or "no files"
        seen += f", and {len(hidden)} whose names begin with _ or ." if hidden else ""
        msg = f"{directory}: the directory holds no shards: looked for {_listed(suffixes)}, found {seen}"
        # A user who asked for a folder already learns how to include the files that are there.
        kind = next((kind for kind, _ in others.most_common() if kind.startswith(".")), "")
        hint = f'format=shoal.formats.Folder(suffixes=["{kind}"]) takes {kind} files, each as a sample; so does a glob'
        raise SourceError(msg, hint=hint if kind and "metadata.csv" in suffixes else _HINT)
    if hidden:
        warn_of_hidden(directory, len(hidden), min(hidden))
    shards = sorted([path for path in wanted if not _CACHE_OF_DATASETS.search(path)] or wanted)
    return NamedFiles("directory", directory, shards, dict(others.most_common()))


def select_matches(
    directory: str, pattern: str, paths: Iterable[str], logs: Iterable[str], suffixes: Sequence[str]
) -> list[str]:
    """Return those of the files that a glob matches that a directory would not leave out, or that the glob names.

    ``directory`` is the fixed part of ``pattern``, ``logs`` the paths below it that may belong to the log of a table.
    As a shell does with ".", ``_*.parquet`` and ``_tmp/*`` name what begins with "_", and ``*`` does not.

    Raises `SourceError` if nothing else matches, or if the log of a table says which of the files count.
    """
    marks, is_named = _marks(suffixes), matcher(relative(pattern, directory), hides_underscores=True)
    shards: list[str] = []
    hidden: list[str] = []
    for path in sorted(path for path in paths if not path.endswith(INDEX_SUFFIX)):
        is_left_out = _is_hidden(path[len(directory) :], marks) and not is_named(relative(path, directory))
        (hidden if is_left_out else shards).append(path)
    refuse_tables_of((*shards, *hidden), logs, directory)
    if hidden and not shards:
        msg = f"{pattern}: matches nothing but {len(hidden)} files whose names begin with _ or ."
        raise SourceError(msg, hint=f"such names are those of unfinished work; name the directory itself: {hidden[0]}")
    if hidden:
        warn_of_hidden(directory, len(hidden), hidden[0])
    return shards


def _marks(suffixes: Sequence[str]) -> str:
    """Return the characters that hide what begins with one of them: where each file is a sample, only "."."""
    return "." if "metadata.csv" in suffixes else "._"


@lru_cache(maxsize=256)
def warn_of_hidden(directory: str, num_files: int, first: str) -> None:
    """Log what is left out, once: a directory is listed more than once, and one that is followed again and again."""
    text = "%s: files left out, since their names begin with _ or . as those of unfinished work: %d, the first is %s"
    _log.warning(text, directory, num_files, first)


def _is_hidden(below: str, marks: str) -> bool:
    """Return True if a part of a path is hidden by one of these marks, or is what macOS adds to archives."""
    if not any(f"/{mark}" in f"/{below}" for mark in (*marks, _OF_MACOS)):  # nearly always
        return False
    return any(part == _OF_MACOS or is_hidden(part, marks) for part in below.split("/"))


def _suffix_of(name: str) -> str:
    """Return the suffix of a name, from the last dot on; with the one before it if the file is compressed.

    >>> [_suffix_of(name) for name in ("v1.2/a.jsonl.zst", "a.v2.tar", "README")]
    ['.jsonl.zst', '.tar', '']
    """
    stem, last = os.path.splitext(name)
    inner = os.path.splitext(stem)[1] if last.lower() in _COMPRESSED else ""
    return inner + last


def _listed(suffixes: Sequence[str]) -> str:
    """Format the suffixes for messages; compressed ones, of which there are many times as many, are summarised."""
    plain = [suffix for suffix in suffixes if suffix.count(".") == 1 or "." not in suffix[1:]]
    others = {f".{suffix.rpartition('.')[2]}" for suffix in suffixes if suffix not in plain and suffix[0] == "."}
    if not plain:
        return ", ".join(suffixes)
    return ", ".join(plain) + (f" (also with {', '.join(sorted(others))})" if others else "")


def nearest_names(name: str, names: Sequence[str]) -> str:
    """Return up to three of ``names``, those most like ``name`` or else the first, and the number of the others."""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or sorted(names)[:3]
    return ", ".join(near) + (f", {len(names) - len(near)} more" if len(names) > len(near) else "")

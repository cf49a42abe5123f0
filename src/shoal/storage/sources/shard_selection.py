"""Selection of the shards among the files of one pattern."""

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
"""Directory beside shards with the unfinished work of a packing run, which removes it at its end."""

PACKING_PLAN = f"{PACKING}/plan.json"

_HINT = (
    "name the directory that holds the shards, or the files by a glob, with format=; "
    'if each file is a sample: format="folder", or shoal.formats.Folder(suffixes=[...]) for files of other kinds'
)

SourceKind = Literal["file", "directory", "glob", "braces", "list", "index"]


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """The files that a pattern names, and the directory that its fixed part names.

    ``left_out`` counts the other files below a directory by suffix.
    """

    kind: SourceKind
    root: str
    paths: list[str]
    left_out: Mapping[str, int] = field(default_factory=dict)


_COMPRESSED = (".gz", ".zlib", ".bz2", ".xz", ".zst", ".zstd", ".br", ".snappy")
_OF_MACOS = "__MACOSX"
# Results of `Dataset.map` of a dataset loaded from disk lie beside it, and do not belong to it.
_CACHE_OF_DATASETS = re.compile(r"/cache-[0-9a-f]{16}(_\d+_of_\d+)?\.arrow$")
_NUMBERED = re.compile(r"-\d{5,}-of-\d{5,}$")  # added by TensorFlow after the suffix of a shard


def has_suffix(name: str, suffixes: Sequence[str]) -> bool:
    """Return True if a name ends in one of the suffixes, ignoring case; ``-00000-of-00042`` may follow the suffix.

    >>> has_suffix("A.TFRecord-00000-of-00042", [".tfrecord"]), has_suffix("a.tfrecord-00042", [".tfrecord"])
    (True, False)
    """
    lowered, endings = name.lower(), tuple(suffixes)
    return lowered.endswith(endings) or ("-of-" in lowered and _NUMBERED.sub("", lowered).endswith(endings))


def select_shards(directory: str, paths: Iterable[str], suffixes: Sequence[str]) -> NamedFiles:
    """Return the shards among the files below ``directory``, sorted, and counts of the other files.

    Shards whose name, or a directory in it, begins with "." or "_" are left out, as by the tools that write such names,
    and a warning counts them. ``_year=2024`` is a partition. If each file is a sample, only "." hides a file.

    Raises `SourceError` if there are no shards, or if the log of a table decides which files are valid.
    """
    shards_below, hidden, num_by_suffix = [], [], Counter[str]()
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
            shards_below.append(path)
        else:
            num_by_suffix[_suffix_of(name) or name] += 1
    if not shards_below:
        contents = ", ".join(f"{count} x {suffix}" for suffix, count in num_by_suffix.most_common(5)) or "no files"
        contents += f", and {len(hidden)} whose names begin with _ or ." if hidden else ""
        msg = f"{directory}: the directory holds no shards: looked for {_listed(suffixes)}, found {contents}"
        # For format="folder", the hint says how to include these files.
        kind = next((kind for kind, _ in num_by_suffix.most_common() if kind.startswith(".")), "")
        hint = f'format=shoal.formats.Folder(suffixes=["{kind}"]) takes {kind} files, each as a sample; so does a glob'
        raise SourceError(msg, hint=hint if kind and "metadata.csv" in suffixes else _HINT)
    if hidden:
        warn_of_hidden(directory, len(hidden), min(hidden))
    shards = sorted([path for path in shards_below if not _CACHE_OF_DATASETS.search(path)] or shards_below)
    return NamedFiles("directory", directory, shards, dict(num_by_suffix.most_common()))


def select_matches(
    directory: str, pattern: str, paths: Iterable[str], logs: Iterable[str], suffixes: Sequence[str]
) -> list[str]:
    """Return the matches of a glob, without hidden files unless the glob names hidden files.

    ``directory`` is the fixed part of ``pattern``, ``logs`` the paths below it that may belong to the log of a table.
    As with "." in a shell, ``_*.parquet`` and ``_tmp/*`` match names that begin with "_", and ``*`` does not.

    Raises `SourceError` if nothing else matches, or if the log of a table decides which files are valid.
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
        raise SourceError(msg, hint=f"unfinished work has such names; name the directory itself: {hidden[0]}")
    if hidden:
        warn_of_hidden(directory, len(hidden), hidden[0])
    return shards


def _marks(suffixes: Sequence[str]) -> str:
    """Return the characters at the beginning of hidden names: only "." if each file is a sample."""
    return "." if "metadata.csv" in suffixes else "._"


@lru_cache(maxsize=256)
def warn_of_hidden(directory: str, num_files: int, first: str) -> None:
    """Log the files that are left out, once: some directories are listed again and again."""
    text = "%s: files left out, since their names begin with _ or . as in unfinished work: %d, the first is %s"
    _log.warning(text, directory, num_files, first)


def _is_hidden(below: str, marks: str) -> bool:
    """Return True if a part of a path is hidden by one of these marks, or added to archives by macOS."""
    if not any(f"/{mark}" in f"/{below}" for mark in (*marks, _OF_MACOS)):  # nearly always
        return False
    return any(part == _OF_MACOS or is_hidden(part, marks) for part in below.split("/"))


def _suffix_of(name: str) -> str:
    """Return the suffix of a name, from the last dot on; from the dot before it if the file is compressed.

    >>> [_suffix_of(name) for name in ("v1.2/a.jsonl.zst", "a.v2.tar", "README")]
    ['.jsonl.zst', '.tar', '']
    """
    stem, last = os.path.splitext(name)
    inner = os.path.splitext(stem)[1] if last.lower() in _COMPRESSED else ""
    return inner + last


def _listed(suffixes: Sequence[str]) -> str:
    """Format the suffixes for messages, with a summary of the many compressed ones."""
    plain = [suffix for suffix in suffixes if suffix.count(".") == 1 or "." not in suffix[1:]]
    others = {f".{suffix.rpartition('.')[2]}" for suffix in suffixes if suffix not in plain and suffix[0] == "."}
    if not plain:
        return ", ".join(suffixes)
    return ", ".join(plain) + (f" (also with {', '.join(sorted(others))})" if others else "")


def nearest_names(name: str, names: Sequence[str]) -> str:
    """Return up to three names, most like ``name`` or else the first, and the number of other names."""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or sorted(names)[:3]
    return ", ".join(near) + (f", {len(names) - len(near)} more" if len(names) > len(near) else "")

"""Names in an output: its shards, its plan, and its own name. The output must lie apart from the inputs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.errors import UsageError
from shoal.formats.column_paths import Column
from shoal.storage.cache_directory import expand_home
from shoal.storage.sources.local_patterns import local_path
from shoal.storage.sources.source import SourceLike, texts_of
from shoal.storage.urls import object_path, scheme_of, without_secrets

_MOST_PREFIX_BYTES = 128  # files have names of up to 255 bytes, and records add numbers, a digest and a plan


def plan_of(settings: Any) -> str:
    """Return the digest of requested settings, as JSON: the ``plan`` of an `Output`."""
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=16).hexdigest()


def shard_settings(
    format_name: str,
    *,
    shard_bytes: int,
    columns: Sequence[Column],
    prefix: str,
    extent_bytes: int,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the settings of shards without their samples, in the form of a plan's record."""
    return {
        "format": format_name,
        "shard_bytes": shard_bytes,
        "columns": [[column.name, column.path] for column in columns],
        "prefix": prefix,
        "extent_bytes": extent_bytes,
        "options": {name: repr(value) for name, value in options.items()},
    }


def check_prefix(prefix: str) -> str:
    """Return the prefix of shard names; `UsageError` if shards would lie elsewhere, be hidden, or not fit an index."""
    is_name = prefix and prefix[0] != "." and "/" not in prefix and prefix.isprintable()
    if not is_name or len(prefix.encode()) > _MOST_PREFIX_BYTES:
        msg = f"shards are named PREFIX-000000; {prefix!r} cannot be PREFIX"
        hint = "a prefix has no slash, no control characters, no dot at its beginning, and at most "
        raise UsageError(msg, hint=f"{hint}{_MOST_PREFIX_BYTES} bytes")
    return prefix


def names_of_shards(prefix: str, suffix: str, numbers: Sequence[int]) -> list[str]:
    """Return the names of shards by number.

    >>> names_of_shards("train", ".tar", [0, 12])
    ['train-000000.tar', 'train-000012.tar']
    """
    return [f"{prefix}-{number:06d}{suffix}" for number in numbers]


def check_apart(source: SourceLike, url: str | os.PathLike[str]) -> None:
    """Raise `UsageError` if the output lies in the source: the next run would read the output, too."""
    out = _resolved(os.fspath(url))
    texts, _ = texts_of(source)
    for text in texts:
        read = _resolved(text)
        if out == read or out.startswith(f"{read.rstrip('/')}/"):
            msg = f"{without_secrets(os.fspath(url))} lies in {without_secrets(text)}, and everything there is input"
            raise UsageError(msg, hint="write into a directory beside it")


def _resolved(text: str) -> str:
    path = local_path(text)
    return object_path(path).rstrip("/") if scheme_of(path) else str(Path(expand_home(path)).resolve())

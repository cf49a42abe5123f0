"""Check that the output lies outside the input: the next run would take it for input."""

from __future__ import annotations

import os
from pathlib import Path

from shoal.errors import UsageError
from shoal.storage.index_cache.home import with_home
from shoal.storage.sources.local_patterns import local_path
from shoal.storage.sources.source import SourceLike, texts_of
from shoal.storage.urls import plain, scheme_of, without_secrets


def check_apart(source: SourceLike, url: str | os.PathLike[str]) -> None:
    """Check that the output will not be taken for input.

    Raises
    ------
    UsageError
        The output is a directory that is read, or lies in one.
    """
    out = _place(os.fspath(url))
    texts, _ = texts_of(source)
    for text in texts:
        place = _place(text)
        if out == place or out.startswith(f"{place.rstrip('/')}/"):
            msg = f"{without_secrets(os.fspath(url))} lies in {without_secrets(text)}, all of which is input"
            raise UsageError(msg, hint="write into a directory beside it")


def _place(text: str) -> str:
    path = local_path(text)
    return plain(path).rstrip("/") if scheme_of(path) else str(Path(with_home(path)).resolve())

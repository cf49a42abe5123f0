"""Texts to be tokenized: rows of shards, or plain text, of which a document is a file or a line."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from posixpath import splitext
from typing import Any, Literal

from shoal.errors import SourceError, UsageError
from shoal.formats.compressed.codecs import CODEC_OF_SUFFIX
from shoal.formats.folder.reader import Folder
from shoal.formats.format_registry import FORMATS, format_of, suffixes_in_directories
from shoal.formats.rows.lines.reader import Text
from shoal.formats.shard_format import Format
from shoal.indexing.open_source import expanded
from shoal.storage.sources.source import Source, SourceLike, printed
from shoal.storage.store_of_url import open_store

Documents = Literal["file", "line"]

_TEXTS = tuple(suffix for name, each in FORMATS.items() if name.partition(".")[0] == "text" for suffix in each.suffixes)


def documents_format(
    source: SourceLike, documents: Documents | None, *, field: str, storage_options: Mapping[str, Any] | None = None
) -> Format | None:
    """Return the format in which texts are read, for `open_source`; None for shards, whose suffixes tell it.

    Of plain text, each file is a document, or with ``documents="line"`` each line that is not empty. Plain text are
    ``.txt`` and ``.text``, and files of any suffix that no format has (``.md``) where a glob, braces or a list name
    them; with ``documents``, all files that these name.

    Raises
    ------
    UsageError
        There are both shards and plain text, ``documents`` is given for shards, or compressed files are to be
        documents.
    """
    named = _named(source, (*suffixes_in_directories(), *_TEXTS), storage_options)
    found = named.paths
    may_be_any = named.kind != "directory"
    texts = [path for path in found if _is_text(path, may_be_any=may_be_any, is_asked=documents is not None)]
    if texts and len(texts) < len(found):
        other = next(path for path in found if path not in set(texts))
        msg = f"{printed(source)}: plain text, as {texts[0]}, and shards, as {other}"
        raise UsageError(msg, hint="name one kind by a glob: 'DIR/**/*.txt'")
    if not texts:
        if documents is not None:
            what = "shards, whose samples are the documents"
            msg = f"{printed(source)}: {what}, and documents={documents!r} was asked for"
            raise UsageError(msg, hint="leave it out; it is for plain text (.txt)")
        return None
    if documents == "line":
        codec = CODEC_OF_SUFFIX.get(splitext(texts[0])[1].lower())
        return FORMATS["text" if codec is None else f"text.{codec}"]
    if packed := [path for path in texts if path.lower().endswith(tuple(CODEC_OF_SUFFIX))]:
        msg = f"{packed[0]}: a compressed file of text is read line by line, and each file is to be a document"
        raise UsageError(msg, hint='documents="line", or decompress the files')
    return Folder(field=field, labels=False, suffixes=Text().suffixes)


def _is_text(path: str, *, may_be_any: bool, is_asked: bool) -> bool:
    """Return True if a file is plain text: by its suffix, or as no format has that, or as it was asked for."""
    if path.lower().endswith(_TEXTS) or not may_be_any:
        return path.lower().endswith(_TEXTS)
    if is_asked:
        return True
    with suppress(SourceError):
        format_of(path)
        return False
    return True


def _named(source: SourceLike, suffixes: tuple[str, ...], storage_options: Mapping[str, Any] | None) -> Source:
    try:
        return expanded(source, suffixes, open_store(source, storage_options))[0]
    except SourceError as error:
        error.hint = "texts are shards (JSON Lines, Parquet and others) or plain text (.txt); a glob names files of "
        error.hint += "any suffix ('DIR/**/*.md')"
        raise

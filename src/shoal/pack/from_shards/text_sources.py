"""Texts to be tokenized: rows of shards, or plain text with a document per file or per line."""

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
from shoal.storage.sources.source import SourceLike, printed
from shoal.storage.store_of_url import open_store

Documents = Literal["file", "line"]

_TEXTS = tuple(
    suffix for name, known in FORMATS.items() if name.partition(".")[0] == "text" for suffix in known.suffixes
)


def documents_format(
    source: SourceLike, documents: Documents | None, *, field: str, storage_options: Mapping[str, Any] | None = None
) -> Format | None:
    """Return the format for reading texts with `open_source`; None for shards, whose suffixes tell the format.

    In plain text, each file is a document, or with ``documents="line"`` each non-empty line. Plain text files end in
    ``.txt`` or ``.text``. A glob, braces or a list may also name files with a suffix of no format (``.md``); with
    ``documents``, all files that they name are plain text. Raises `UsageError` for shards beside plain text, for
    ``documents`` with shards, and for compressed files as documents.
    """
    try:
        files = expanded(source, (*suffixes_in_directories(), *_TEXTS), open_store(source, storage_options))[0]
    except SourceError as error:
        error.hint = "texts are shards (JSON Lines, Parquet and others) or plain text (.txt); a glob names files of "
        error.hint += "any suffix ('DIR/**/*.md')"
        raise
    is_directory = files.kind == "directory"
    texts = [path for path in files.paths if _is_text(path, is_directory=is_directory, is_certain=bool(documents))]
    if texts and len(texts) < len(files.paths):
        other = next(path for path in files.paths if path not in set(texts))
        msg = f"{printed(source)}: plain text, as {texts[0]}, and shards, as {other}"
        raise UsageError(msg, hint="name one kind by a glob: 'DIR/**/*.txt'")
    if not texts:
        if documents is not None:
            msg = f"{printed(source)}: samples of shards are the documents, but documents={documents!r} was requested"
            raise UsageError(msg, hint="leave out documents=, which is for plain text (.txt)")
        return None
    if documents == "line":
        codec = CODEC_OF_SUFFIX.get(splitext(texts[0])[1].lower())
        return FORMATS["text" if codec is None else f"text.{codec}"]
    if packed := [path for path in texts if path.lower().endswith(tuple(CODEC_OF_SUFFIX))]:
        msg = f"{packed[0]}: a compressed file of text is read line by line, but each file is to be a document"
        raise UsageError(msg, hint='documents="line", or decompress the files')
    return Folder(field=field, labels=False, suffixes=Text().suffixes)


def _is_text(path: str, *, is_directory: bool, is_certain: bool) -> bool:
    """Return True if a file is plain text by its suffix; a single-file source is text if no format has its suffix."""
    if path.lower().endswith(_TEXTS) or is_directory or is_certain:
        return path.lower().endswith(_TEXTS) or not is_directory
    with suppress(SourceError):
        format_of(path)
        return False
    return True

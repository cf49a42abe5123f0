"""Texts to be tokenized: rows of shards, or plain text, of which a document is a file or a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from shoal.errors import SourceError, UsageError
from shoal.formats.folder.reader import Folder
from shoal.formats.format_registry import FORMATS, format_of, suffixes_in_directories
from shoal.formats.lines.reader import Text
from shoal.formats.shard_format import Format
from shoal.storage.sources.source import SourceLike, expand, printed
from shoal.storage.store_of_url import open_store

Documents = Literal["file", "line"]

_TEXTS = tuple(suffix for name, each in FORMATS.items() if name.partition(".")[0] == "text" for suffix in each.suffixes)


def documents_format(
    source: SourceLike, documents: Documents | None, *, field: str, storage_options: Mapping[str, Any] | None = None
) -> Format | None:
    """Return the format in which texts are read, for `open_source`; None for shards, whose suffixes tell it.

    Of plain text (``.txt``, ``.text``), each file is a document, or with ``documents="line"`` each line that is not
    empty.

    Raises
    ------
    UsageError
        There are both shards and plain text, ``documents`` is given for shards, or compressed files are to be
        documents.
    """
    found = _named(source, (*suffixes_in_directories(), *_TEXTS), storage_options)
    texts = [path for path in found if path.lower().endswith(_TEXTS)]
    if texts and len(texts) < len(found):
        other = next(path for path in found if path not in set(texts))
        msg = f"{printed(source)}: plain text, as {texts[0]}, and shards, as {other}"
        raise UsageError(msg, hint="name one kind by a glob: 'DIR/**/*.txt'")
    if not texts:
        if documents is not None:
            msg = (
                f"{printed(source)}: shards, whose samples are the documents, and --documents {documents} was asked for"
            )
            raise UsageError(msg, hint="leave it out; it is for plain text (.txt)")
        return None
    if documents == "line":
        return format_of(texts[0])
    if packed := [path for path in texts if not path.lower().endswith(Text().suffixes)]:
        msg = f"{packed[0]}: a compressed file of text is read line by line, and each file is to be a document"
        raise UsageError(msg, hint="--documents line, or decompress the files")
    return Folder(field=field, labels=False, suffixes=Text().suffixes)


def _named(source: SourceLike, suffixes: tuple[str, ...], storage_options: Mapping[str, Any] | None) -> list[str]:
    try:
        return list(expand(source, suffixes=suffixes, store=open_store(source, storage_options)).paths)
    except SourceError as error:
        error.hint = "texts are shards (JSON Lines, Parquet and others) or plain text (.txt)"
        raise

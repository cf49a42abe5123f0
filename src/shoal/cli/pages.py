"""Pages that verbs write: where to, and the command that makes them again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from shoal.storage.sources import without_secrets

__all__ = ["typed_command", "write_page"]


def typed_command(words: Sequence[str]) -> str:
    """The command that was typed, so that a page can say how it was made; without what a URL or an option may hide.

    >>> typed_command(["plan", "https://me:secret@host/a?key=1", "--storage-option", "key=secret", "--html", "a.html"])
    'shoal plan https://host/a --storage-option ... --html a.html'
    """
    said, hidden = ["shoal"], False
    for word in words:
        name, mark, _ = word.partition("=")
        if hidden or (mark and name == "--storage-option"):
            said.append("..." if hidden else f"{name}=...")
        else:
            said.append(without_secrets(word))
        hidden = not hidden and word == "--storage-option"
    return shlex.join(said)


def write_page(path: str, page: str) -> None:
    """Write a page; characters that are no Unicode, which stand for bytes of names, are escaped."""
    Path(path).write_text(page, encoding="utf-8", errors="backslashreplace")

"""Pages and pictures of verbs: their options, their files, and the command line that a page shows."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from shoal.errors import UsageError
from shoal.storage.urls import without_secrets
from shoal.tools.reports.marks import Drawing
from shoal.tools.reports.rendering import PICTURES, rendered


def add_page_arguments(parser: argparse.ArgumentParser, *, html: str = "", has_picture: bool = True) -> None:
    """Declare the options for a page and a picture; ``html`` says what the page shows beside the result."""
    text = f"write a page that needs no network{html}"
    parser.add_argument("--html", metavar="FILE", help=text)
    if has_picture:
        text = "draw a picture, as .svg, or with matplotlib as .png or .pdf"
        parser.add_argument("--picture", type=Path, metavar="FILE", help=text)


def typed_command(words: Sequence[str]) -> str:
    """Return the command that was typed, for a page to show, without what a URL or an option may hide.

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
    """Write a page; characters that are not Unicode, which stand for bytes of names, are escaped."""
    Path(path).write_text(page, encoding="utf-8", errors="backslashreplace")


def check_picture(path: Path) -> None:
    """Refuse a picture that could not be written, before the work instead of after it."""
    if path.suffix.lower() not in PICTURES:
        raise UsageError(f"{path}: pictures are {', '.join(PICTURES)}", hint=f"--picture {path.with_suffix('.png')}")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path}: the picture cannot be written there", hint="--picture FILE writes it elsewhere")


def write_picture(path: Path, drawing: Drawing) -> None:
    """Write a drawing as the kind of picture that the suffix names."""
    path.write_bytes(rendered(drawing, path.suffix.lower()))

"""Options, files and footers of the pages and pictures that verbs write."""

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
    """Declare the options for a page and a picture; ``html`` names additional parts of the page."""
    parser.add_argument("--html", metavar="FILE", help=f"write an HTML page{html}")
    if has_picture:
        parser.add_argument("--picture", type=Path, metavar="FILE", help="draw a picture: .svg, .png or .pdf")


def typed_command(words: Sequence[str]) -> str:
    """Return the typed command without secrets of URLs and options.

    >>> typed_command(["plan", "https://me:secret@host/a?key=1", "--storage-option", "key=secret", "--html", "a.html"])
    'shoal plan https://host/a --storage-option ... --html a.html'
    """
    shown, hidden = ["shoal"], False
    for word in words:
        name, mark, _ = word.partition("=")
        if hidden or (mark and name == "--storage-option"):
            shown.append("..." if hidden else f"{name}=...")
        else:
            shown.append(without_secrets(word))
        hidden = not hidden and word == "--storage-option"
    return shlex.join(shown)


def write_page(path: str, page: str) -> None:
    """Write a page; lone surrogates of file names are escaped."""
    Path(path).write_text(page, encoding="utf-8", errors="backslashreplace")


def check_picture(path: Path | None) -> None:
    """Raise `UsageError`, before the work, if the requested picture cannot be written."""
    if path is None:
        return
    if path.suffix.lower() not in PICTURES:
        raise UsageError(f"{path}: pictures are {', '.join(PICTURES)}", hint=f"--picture {path.with_suffix('.png')}")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path}: the picture cannot be written in its directory", hint="--picture FILE")


def write_picture(path: Path, drawing: Drawing) -> None:
    """Write a drawing in the format of the suffix."""
    path.write_bytes(rendered(drawing, path.suffix.lower()))

"""Prepares docstrings for the site: names become links to their reference, paths of pages become links to the pages."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import griffe

DOCS = Path(__file__).resolve().parent
DIRECTIVE = re.compile(r"^::: (?P<name>[\w.]+)$", re.MULTILINE)
_NAME = re.compile(r"(?<![`\[])`(?P<name>[A-Za-z_]\w*(?:\.\w+)+)`(?![`\]])")
_PAGE = re.compile(r"\bdocs/(?P<place>[\w/-]+)\.md(?P<anchor>#[\w-]+)?")
_LITERAL = re.compile(r"^::\n\n(?P<block>(?:(?: +.*)?\n)+)", re.MULTILINE)


def documented_names() -> set[str]:
    """The public names that have a place in the reference."""
    return {match["name"] for page in DOCS.glob("reference/*.md") for match in DIRECTIVE.finditer(page.read_text())}


class SiteDocstrings(griffe.Extension):
    """Rewrites each docstring as Markdown before mkdocstrings parses it."""

    def __init__(self) -> None:
        super().__init__()
        self._names = documented_names()

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object, if it has one."""
        if obj.docstring is not None:
            obj.docstring.value = self.markdown(obj.docstring.value)

    def markdown(self, text: str) -> str:
        """A docstring with links, and with fenced blocks instead of ``::``."""
        text = _LITERAL.sub(lambda match: f"```text\n{textwrap.dedent(match['block']).rstrip()}\n```\n\n", text + "\n")
        text = _NAME.sub(lambda match: self._linked(match["name"]), text)
        return _PAGE.sub(lambda match: f"[{match['place']}](/{match['place']}/{match['anchor'] or ''})", text).rstrip()

    def _linked(self, name: str) -> str:
        for full_name in (name, f"shoal.{name}"):
            if full_name in self._names:
                return f"[`{name}`][{full_name}]"
        return f"`{name}`"

"""The targets of the Makefile, and their commands."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_VARIABLE = re.compile(r"\$\((\w+)\)")


def targets() -> dict[str, list[str]]:
    """The commands of each target, with variables replaced and without Make's prefixes."""
    variables, commands = dict[str, str](), dict[str, list[str]]()
    target = ""
    for line in _joined_lines():
        if match := re.match(r"(\w+)\s*\??:?=\s*(.*)", line):
            variables[match[1]] = re.sub(r"\s+#.*", "", match[2]).strip()
        elif match := re.match(r"([.\w/-]+)\s*:(?!=)", line):
            target = match[1]
            commands[target] = []
        elif line.startswith("\t"):
            commands[target].append(_replaced(line.strip().lstrip("@-"), variables))
    return commands


def _joined_lines() -> list[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return re.sub(r"\\\n\s*", "", text).splitlines()


def _replaced(text: str, variables: dict[str, str]) -> str:
    while (replaced := _VARIABLE.sub(lambda match: variables.get(match[1], match[0]), text)) != text:
        text = replaced
    return text

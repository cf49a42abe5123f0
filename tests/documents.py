"""Reads the documentation as a machine would: its code blocks, its links and its headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[\w+-]*).*$")
_NOT_RUN = re.compile(r"^\s*<!--\s*not run:(?P<reason>.*?)-->\s*$")
_RUN_WITH = re.compile(r"^\s*<!--\s*run with (?P<environment>[\w-]+)\s*-->\s*$")
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6}\s+(?P<text>.+?)\s*#*$")


@dataclass(frozen=True)
class Block:
    """A fenced block: ``line`` is that of its first line of code; ``not_run`` the reason, None for "run it".

    ``run_with`` names the environment that `make integration` runs it in, and it alone; None is our own.
    """

    language: str
    code: str
    line: int
    not_run: str | None
    run_with: str | None = None


def blocks_of(text: str) -> list[Block]:
    """Every fenced code block, in order."""
    blocks, lines, number = [], text.splitlines(), 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        number += 1
        if fence is None:
            continue
        first, indent = number, len(fence["indent"])
        while number < len(lines) and lines[number].strip() != fence["ticks"]:
            number += 1
        if number == len(lines):
            msg = f"the code block that begins on line {first} has no end"
            raise ValueError(msg)
        above = lines[first - 2] if first >= 2 else ""
        mark, other = _NOT_RUN.match(above), _RUN_WITH.match(above)
        code = "".join(f"{line[indent:]}\n" for line in lines[first:number])
        reason, environment = mark and mark["reason"].strip(), other and other["environment"]
        blocks.append(Block(fence["language"], code, first + 1, reason, environment))
        number += 1
    return blocks


def commands_of(code: str) -> list[str]:
    r"""The commands of a console block: what follows ``$ ``, with the lines that a ``\`` continues."""
    commands: list[str] = []
    continued = False
    for line in code.splitlines():
        if line.startswith("$ "):
            commands.append(line[2:])
        elif continued:
            commands[-1] += "\n" + line.removeprefix("> ")
        continued = bool(commands) and line.endswith("\\") and (continued or line.startswith("$ "))
    return commands


def prose_of(text: str) -> Iterator[tuple[int, str]]:
    """The numbered lines outside code blocks."""
    ticks = ""
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if ticks:
            ticks = "" if line.strip() == ticks else ticks
        elif fence is not None:
            ticks = fence["ticks"]
        else:
            yield number, line


def links_of(text: str) -> list[tuple[int, str]]:
    """Every link of the prose that stays inside the repository, with its line."""
    return [
        (number, match["target"])
        for number, line in prose_of(text)
        for match in _LINK.finditer(re.sub(r"`[^`]*`", "", line))
        if not re.match(r"[a-z][a-z0-9+.-]*:", match["target"])
    ]


def anchors_of(text: str) -> set[str]:
    """The anchors of the headings, as GitHub makes them, and the names of the reference, as mkdocstrings makes them."""
    headings = (match["text"] for _, line in prose_of(text) if (match := _HEADING.match(line)))
    names = set(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE))
    return names | {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

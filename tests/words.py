"""The law of words: constructions that are read twice, and names that hide what they hold, counted in source and pages.

``python -m tests.words [PATH ...]`` prints each place, and a count for each folder. CONTRIBUTING.md shows how such a
sentence is rewritten.
"""

from __future__ import annotations

import ast
import collections
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

# A reader of these looks for the noun that the pronoun stands for, or for the verb of the sentence.
CONSTRUCTIONS = {
    "of which": re.compile(
        r"\b(?:of|by|from|for|with|to|at|behind|beside|after|before) (?:which|whom)\b", re.IGNORECASE
    ),
    "whoever": re.compile(r"\b(?:whoever|whomever|whatever|whichever)\b", re.IGNORECASE),
    "those that": re.compile(
        r"\bthose (?:that|who|whose|which|of|in|with|without|from|for|to|by|on|at|not|it|its|they|[a-z]+ed)\b",
        re.IGNORECASE,
    ),
    "that of": re.compile(
        r"\b(?:that|ones) of (?:a|an|the|this|its|their|all|each|one|another|any|every)\b", re.IGNORECASE
    ),
    "what is": re.compile(
        r"\bwhat (?:(?!and\b|or\b|to\b|if\b)[\w'-]+ ){0,5}?(?:is|are|was|were|has|have|had|does|do|did|can|cannot"
        r"|will|would)\b(?![^.?!]*\?)",
        re.IGNORECASE,
    ),
}
# Names that say what was done to a value instead of what the value is.
HIDING_NAMES = frozenset(("found", "told", "asked", "mine", "those", "at_hand"))
CODE = re.compile(r"``.*?``|`[^`]*`", re.DOTALL)
FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.DOTALL | re.MULTILINE)


class Place(NamedTuple):
    """Where one construction or name stands."""

    path: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.text}"


def constructions_of(path: Path) -> list[Place]:
    """The constructions in the docstrings, comments and strings of a Python file, or in the prose of a page."""
    texts = _python_texts(path) if path.suffix == ".py" else _page_texts(path)
    return [
        Place(path, line + prose.count("\n", 0, match.start()), kind, " ".join(match[0].split()))
        for line, text in texts
        for prose in [CODE.sub(lambda code: re.sub(r"[^\n]", "_", code[0]), text)]
        for kind, pattern in CONSTRUCTIONS.items()
        for match in pattern.finditer(re.sub(r"\s", lambda space: "\n" if space[0] == "\n" else " ", prose))
    ]


def hiding_names(path: Path) -> list[Place]:
    """The variables, parameters and attributes of a Python file whose names hide what they hold."""
    return [
        Place(path, line, "name", name)
        for node in ast.walk(ast.parse(path.read_text()))
        for line, name in _bound_names(node)
        if name.strip("_") in HIDING_NAMES
    ]


def _bound_names(node: ast.AST) -> Iterator[tuple[int, str]]:
    match node:
        case ast.Name(id=name, lineno=line, ctx=ast.Store()) | ast.Attribute(attr=name, lineno=line, ctx=ast.Store()):
            yield line, name
        case ast.arg(arg=name, lineno=line) | ast.FunctionDef(name=name, lineno=line):
            yield line, name


def _python_texts(path: Path) -> Iterator[tuple[int, str]]:
    source = path.read_text()
    comments: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, text = token.start[0], token.string.removeprefix("#").strip()
            if comments and comments[-1][0] + comments[-1][1].count("\n") + 1 == line:
                comments[-1] = (comments[-1][0], f"{comments[-1][1]}\n{text}")
            else:
                comments.append((line, text))
    yield from comments
    parts_of_f_strings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts_of_f_strings.update(id(part) for part in node.values)
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "_" for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts_of_f_strings:
            yield node.lineno, node.value


def _page_texts(path: Path) -> Iterator[tuple[int, str]]:
    text = FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), path.read_text())
    for block in re.finditer(r"(?:[^\n]+\n?)+", text):
        yield text.count("\n", 0, block.start()) + 1, block[0]


def files_below(paths: list[Path]) -> list[Path]:
    """Every Python file and page below these paths."""
    return [
        file
        for path in paths
        for file in ([path] if path.is_file() else sorted([*path.rglob("*.py"), *path.rglob("*.md")]))
    ]


def main(paths: list[str]) -> None:
    counts: collections.Counter[str] = collections.Counter()
    for file in files_below([Path(path) for path in paths or ["src", "docs"]]):
        places = constructions_of(file) + (hiding_names(file) if file.suffix == ".py" else [])
        for place in places:
            print(place)
            counts[f"{file.parent} {place.kind}"] += 1
    for folder, count in sorted(counts.items()):
        print(f"{count:5} {folder}")
    print(f"{sum(counts.values()):5} in all")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Hints of the library speak Python, and the command line shows the options of the verb in their place."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.cli.calls import Calls

import shoal
from shoal.cli.display.shell_hints import in_shell
from shoal.cli.main import VERBS, _Parser

SOURCE = Path(shoal.__file__).parent
OPTION = re.compile(r"(?<![\w`-])--[a-z][a-z-]+")
COMMAND = re.compile(r"`[^`]*(`|$)")
ASKS_TO_SKIP = re.compile(r"on_error=\\?['\"]skip\\?['\"](?!, quarantine)")  # a quarantine is no option
OF_OTHERS = re.compile(r"--upgrade|docker run|tar's|aws |curl|color-scheme|var\(--")


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        ("on_error='skip' leaves it out", "--on-error skip leaves it out"),
        (
            'split="train" reads one, split=["train", "val"] both',
            '--split train reads one, split=["train", "val"] both',
        ),
        ("labelled=False packs files without their class", "--no-label packs files without their class"),
        ("grouped=True joins files", "--group joins files"),
        ("fewer num_workers=", "fewer --workers"),
        ("`shoal index --columns NAME=PATH` makes one", "`shoal index --columns NAME=PATH` makes one"),
        ("shoal.open(..., index=...)", "--index ..."),
        ('shoal.open(..., split="train")', "--split train"),
        ('.rename(image="jpg;png")', '.rename(image="jpg;png")'),
        ("pack_sequences(lengths=None) fills batches", "pack_sequences(lengths=None) fills batches"),
        ("text_field= of repack(), field= of tokenize()", "--text-field"),
    ],
)
def test_arguments_become_options_of_the_verb(hint: str, shown: str) -> None:
    options = ["--on-error", "--split", "--no-label", "--label", "--group", "--workers", "--index", "--columns"]
    options += ["--lengths", "--text-field"]
    assert in_shell(hint, options) == shown


def parser_of(verb: str) -> _Parser:
    parser = _Parser(prog=verb)
    importlib.import_module(VERBS[verb].module).add_arguments(parser)
    return parser


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_is_advised_to_skip_that_cannot(verb: str) -> None:
    """Nor to use an option that it lacks: neither by a hint of the library, nor by its own help."""
    parser = parser_of(verb)
    options, advised = parser.options, 0
    for hint in advice_to_skip():
        shown = in_shell(hint, options)
        assert set(OPTION.findall(COMMAND.sub("", shown))) <= options, hint
        assert "reading(" not in shown, hint
        assert ("--on-error" in options) or not ASKS_TO_SKIP.search(shown), hint
        advised += "--on-error" in shown
    assert (advised > 0) == ("--on-error" in options)
    assert set(OPTION.findall(COMMAND.sub("", " ".join(parser.format_help().split())))) <= options


@cache
def advice_to_skip() -> list[str]:
    return [text for path in library("on_error") for text in texts_in(path) if ASKS_TO_SKIP.search(text)]


def library(part: str) -> list[Path]:
    """Modules of the library in which this is written somewhere."""
    modules = (path for path in SOURCE.rglob("*.py") if "cli" not in path.relative_to(SOURCE).parts)
    return [path for path in modules if part in path.read_text(encoding="utf-8")]


def test_no_text_of_the_library_names_an_option() -> None:
    """Only whole commands in backquotes do: the command line translates arguments."""
    named: list[str] = []
    for path in library("--"):
        named += [
            f"{path.name}: {text}"
            for text in texts_in(path)
            if OPTION.search(COMMAND.sub("", text)) and not OF_OTHERS.search(text)
        ]
    assert named == []


def texts_in(path: Path) -> Iterator[str]:
    """Yield the texts of a module in one line, those with values in them as they are written."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value if " " in node.value and "\n" not in node.value else ""  # a word alone is no sentence


def test_a_damaged_shard_is_skipped_where_the_hint_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    call = Calls(capsys)
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    for verb in ("bench", "head"):
        call.text(verb, tmp_path / "a.jsonl", code=1)
        assert "--on-error skip leaves out" in call.complaints
        assert "reading(" not in call.complaints
    call.text("index", tmp_path / "a.jsonl", "--columns", "a", code=1)
    assert call.complaints.rstrip().endswith("hint: correct the line, or remove it from the shard")
    lines = call.json_lines("head", tmp_path / "a.jsonl", "--on-error", "skip")
    assert [line["fields"] for line in lines] == [{"a": 1}, {"a": 3}]
    assert "note: sample 1 is skipped" in call.complaints
    assert call.json("bench", tmp_path / "a.jsonl", "--on-error", "skip")["num_skipped"] == 1

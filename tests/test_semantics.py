"""Every row of the table in docs/semantics.md is true."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from tests.documents import blocks_of, prose_of
from tests.samples import write_sample_data

PAGE = Path(__file__).parent.parent / "docs" / "semantics.md"
# "|" begins a cell, so no line of code in the table may hold one.
ROW = re.compile(r"^\| (?P<about>[^|]+) \| (?P<rule>[^|]+) \| `(?P<code>[^`|]+)` \|$")


def rows_of(text: str) -> list[tuple[int, str, str]]:
    """Line, rule and code of each row of a page's tables, headings left out."""
    lines = [(number, line) for number, line in prose_of(text) if line.startswith("|")]
    body = [(number, line) for number, line in lines if not re.match(r"\| (about|---) \|", line)]
    found = [(number, ROW.match(line)) for number, line in body]
    if odd := [number for number, row in found if row is None]:
        msg = f"lines {odd} are no rows of three cells with code in the last"
        raise ValueError(msg)
    return [(number, row["rule"], row["code"]) for number, row in found if row is not None]


ROWS = rows_of(PAGE.read_text(encoding="utf-8"))


def holds(code: str, namespace: dict[str, Any]) -> bool:
    """Run statements, and say whether the expression that ends them is true."""
    *before, last = ast.parse(code).body
    if not isinstance(last, ast.Expr):
        msg = f"a row ends in an expression that is true or not, and this one in {ast.unparse(last)}"
        raise TypeError(msg)
    exec(compile(ast.Module(before, []), "row", "exec"), namespace)  # our own documentation
    return bool(eval(compile(ast.Expression(last.value), "row", "eval"), namespace))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample_data(tmp_path_factory.mktemp("semantics"))


@pytest.mark.parametrize(("line", "rule", "code"), ROWS, ids=[f"line {line}" for line, _, _ in ROWS])
def test_a_row_holds(line: int, rule: str, code: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(home / "cache"))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "")  # so that what a row sets is undone
        monkeypatch.delenv(name)
    namespace: dict[str, Any] = {}
    for block in blocks_of(PAGE.read_text(encoding="utf-8")):
        exec(block.code, namespace)
    assert holds(code, namespace), f"{PAGE.name}:{line}: {rule}"


def test_the_table_covers_what_it_should() -> None:
    about = {row["about"] for line in PAGE.read_text(encoding="utf-8").splitlines() if (row := ROW.match(line))}
    assert about >= {"order of verbs", "the order", "ranks", "epoch ends", "iterating", "state"}
    assert len(ROWS) > 60


@pytest.mark.parametrize(("code", "true"), [("1 == 1", True), ("x = 2; x == 3", False)])
def test_a_false_row_is_found(code: str, true: bool) -> None:
    assert holds(code, {}) is true


def test_rows_without_code_are_refused() -> None:
    with pytest.raises(ValueError, match=r"lines \[3\]"):
        rows_of("| about | what holds | so this is true |\n| --- | --- | --- |\n| samples | They are nice. | yes |\n")
    with pytest.raises(TypeError, match="x = 1"):
        holds("x = 1", {})

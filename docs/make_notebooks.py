"""Writes docs/notebooks/*.ipynb from the scripts beside them: ``python docs/make_notebooks.py [NAME ...]``.

A script has cells: ``# %% [markdown]`` begins text, ``# %%`` begins code, and ``# %% varies`` begins code whose outputs
differ from run to run. Cells run one after another in one namespace, in an empty directory, as in a notebook: the value
of the last expression is the output. `tests/test_notebooks.py` fails where a notebook is not what this makes.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

NOTEBOOKS = Path(__file__).parent / "notebooks"
VARIES = "varies"
"""Tag of a cell whose outputs differ from run to run."""

_PORT = re.compile(r"127\.0\.0\.1:\d+")  # a free port of this machine
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "name": "python"},
}


@dataclass(frozen=True)
class Cell:
    """A cell of a script: its text, the line where the text begins, and its kind."""

    source: str
    line: int
    is_code: bool
    varies: bool


def cells_of(script: Path) -> list[Cell]:
    """The cells of a script; blank lines around a cell do not count."""
    cells: list[Cell] = []
    lines: list[str] = []
    marker, first = "", 0
    for number, line in enumerate([*script.read_text(encoding="utf-8").splitlines(), "# %%"], 1):
        if not line.startswith("# %%"):
            lines.append(line)
            continue
        text = "\n".join(lines).strip("\n")
        if text:
            is_code = "[markdown]" not in marker
            if not is_code:
                text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.splitlines())
            cells.append(Cell(text, first, is_code, VARIES in marker))
        lines, marker, first = [], line, number + 1
    return cells


def notebook(script: Path) -> dict[str, Any]:
    """Run a script in the current directory, and return its notebook."""
    page = ModuleType("__notebook__")  # a module, so that functions of the notebook can be pickled
    sys.modules["__notebook__"] = page
    cells, count = [], 0
    try:
        for number, cell in enumerate(cells_of(script)):
            made: dict[str, Any] = {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}}
            if cell.is_code:
                count += 1
                made |= {"cell_type": "code", "execution_count": count}
                made |= {"outputs": outputs_of(cell, script, vars(page), count)}
                made |= {"metadata": {"tags": [VARIES]} if cell.varies else {}}
            cells.append(made | {"source": lines_of(cell.source)})
    finally:
        del sys.modules["__notebook__"]
    return {"cells": cells, "metadata": _METADATA, "nbformat": 4, "nbformat_minor": 5}


def outputs_of(cell: Cell, script: Path, namespace: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run a cell, and return what it prints and the value of its last expression."""
    tree = ast.parse("\n" * (cell.line - 1) + cell.source, str(script))  # a traceback shows the line of the script
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, str(script), "exec"), namespace)  # noqa: S102  # our own documentation
        if last is not None:
            expression = ast.Expression(last.value)
            value = eval(compile(expression, str(script), "eval"), namespace)  # noqa: S307
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines_of(printed.getvalue())})
    if value is not None:
        data = {"text/plain": lines_of(repr(value))}
        if hasattr(value, "_repr_html_"):
            data = {"text/html": lines_of(value._repr_html_()), **data}
        outputs.append({"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return outputs


def lines_of(text: str) -> list[str]:
    """A text as notebooks store it: lines with their ends."""
    return _PORT.sub("127.0.0.1:8000", text).splitlines(keepends=True)


def as_text(made: dict[str, Any]) -> str:
    """A notebook as the text of its file."""
    return json.dumps(made, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


@contextlib.contextmanager
def empty_directory() -> Iterator[Path]:
    """Work in a new directory, with a cache of its own, on a terminal of 100 columns."""
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        before = {name: os.environ.get(name) for name in ("SHOAL_CACHE_DIR", "COLUMNS")}
        os.environ |= {"SHOAL_CACHE_DIR": str(Path(directory) / ".cache"), "COLUMNS": "100"}
        try:
            yield Path(directory)
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def main(names: list[str]) -> None:
    """Write all notebooks, or those with the given names."""
    for script in sorted(NOTEBOOKS.glob("*.py")):
        if not names or script.stem in names:
            with empty_directory():
                made = as_text(notebook(script))
            script.with_suffix(".ipynb").write_text(made, encoding="utf-8")
            sys.stdout.write(f"{script.stem}: {len(made):,} letters\n")


if __name__ == "__main__":
    main(sys.argv[1:])

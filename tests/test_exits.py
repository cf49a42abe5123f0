"""Scripts that end with everything still open print nothing when Python takes itself apart."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from shoal.testing import RangeServer
from tests.stream.made import open_finely, write_tars


@pytest.mark.parametrize(
    ("framework", "end"),
    [
        ("none", "error"),
        ("none", "modules first"),
        pytest.param("torch", "exit", marks=pytest.mark.drill),
        pytest.param("torch", "modules first", marks=pytest.mark.drill),
    ],
)
def test_nothing_is_printed_at_the_end(framework: str, end: str, tmp_path: Path) -> None:
    if framework != "none" and importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    open_finely(write_tars(tmp_path / "data", [25] * 8))
    with RangeServer(tmp_path / "data") as server:
        url = server.url_of("s-000.tar").replace("000", "{000..007}")
        words = [str(tmp_path / "data"), url, str(tmp_path / "scratch"), framework, end]
        done = subprocess.run(
            [sys.executable, "-X", "dev", str(Path(__file__).with_name("exits.py")), *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SHOAL_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
    assert done.stderr == ""
    assert (done.stdout, done.returncode) == ("ends\n", {"modules first": 0, "error": 1, "exit": 3}[end])


def names_outside(function: ast.FunctionDef) -> set[str]:
    """What a function takes from its module or the builtins when it runs."""
    loaded = {node.id for part in function.body for node in ast.walk(part) if isinstance(node, ast.Name)}
    own = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
    return loaded - own - set(dir(builtins))


def test_what_runs_when_an_object_goes_needs_no_name_of_its_module() -> None:
    """Those may be gone before the object is, where Python ends."""
    found = [
        (path.name, name)
        for path in (Path(shoal.__file__).parent).rglob("*.py")
        if "def __del__" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == "__del__"
        for name in names_outside(node)
    ]
    assert found == []

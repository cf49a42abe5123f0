"""What the documentation shows works: its code runs, its commands succeed, its links lead somewhere."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.documents import Block, anchors_of, blocks_of, commands_of, links_of
from tests.integration.installs import ENVIRONMENTS
from tests.samples import write_sample_data

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RUN = [README, *sorted((ROOT / "docs").rglob("*.md"))]
LINKED = [
    *RUN,
    *(ROOT / page for page in ("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "tests/kept/README.md")),
    ROOT / "CHANGELOG.md",
    *(p for d in ("design", "changes", "bench") for p in sorted((ROOT / d).rglob("*.md"))),
]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", RUN, ids=name_of)
@pytest.mark.filterwarnings("default")  # a page may well show what a warning is about
def test_the_code_of_a_page_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_sample_data(tmp_path))
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    text = path.read_text(encoding="utf-8")
    if "import shoal.torch" in text:
        pytest.importorskip("torch", reason="torch is not installed")
    run_blocks(blocks_of(text), path)
    gc.collect()  # an iterator that the page left open ends with the page, and its threads with it
    assert not [each.name for each in threading.enumerate() if each.name.startswith(("shoal-make", "shoal-decode"))]


@pytest.mark.parametrize("path", LINKED, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    lost = []
    for line, target in links_of(path.read_text(encoding="utf-8")):
        place, _, anchor = target.partition("#")
        goal = (path.parent / place).resolve() if place else path
        if not goal.exists() or (anchor and anchor not in anchors_of(goal.read_text(encoding="utf-8"))):
            lost.append(f"{name_of(path)}:{line}: {target}")
    assert lost == []


def test_the_loop_that_makes_batches_is_quoted_as_it_is() -> None:
    (block,) = blocks_of((ROOT / "design" / "way.md").read_text(encoding="utf-8"))
    source = (ROOT / "src" / "shoal" / "stream" / "iterating" / "batch_maker.py").read_text(encoding="utf-8")
    assert textwrap.indent(block.code.strip(), "    ") in source


def test_the_readme_is_short_and_shows_code_at_once() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    first = blocks_of(text)[0]
    assert first.language == "python"
    assert first.line - 1 <= 8


def test_the_first_code_of_the_readme_runs_where_there_is_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    run_blocks(blocks_of(README.read_text(encoding="utf-8"))[:1], README)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "guides").glob("add-a*.md")), ids=lambda path: path.stem)
def test_examples_of_extensions_have_types_that_hold(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    code = "\n\n".join(block.code for block in blocks_of(text) if block.language == "python")
    (tmp_path / "page.py").write_text(code)
    command = [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "page.py")]  # with the cache of `make check`
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(("target", "expected"), [("demo", []), ("test", ["torch==", "'.[dev]'"])])
def test_only_those_who_work_on_shoal_install_torch(target: str, expected: list[str]) -> None:
    """And it is installed on a line of its own, before what might bring another build of it."""
    command = ["make", "--dry-run", "--always-make", target]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    installs = [line for line in said.replace("\\\n", "").splitlines() if "pip install" in line]
    assert all("-c constraints.txt" in line for line in installs)
    assert len(installs) == 1 + len(expected)
    assert "torch" not in installs[0]
    for line, words in zip(installs[1:], expected, strict=True):
        assert words in line


def run_blocks(blocks: list[Block], path: Path) -> None:
    """Run the blocks of one page in order: Python in one namespace, commands in bash, all in the current directory."""
    page = ModuleType("__page__")  # a module, so that what a page defines can be pickled
    namespace: dict[str, Any] = vars(page)
    sys.modules["__page__"] = page
    try:
        run_blocks_in(namespace, blocks, path)
    finally:
        del sys.modules["__page__"]


def run_blocks_in(namespace: dict[str, Any], blocks: list[Block], path: Path) -> None:
    for block in blocks:
        if block.not_run is not None:
            assert block.not_run, f"{path}:{block.line}: a block that is not run needs a reason"
        elif block.run_with is not None:
            assert block.run_with in ENVIRONMENTS, f"{path}:{block.line}: nobody knows {block.run_with!r}"
        elif block.language == "python":
            # Blank lines before the code, so that a traceback shows the line of the page.
            code = "\n" * (block.line - 1) + block.code
            exec(compile(code, str(path), "exec"), namespace)  # our own documentation
        elif block.language == "console":
            for command in commands_of(block.code):
                run_command(command, f"{path}:{block.line}")


def run_command(command: str, place: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        env=os.environ | {"PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, f"{place}: {command}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"


PAGE = """\
# A page

```python
x = 1
```
<!-- not run: it would sing -->
```python
sing()
```

<!-- run with jax -->
```python
sing_in_chorus()
```

1. in a list

   ```python
   assert x == 1
   ```

```console
$ echo one \\
>   two
one two
$ true
```

[here](#a-page) and [there](other.md#b) and [out](https://example.org) and `[no](link.md)`
"""


def test_blocks_are_found_with_their_lines_and_reasons() -> None:
    blocks = blocks_of(PAGE)
    assert [(block.language, block.line, block.not_run) for block in blocks] == [
        ("python", 4, None),
        ("python", 8, "it would sing"),
        ("python", 13, None),
        ("python", 19, None),
        ("console", 23, None),
    ]
    assert [block.run_with for block in blocks] == [None, None, "jax", None, None]
    assert blocks[3].code == "assert x == 1\n"
    assert commands_of(blocks[4].code) == ["echo one \\\n  two", "true"]
    assert links_of(PAGE) == [(29, "#a-page"), (29, "other.md#b")]
    assert anchors_of(PAGE) == {"a-page"}


def test_a_page_runs_in_one_namespace_and_skips_what_is_marked(tmp_path: Path) -> None:
    run_blocks(blocks_of(PAGE), tmp_path / "page.md")


@pytest.mark.parametrize(
    "page",
    [
        "```python\nassert False\n```\n",
        "```console\n$ false\n```\n",
        "```console\n$ false | true\n```\n",
        "<!-- not run: -->\n```python\nx = 1\n```\n",
        "<!-- run with nothing-known -->\n```python\nx = 1\n```\n",
    ],
)
def test_a_page_that_does_not_work_fails(page: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run_blocks(blocks_of(page), tmp_path / "page.md")


def test_a_block_without_an_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="begins on line 2 has no end"):
        blocks_of("text\n```python\nx = 1\n")


def test_the_sample_data_is_the_same_every_time(tmp_path: Path) -> None:
    first, second = (write_sample_data(tmp_path / name) / "data" for name in "ab")
    assert len(list(first.iterdir())) == 5
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()

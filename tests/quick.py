"""The tests of what changed, in less than a minute: ``make quick``.

Run are the tests that changed since they left ``main``, those that import a module that did, and the doctests of such
modules. Whatever has not come to its turn after ``SECONDS`` is left, and its number is said.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

HOME = Path(__file__).parent.parent
SECONDS = 35


def changed_files() -> set[Path]:
    """Python files that differ from where this branch left main, committed or not."""

    def git(*words: str) -> list[str]:
        return subprocess.run(["git", *words], cwd=HOME, capture_output=True, text=True, check=True).stdout.split()

    base = git("merge-base", "main", "HEAD")[0]
    named = [*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")]
    return {path for name in named if (path := HOME / name).suffix == ".py" and path.exists()}


def module_of(path: Path) -> str | None:
    """The module of ours that a file is, if it is one."""
    source = HOME / "src"
    if source not in path.parents:
        return None
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imported_by(path: Path) -> set[str]:
    """All that a file imports, names inside of modules among them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def chosen_tests(changed: set[Path], tests: Iterable[Path]) -> list[Path]:
    """Tests that changed, then those that import what did, the shortest files first; then changed modules."""
    modules = {module for path in changed if (module := module_of(path)) is not None}
    first = sorted(path for path in changed if path.name.startswith("test_"))
    others = {path for path in tests if path not in changed and imported_by(path) & modules}
    own = sorted(path for path in changed if module_of(path) is not None)
    return [*first, *sorted(others, key=lambda path: (path.stat().st_size, path)), *own]


class Deadline:
    """Ends a run of pytest when its time is over, and counts what was not run."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self.num_left = 0

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """After each test."""
        del nodeid
        self.num_left -= 1

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Before the first."""
        self.num_left = len(session.items)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> object:
        """Around each."""
        if time.monotonic() > self._until:
            item.session.shouldstop = "the time is over"
        return (yield)


def main() -> int:
    """Run what is chosen; 0 where nothing fails."""
    chosen = chosen_tests(changed_files(), sorted((HOME / "tests").rglob("test_*.py")))
    if not chosen:
        sys.stdout.write("nothing changed since main\n")
        return 0
    deadline = Deadline(SECONDS)
    code = pytest.main(["--quiet", "--doctest-modules", *map(str, chosen)], plugins=[deadline])
    if code == pytest.ExitCode.INTERRUPTED and deadline.num_left > 0:
        sys.stdout.write(f"{deadline.num_left} tests did not come to their turn: `make test` runs all\n")
        return 0
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else int(code)


if __name__ == "__main__":
    raise SystemExit(main())

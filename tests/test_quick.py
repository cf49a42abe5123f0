"""`make quick` runs the tests of what changed, and ends in time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.quick import HOME, chosen_tests, imported_by, module_of

ORDER = HOME / "src" / "shoal" / "errors.py"


def test_tests_are_chosen_by_what_they_import() -> None:
    tests = sorted((HOME / "tests" / "storage").rglob("test_*.py"))
    chosen = chosen_tests({ORDER}, tests)
    assert module_of(ORDER) == "shoal.errors"
    assert chosen[-1] == ORDER  # its doctests
    assert all("shoal.errors" in imported_by(path) for path in chosen[:-1])
    assert 10 < len(chosen) <= len(tests)
    changed = Path(__file__)
    assert chosen_tests({ORDER, changed}, tests)[0] == changed
    assert chosen_tests(set(), tests) == []


@pytest.mark.drill
def test_a_run_ends_when_its_time_is_over(tmp_path: Path) -> None:
    lines = ["import time, pytest", "@pytest.mark.parametrize('n', range(50))", "def test(n): time.sleep(0.05)"]
    (tmp_path / "test_slow.py").write_text("\n".join(lines))
    script = (
        "import pytest; from tests.quick import Deadline; deadline = Deadline(0.3)\n"
        f"code = pytest.main(['-q', '-p', 'no:cacheprovider', '--rootdir', {str(tmp_path)!r}, '-c', '/dev/null',"
        f" {str(tmp_path)!r}], plugins=[deadline])\n"
        "assert code == pytest.ExitCode.INTERRUPTED, code\n"
        "assert 0 < deadline.num_left < 50, deadline.num_left\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, cwd=HOME)
    assert done.returncode == 0, done.stdout + done.stderr

"""Runs the tests of tables where pandas is installed, as it is in most environments: values must not depend on that.

``python tests/compat/with_pandas.py`` makes an environment below ``.compat/``, with the newest pandas. Exit code 1 if
anything differs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
HOME = ROOT / ".compat" / "pandas"
TESTS = (
    "test_odd_tables.py",
    "test_columns.py",
    "test_column_kinds.py",
    "test_parquet_footer.py",
    "test_without_pandas.py",
)


def main() -> int:
    """Make the environment if it is not there, and run the tests in it; pytest's exit code."""
    python = HOME / "bin" / "python"
    if not (HOME / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", HOME], check=True)
        wanted = ["pytest", "pytest-timeout", "hypothesis", "numpy", "pyarrow", "pandas"]
        pip = [str(python), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
        subprocess.run([*pip, *wanted], check=True, stderr=subprocess.DEVNULL)
        (HOME / "done").touch()
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    tests = [str(ROOT / "tests" / "shards" / name) for name in TESTS]
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    closing = (done.stdout.strip().splitlines() or [done.stderr.strip()])[-1]
    print(f"tables beside pandas: {closing}", flush=True)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())

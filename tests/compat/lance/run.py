"""Reads Lance tables that pylance wrote, in an environment of its own, and compares rows with what Lance reads.

``python tests/compat/lance/run.py [PYTEST OPTIONS]`` makes the environment below ``.compat/`` if it is missing, runs
the tests of `inside_lance.py` there, and prints a line. Exit code 1 if any fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.environments import ROOT, environment, home_of

PACKAGES = (
    *("pylance==14.0.2", "lancedb==0.40.0", "pyarrow==26.0.1", "numpy==2.4.6"),
    *("obstore>=0.12.1", "boto3==1.44.5", "moto[server]==5.2.5"),
    *("pytest==9.2.0", "pytest-timeout==2.4.0", "hypothesis==6.170.15"),
)


def python_with_lance() -> Path:
    """Return the Python of the environment."""
    return environment(home_of(ROOT / ".compat", "lance"), PACKAGES, torch=True)


def main() -> int:
    """Run the tests; return pytest's exit code."""
    by_path = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    tests = Path(__file__).with_name("inside_lance.py")
    command = [str(python_with_lance()), "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests), *sys.argv[1:]]
    ran = subprocess.run(command, cwd=ROOT, env=by_path, capture_output=True, text=True, check=False)
    closing = (ran.stdout.strip().splitlines() or [ran.stderr.strip()])[-1]
    print(f"lance    {closing}", flush=True)
    if ran.returncode:
        print(ran.stdout, ran.stderr, sep="\n")
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main())

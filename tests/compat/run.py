"""Runs the golden tests of orders and splits on every Python and numpy at hand: the same call must give the same order.

``python tests/compat/run.py`` makes one environment below ``.compat/`` for each interpreter and each numpy (the
oldest that shoal takes and has a wheel there, and the newest) and prints one line for each. Exit code 1 if any differs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.environments import ROOT, environment

COMPAT = ROOT / ".compat"
# The oldest numpy from 2.0 on with a wheel for the interpreter: 2.0 came before Python 3.13, and 2.3.1 before 3.14.
OLDEST_NUMPY = {"3.11": "2.0.2", "3.12": "2.0.2", "3.13": "2.1.0", "3.14": "2.3.2"}
GOLDEN = ("tests/order", "tests/stream/test_hash_splits.py")
_NO_TESTS = 5  # pytest's exit code for "nothing collected"


def interpreters() -> dict[str, Path]:
    """An interpreter for each version wanted, from PATH or from pyenv, if it starts."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for version in OLDEST_NUMPY:
        on_path = shutil.which(f"python{version}")
        candidates = [Path(on_path)] if on_path else []
        for candidate in [*candidates, *sorted(versions.glob(f"{version}.*/bin/python"))]:
            # pyenv puts a "python3.12" on PATH that refuses to start unless that version is selected.
            probe = [str(candidate), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
            answer = subprocess.run(probe, capture_output=True, text=True, check=False)
            if answer.returncode == 0 and answer.stdout.strip() == version:
                found[version] = candidate
                break
    return found


def pins_without_numpy() -> Path:
    """The constraints without numpy's lines, as a file."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    path = COMPAT / "constraints.txt"
    path.write_text("".join(f"{line}\n" for line in lines if not line.startswith("numpy==")), encoding="utf-8")
    return path


def run_golden(version: str, interpreter: Path, numpy: str, constraints: Path) -> int:
    """Make the environment if it is not there, and run the golden tests in it; pytest's exit code."""
    python = environment(
        COMPAT / f"python{version}-numpy-{numpy}",
        ["pytest", "pytest-timeout", "hypothesis", f"numpy{'' if numpy == 'newest' else f'=={numpy}'}"],
        options=("--only-binary=numpy", "-c", str(constraints)),
        interpreter=interpreter,
    )
    # By path and not installed: orders and splits need nothing but numpy, and an environment is then made in seconds.
    by_path = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "golden", *GOLDEN]
    done = subprocess.run(command, cwd=ROOT, env=by_path, capture_output=True, text=True, check=False)
    version_of = "import numpy; print(numpy.__version__)"
    exact = subprocess.run([python, "-c", version_of], capture_output=True, text=True, check=True).stdout.strip()
    closing = (done.stdout.strip().splitlines() or [done.stderr.strip()])[-1]
    print(f"python {version}  numpy {exact:<7}  {closing}", flush=True)
    if done.returncode not in {0, _NO_TESTS}:
        print(done.stdout, done.stderr, sep="\n")
    return done.returncode


def main() -> int:
    """Run every combination; 1 if any of them differs, or none has golden tests."""
    COMPAT.mkdir(exist_ok=True)
    constraints = pins_without_numpy()
    codes = [
        run_golden(version, interpreter, numpy, constraints)
        for version, interpreter in interpreters().items()
        for numpy in (OLDEST_NUMPY[version], "newest")
    ]
    if not codes or set(codes) == {_NO_TESTS}:
        print("no golden tests were run")
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())

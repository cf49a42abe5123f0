"""Runs the tests of formats with the oldest release of each optional package that pyproject.toml allows.

``python tests/compat/oldest.py`` makes an environment below ``.compat/``. What is left out differs by what these
releases can do, and says so. Exit code 1 if anything else fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
HOME = ROOT / ".compat" / "oldest"
TESTS = ("tests/shards", "tests/pack/test_repacking.py", "tests/stream/test_formats_of_batches.py")
LEFT_OUT = {
    # pyarrow before 26 cannot read a missing list of a fixed size from Parquet.
    "tests/shards/test_columns.py::test_rows_are_those_of_the_table",
    # pyarrow before 24 gives durations in maps of Parquet as integers.
    "tests/shards/test_odd_tables.py::test_times_that_python_cannot_hold_are_those_of_numpy",
    # pyarrow before 19 writes no histograms of sizes, which these tests compare.
    "tests/shards/test_parquet_footer.py::test_places_are_those_of_pyarrow",
    "tests/shards/test_parquet_footer.py::test_texts_that_repeat_count_as_often_as_they_are_held",
}


def oldest() -> list[str]:
    """The requirements of the package and of its extras, each at its lower bound; and what runs tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for name, lines in extras.items() if name != "dev" for line in lines)]
    wanted += [line for line in extras["dev"] if line.startswith(("pytest", "hypothesis"))]
    return [line.replace(">=", "==") for line in wanted]


def main() -> int:
    """Make the environment if it is not there for these releases, and run the tests in it; pytest's exit code."""
    python, done = HOME / "bin" / "python", HOME / "done"
    wanted = oldest()
    if not done.exists() or done.read_text(encoding="utf-8") != "\n".join(wanted):
        subprocess.run([sys.executable, "-m", "venv", "--clear", HOME], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *wanted], check=True, stderr=subprocess.DEVNULL)
        done.write_text("\n".join(wanted), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    command += [f"--deselect={test}" for test in sorted(LEFT_OUT)]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    closing = (ran.stdout.strip().splitlines() or [ran.stderr.strip()])[-1]
    print(f"{', '.join(wanted)}: {closing}", flush=True)
    if ran.returncode:
        print(ran.stdout, ran.stderr, sep="\n")
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main())

"""Runs the tests of formats beside other packages than those that are pinned: the oldest, and pandas.

``python tests/compat/packages.py`` makes an environment for each suite below ``.compat/``, runs its tests there and
prints a line. Exit code 1 if any differs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.environments import ROOT, environment

CONSTRAINTS = ("-c", str(ROOT / "constraints.txt"))
RUNNERS = ("pytest", "pytest-timeout", "hypothesis")
_NOT_OF_FORMATS = ("dev", "spark", "ray", "lance", "hub", "all")
TABLES = ("odd_tables", "columns", "column_kinds", "parquet_footer", "without_pandas")


@dataclass(frozen=True, slots=True)
class Suite:
    """Tests, and the packages beside which they are run; ``left_out`` are those that cannot pass, with the reason.

    If it ``is_pure``, the compiled module is left out.
    """

    name: str
    packages: tuple[str, ...]
    tests: tuple[str, ...]
    options: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    is_pure: bool = False


def with_pandas() -> Suite:
    """Tables, where pandas is installed as in most environments: values must not depend on that."""
    tests = tuple(f"tests/formats/test_{name}.py" for name in TABLES)
    return Suite("pandas", (*RUNNERS, "numpy", "pyarrow", "pandas"), tests, CONSTRAINTS)


def oldest() -> Suite:
    """All formats, with the oldest release of each optional package that is allowed, and without what is compiled."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *(line for name, lines in extras.items() if name not in _NOT_OF_FORMATS for line in lines),
    ]
    wanted += [line for line in extras["dev"] if line.startswith(RUNNERS)]
    return Suite(
        "oldest",
        is_pure=True,
        packages=tuple(line.replace(">=", "==") for line in wanted),
        tests=("tests/formats", "tests/pack/test_repacking.py", "tests/pipeline/test_formats_of_batches.py"),
        left_out=(
            # pyarrow before 26 cannot read a missing list of a fixed size from Parquet.
            "tests/formats/test_columns.py::test_rows_are_those_of_the_table",
            # pyarrow before 24 gives durations in maps of Parquet as integers.
            "tests/formats/test_odd_tables.py::test_times_that_python_cannot_hold_are_those_of_numpy",
            # pyarrow before 19 writes no histograms of sizes, which these tests compare.
            "tests/formats/test_parquet_footer.py::test_places_are_those_of_pyarrow",
            "tests/formats/test_parquet_footer.py::test_texts_that_repeat_count_as_often_as_they_are_held",
        ),
    )


def run(suite: Suite) -> int:
    """Make the environment if it is not there for these packages, and run the tests in it; pytest's exit code."""
    python = environment(ROOT / ".compat" / suite.name, suite.packages, options=suite.options)
    by_path = os.environ | {"PYTHONPATH": str(ROOT / "src"), "SHOAL_PURE_PYTHON": str(int(suite.is_pure))}
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *suite.tests]
    command += [f"--deselect={test}" for test in suite.left_out]
    ran = subprocess.run(command, cwd=ROOT, env=by_path, capture_output=True, text=True, check=False)
    closing = (ran.stdout.strip().splitlines() or [ran.stderr.strip()])[-1]
    print(f"{suite.name:8} {closing}", flush=True)
    if ran.returncode:
        print(ran.stdout, ran.stderr, sep="\n")
    return ran.returncode


if __name__ == "__main__":
    sys.exit(max([run(suite) for suite in (with_pandas(), oldest())]))

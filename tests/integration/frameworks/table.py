"""Print what the suite compares as Markdown: ``python -m tests.integration.frameworks.table [FRAMEWORK...]``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.environments import CannotHaveError
from tests.integration.frameworks.cells import CELLS
from tests.integration.frameworks.side_by_side import compare, launches_of, table, write_data
from tests.integration.installs import python_with


def main() -> None:
    is_right = True
    for framework in sys.argv[1:] or CELLS:
        compared = []
        try:
            python = python_with(launches_of(framework)[0].environment)
        except CannotHaveError as error:
            print(f"{framework} is left out: {error}", file=sys.stderr, flush=True)
            continue
        for launch in launches_of(framework):
            with tempfile.TemporaryDirectory() as folder:
                write_data(Path(folder))
                compared += list(compare(launch, python, Path(folder)))
        print(f"\n## {framework}\n\n{table(framework, compared)}", flush=True)
        for one in compared:
            for text in one.unexplained:
                is_right = False
                print(f"{one.launch}, {one.cell}: {text}", file=sys.stderr, flush=True)
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()

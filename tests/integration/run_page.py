"""Runs a page in an environment: ``run_page.py PAGE ENVIRONMENT``.

The blocks that are marked for the environment, and on pages of ``start/`` the unmarked blocks that lead to them, run in
one namespace and in the current directory, which holds the data that the pages read.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from tests.documents import blocks_of


def main() -> None:
    """Run them, and tell how many there were."""
    path, environment = Path(sys.argv[1]), sys.argv[2]
    page = ModuleType("__page__")  # a module, so that what a page defines can be pickled
    sys.modules["__page__"] = page
    num_run, is_start = 0, path.parent.name == "start"
    for block in blocks_of(path.read_text(encoding="utf-8")):
        is_marked = block.run_with == environment
        if block.language == "python" and (is_marked or (is_start and block.run_with is None)):
            # Blank lines before the code, so that a traceback shows the line of the page.
            exec(compile("\n" * (block.line - 1) + block.code, str(path), "exec"), vars(page))
            num_run += is_marked
    print(f"{num_run} blocks ran")


if __name__ == "__main__":
    main()

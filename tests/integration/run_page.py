"""Runs the blocks of a page that are marked for an environment, in that environment: ``run_page.py PAGE ENVIRONMENT``.

All in one namespace and in the current directory, which holds the data that the pages read.
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
    num_run = 0
    for block in blocks_of(path.read_text(encoding="utf-8")):
        if block.run_with == environment and block.language == "python":
            # Blank lines before the code, so that a traceback shows the line of the page.
            exec(compile("\n" * (block.line - 1) + block.code, str(path), "exec"), vars(page))
            num_run += 1
    print(f"{num_run} blocks ran")


if __name__ == "__main__":
    main()

"""Entry point of ``python -m shoal``, the command ``shoal``."""

from __future__ import annotations

import sys

from shoal.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

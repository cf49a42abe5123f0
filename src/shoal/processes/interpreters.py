"""Python interpreters that run this exact package, and no code of the user."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from pathlib import Path
from typing import Any

_HOME = str(Path(__file__).resolve().parents[2])  # the directory that `import shoal` searches


def start_python(module: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start a module of this package as a program; ``options`` go to `subprocess.Popen`.

    The program imports the package from the same place as this process: installed, or in a directory that only
    ``sys.path`` knows. The program has its own process group: Ctrl-C reaches only the parent, and the parent ends the
    program. The program starts no threads for linear algebra: numpy would create one unused thread per processor.
    """
    path = os.environ.get("PYTHONPATH", "")
    # Installed packages are found anyway, and their directory ahead of the standard library could shadow parts of it.
    if _HOME not in {*site.getsitepackages(), site.getusersitepackages()}:
        path = os.pathsep.join([_HOME, path]) if path else _HOME
    environment = {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(  # noqa: S603  # this very interpreter
        [sys.executable, "-P", "-m", module, *arguments],  # -P: a json.py in the user's directory must not become ours
        env=os.environ | environment,
        process_group=0,
        **options,
    )


def usable_processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

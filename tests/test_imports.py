"""What is imported when: names of the package on first use, and of other libraries only what the data needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.samples import write_sample_data

_LOADED = "print(*sorted(set(sys.modules) - before))"


def loaded_by(code: str, directory: Path) -> set[str]:
    """Return the modules that code imports beyond numpy's."""
    script = f"import sys, numpy; before = set(sys.modules)\n{code}\n{_LOADED}"
    done = subprocess.run([sys.executable, "-c", script], cwd=directory, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_shoal_imports_three_of_its_modules(tmp_path: Path) -> None:
    assert loaded_by("import shoal", tmp_path) - {"__future__"} == {"shoal", "shoal.errors", "shoal.lazy_names"}


def test_a_first_batch_of_local_files_imports_no_library_and_no_room_that_it_does_not_use(tmp_path: Path) -> None:
    directory = write_sample_data(tmp_path)
    code = (
        "import os, shoal; os.environ['SHOAL_CACHE_DIR'] = 'cache'\n"
        "next(iter(shoal.open('data/train-*.tar').shuffle(seed=0).batch(4)))"
    )
    loaded = loaded_by(code, directory)
    assert not loaded & {"obstore", "pyarrow", "torch", "PIL", "msgspec", "matplotlib"}
    rooms = {name.split(".")[1] for name in loaded if name.startswith("shoal.")}
    assert not rooms & {"cli", "integrations", "pack", "planning", "reports", "testing", "verify"}

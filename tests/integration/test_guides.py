"""The blocks of pages that need another library run with it, in an environment of its own."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.documents import blocks_of
from tests.samples import write_photos, write_sample_data

ROOT = Path(__file__).parent.parent.parent
PAGES = {
    path: Counter(block.run_with for block in blocks_of(path.read_text(encoding="utf-8")) if block.run_with)
    for path in sorted((ROOT / "docs").rglob("*.md"))
}
CASES = [(path, environment) for path, counts in PAGES.items() for environment in counts]


@pytest.mark.parametrize(
    ("path", "environment"), CASES, ids=[f"{path.stem}-{environment}" for path, environment in CASES]
)
def test_the_blocks_for_another_library_run_with_it(
    path: Path, environment: str, python: Callable[[str], Path], tmp_path: Path
) -> None:
    told = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "SHOAL_CACHE_DIR": str(tmp_path / "cache"),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
        "RAY_AUTH_MODE": "disabled",  # or Ray writes a token into the home directory
    }
    directory = write_sample_data(tmp_path / "page")
    write_photos(directory / "photos")
    done = subprocess.run(
        [python(environment), Path(__file__).parent / "run_page.py", path, environment],
        env=told,
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"{PAGES[path][environment]} blocks ran" in done.stdout

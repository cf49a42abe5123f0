"""Tensors that Ray and Hugging Face datasets write have one shape, whether or not the library is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_frameworks import environment
from tests.integration.write_tensors import TENSORS

HERE = Path(__file__).parent
READER = HERE.parent / "formats" / "read_tensors.py"


@pytest.mark.parametrize(("library", "module", "num_files"), [("ray", "ray.data", 3), ("datasets", "datasets", 2)])
def test_tensors_have_one_shape_whatever_is_imported(
    library: str, module: str, num_files: int, python: Callable[[str], Path], tmp_path: Path
) -> None:
    run(python(library), HERE / "write_tensors.py", library, tmp_path / "written", folder=tmp_path)
    shards = sorted(path for path in (tmp_path / "written").rglob("*") if path.suffix in (".parquet", ".arrow"))
    assert len(shards) == num_files
    plain = json.loads(run(python(library), READER, "plain", "here", *shards, folder=tmp_path))
    for shard in plain.values():
        check(shard)
    assert json.loads(run(python(library), READER, module, "here", *shards, folder=tmp_path)) == plain
    elsewhere = json.loads(run(Path(sys.executable), READER, "plain", "here", *shards, folder=tmp_path))
    for shard in elsewhere.values():
        check(shard)


def check(shard: dict[str, Any]) -> None:
    assert shard["sample"] == {"tensor": ["float32", [2, 3], TENSORS[1].tolist()]}
    for output in ("numpy", "None"):
        assert [batch["tensor"] for batch in shard[output]] == [
            ["float32", [4, 2, 3], TENSORS[first : first + 4].tolist()] for first in (0, 4)
        ]
    assert [batch["tensor"][1] for batch in shard["arrow"]] == [TENSORS[:4].tolist(), TENSORS[4:].tolist()]


def run(python: Path, script: Path, *arguments: str | Path, folder: Path) -> str:
    """Return what a script prints."""
    done = subprocess.run(
        [python, script, *arguments],
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout

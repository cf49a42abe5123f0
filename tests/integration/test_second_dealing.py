"""A wrapper that deals samples to ranks is found in the real library, with worker processes and without."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.samples import write_tar_shards

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("way", "num_workers", "says"),
    [
        ("plain", 2, "right: True"),
        ("dispatched", 0, "accelerate's DataLoaderDispatcher deals samples to ranks"),
        ("dispatched", 2, "accelerate's DataLoaderDispatcher deals samples to ranks"),
        ("sharded", 0, "accelerate's IterableDatasetShard deals samples to ranks"),
        ("sharded", 2, "accelerate's IterableDatasetShard deals samples to ranks"),
    ],
)
def test_samples_are_dealt_once_or_not_at_all(
    way: str, num_workers: int, says: str, python: Callable[[str], Path], tmp_path: Path
) -> None:
    write_tar_shards(tmp_path / "data")
    script = Path(__file__).parent / "second_dealing.py"  # accelerate is not installed here
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [python("frameworks"), *launcher, script, way, str(tmp_path / "data"), str(num_workers)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert says in done.stdout

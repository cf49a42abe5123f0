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


def on_two_ranks(python: Path, script: Path, *arguments: str | Path, directory: Path) -> str:
    """What a script prints that torchrun starts twice; its libraries are not installed here."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [python, *launcher, script, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


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
    script = Path(__file__).parent / "second_dealing.py"
    said = on_two_ranks(python("frameworks"), script, way, tmp_path / "data", str(num_workers), directory=tmp_path)
    assert says in said


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("transformers", "refused: UsageError: accelerate's DataLoaderDispatcher deals samples to ranks"),
        ("lightning", "right: True"),
        ("lightning-map", "refused: TypeError:  Lightning can't inject a (distributed) sampler"),
    ],
)
def test_trainers_deal_once_or_not_at_all(way: str, says: str, python: Callable[[str], Path], tmp_path: Path) -> None:
    write_tar_shards(tmp_path / "data")
    script = Path(__file__).parent / "second_dealing_trainers.py"
    said = on_two_ranks(python("frameworks"), script, way, tmp_path / "data", tmp_path / "out", directory=tmp_path)
    assert says in said

"""The example that trains on tokens runs on tiny data, and goes on where it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parent.parent.parent


def example(folder: Path, verb: str, *more: str) -> list[str]:
    """The lines that it prints."""
    script = [str(ROOT / "examples" / "gpt_tokens.py"), verb, str(folder / "tokens"), *more]
    done = subprocess.run(
        [sys.executable, *script],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_training_on_tokens_goes_on_where_it_was(tmp_path: Path) -> None:
    example(tmp_path, "make", "--samples", "100")
    steps = ("checkpoint.pt", "--steps", "3", "--batch", "8")
    first = example(tmp_path, "train", *steps)
    assert first[0].startswith("streamed: ")
    assert torch.load(tmp_path / "checkpoint.pt")["loader"]["position"] == 4 * 8
    again = example(tmp_path, "train", *steps)
    assert again[0] == "going on at 0:32"
    assert "of the time spent waiting for batches" in again[1]
    assert torch.load(tmp_path / "checkpoint.pt")["loader"]["position"] == 8 * 8

"""A batch comes a short way: few functions between bytes and user, and between the order and a request."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MOST_TO_BATCH, MOST_TO_REQUEST = 14, 25


def test_the_way_of_a_batch_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `bench/hops.py`, which says what a hop is."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path))
    script = Path(__file__).parents[2] / "bench" / "hops.py"
    command = [sys.executable, str(script), "--wing", "all", "--most", str(MOST_TO_BATCH), str(MOST_TO_REQUEST)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout + done.stderr

"""Killed with SIGKILL again and again, a live stream delivers what it would have delivered without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.live.killed_stream import TOTAL, stream

SCRIPT = Path(__file__).parent / "killed_stream.py"
ROOT = SCRIPT.parent.parent.parent


@pytest.mark.parametrize(
    ("kind", "contents", "kills"),
    [
        ("own state", "contents", [2]),
        pytest.param("own state", "contents", [2, 3], marks=pytest.mark.drill),
        pytest.param("followed", "", [2, 3], marks=pytest.mark.drill),
        pytest.param("replayed", "", [2, 3], marks=pytest.mark.drill),
    ],
)
def test_a_killed_run_goes_on_exactly(kind: str, contents: str, kills: list[int], tmp_path: Path) -> None:
    """Each process is killed after so many checkpoints; one more process then runs to the end."""
    shards = tmp_path / "shards"
    shards.mkdir()
    for first in range(0, TOTAL, 80):
        lines = (json.dumps({"id": number}) + "\n" for number in range(first, first + 80))
        (shards / f"{first:04d}.jsonl").write_text("".join(lines))
    whole = np.concatenate([batch["id"] for batch in stream(kind, shards)]).tolist()
    assert sorted(whole) == list(range(TOTAL))
    command = [sys.executable, str(SCRIPT), kind, str(shards), str(tmp_path / "checkpoint.json"), contents]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for num_checkpoints in kills:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            for _ in range(num_checkpoints):
                assert process.stdout.readline() == "saved\n"
            process.kill()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True, timeout=60)
    assert json.loads(done.stdout.splitlines()[-1]) == whole

"""The examples that train on tokens run on tiny data, and go on where they were, also when they were killed."""

from __future__ import annotations

import os
import signal
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


def test_training_on_packed_sequences_is_killed_and_sees_every_token_once(tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "gpt_packed.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    made = [sys.executable, script, "make", str(tmp_path / "documents")]
    subprocess.run(made, env=environment, check=True, timeout=120)

    def job(num_processes: int, checkpoint: str, *, kill_at: str = "") -> list[str]:
        """The lines that the job prints, until one begins like this."""
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes)]
        command = [sys.executable, *launcher, script, "train", str(tmp_path / "documents"), str(tmp_path / checkpoint)]
        lines: list[str] = []
        with subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if kill_at and line.startswith(kill_at):
                    ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                    for pid in (process.pid, *map(int, ranks)):
                        os.kill(pid, signal.SIGKILL)
        assert process.returncode == (-signal.SIGKILL if kill_at else 0), lines
        return lines

    wanted = job(1, "whole.pt")[-1]
    job(2, "killed.pt", kill_at="epoch 0, step 15")
    job(3, "killed.pt", kill_at="epoch 1, step 55")
    assert job(2, "killed.pt")[-1] == wanted
    assert "tokens seen" in wanted

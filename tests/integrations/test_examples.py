"""The examples run, and do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from tests.samples import write_sample_data

ROOT = Path(__file__).parent.parent.parent


def run(arguments: list[str], *, num_processes: int) -> str:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(num_processes), "--standalone"]
    done = subprocess.run(
        [sys.executable, *(launcher if num_processes > 1 else []), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_training_with_ddp_goes_on_where_it_was(tmp_path: Path) -> None:
    write_sample_data(tmp_path)
    for path in (tmp_path / "data").glob("*.jsonl"):
        path.unlink()
    example, checkpoint = str(ROOT / "examples" / "torch_ddp.py"), tmp_path / "checkpoint.pt"
    first = run([example, str(tmp_path / "data"), str(checkpoint)], num_processes=2)
    # 200 samples are 9 global batches an epoch; the last save is of step 15, the 6th batch of epoch 1.
    assert first.splitlines()[-1].startswith("epoch 1, step 15: loss")
    state = torch.load(checkpoint)["loader"]
    assert (state["epoch"], state["position"]) == (1, 6 * 24)
    again = run([example, str(tmp_path / "data"), str(checkpoint)], num_processes=1)
    assert again == ""  # three batches to go, and no save among them

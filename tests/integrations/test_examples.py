"""The examples run, and do what they say; `make integration` runs them under torchrun and in their frameworks."""

from __future__ import annotations

from pathlib import Path

import torch
from tests.integrations.launched import launch
from tests.samples import write_sample_data

ROOT = Path(__file__).parent.parent.parent


def run(arguments: list[str], *, num_processes: int, log: Path) -> str:
    """What the ranks print."""
    job = launch(arguments, num_processes=num_processes, log=log, environment={"OMP_NUM_THREADS": "1"})
    job.join(110)
    printed = log.read_text()
    assert job.exitcode == 0, printed[-3000:]
    return printed


def test_training_with_ddp_goes_on_where_it_was(tmp_path: Path) -> None:
    write_sample_data(tmp_path)
    for path in (tmp_path / "data").glob("*.jsonl"):
        path.unlink()
    example, checkpoint = str(ROOT / "examples" / "torch_ddp.py"), tmp_path / "checkpoint.pt"
    first = run([example, str(tmp_path / "data"), str(checkpoint)], num_processes=2, log=tmp_path / "first")
    # 200 samples are 9 global batches an epoch; the last save is of step 15, the 6th batch of epoch 1.
    assert first.splitlines()[-1].startswith("epoch 1, step 15: loss")
    state = torch.load(checkpoint)["loader"]
    assert (state["epoch"], state["position"]) == (1, 6 * 24)
    again = run([example, str(tmp_path / "data"), str(checkpoint)], num_processes=1, log=tmp_path / "again")
    assert again == ""  # three batches to go, and no save among them

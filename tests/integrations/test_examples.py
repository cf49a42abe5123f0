"""The examples run, and do what they say; `make integration` runs them under torchrun and in their frameworks."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch
from tests.integrations.launched import launch
from tests.samples import write_sample_data

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = str(ROOT / "examples" / "torch_ddp.py")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_sample_data(tmp_path)
    for path in (tmp_path / "data").glob("*.jsonl"):
        path.unlink()
    return tmp_path / "data"


def check_first_run(printed: str, checkpoint: Path) -> None:
    # 200 samples are 9 global batches an epoch; the last save is of step 15, the 6th batch of epoch 1.
    assert printed.splitlines()[-1].startswith("epoch 1, step 15: loss")
    state = torch.load(checkpoint)["loader"]
    assert (state["epoch"], state["position"]) == (1, 6 * 24)


def test_training_in_one_process_goes_on_where_it_was(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tmp_path / "checkpoint.pt"
    monkeypatch.setattr(sys, "argv", [EXAMPLE, str(data), str(checkpoint)])
    runpy.run_path(EXAMPLE, run_name="__main__")
    check_first_run(capsys.readouterr().out, checkpoint)
    runpy.run_path(EXAMPLE, run_name="__main__")
    assert capsys.readouterr().out == ""  # three batches to go, and no save among them


def run(arguments: list[str], *, num_processes: int, log: Path) -> str:
    """Run ranks to their end; return their output."""
    job = launch(arguments, num_processes=num_processes, log=log, environment={"OMP_NUM_THREADS": "1"})
    job.join(110)
    printed = log.read_text()
    assert job.exitcode == 0, printed[-3000:]
    return printed


@pytest.mark.drill
def test_training_with_ddp_goes_on_where_it_was(data: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.pt"
    arguments = [EXAMPLE, str(data), str(checkpoint)]
    check_first_run(run(arguments, num_processes=2, log=tmp_path / "first"), checkpoint)
    assert run(arguments, num_processes=1, log=tmp_path / "again") == ""

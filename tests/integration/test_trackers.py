"""`shoal.watch.log_to` with the tools themselves: they keep the numbers at their steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.integration.test_tensors_of_libraries import run

SCRIPT = Path(__file__).with_name("log_to_trackers.py")


def test_each_tool_keeps_the_numbers_of_a_run(python: Callable[[str], Path], tmp_path: Path) -> None:
    kept = json.loads(run(python("trackers"), SCRIPT, tmp_path, folder=tmp_path).splitlines()[-1])
    assert kept["tensorboard"]["data/samples"] == [[104, 40.0], [108, 80.0], [112, 120.0]]
    assert {"data/samples_per_second", "data/wait_share"} <= kept["tensorboard"].keys()
    assert kept["wandb"]["data/samples"] == 120
    assert kept["wandb"]["_step"] == 2  # a run counts its own steps
    assert kept["lightning"] == [[4, 40.0], [8, 80.0], [12, 120.0]]

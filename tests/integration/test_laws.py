"""The laws of exactness in real jobs of each framework: killed, and started again at other sizes."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.laws.history import Leg, by_hand, by_script, by_torchrun, check_history, environment_of
from tests.stream.made import write_tars

pytestmark = pytest.mark.timeout(1800)  # up to six jobs, one after the other

LEGS = (Leg(2, 1, "rank"), Leg(3, 0, "job"), Leg(1, 2, "end"))


@pytest.mark.parametrize("framework", ["accelerate", "lightning", "transformers"])
def test_a_job_that_is_killed_goes_on_at_another_size(
    framework: str, python: Callable[[str], Path], tmp_path: Path
) -> None:
    write_data(tmp_path)
    check_history(f"train_{framework}.py", LEGS, tmp_path, by_torchrun(python("frameworks")))


def test_plain_torch_at_five_sizes_and_several_times_in_one_epoch(
    python: Callable[[str], Path], tmp_path: Path
) -> None:
    write_data(tmp_path)
    legs = [
        Leg(1, 3, "job", "dcp", 1),
        Leg(2, 0, "rank"),
        Leg(3, 1, "rank", "dcp"),
        Leg(4, 2, "job"),
        Leg(6, 1, "rank"),
    ]
    begins = check_history("train_torch.py", [*legs, Leg(2, 2, "end")], tmp_path, by_torchrun(python("frameworks")))
    assert sum(epoch == 0 for epoch, _ in begins) >= 4, begins


def test_jax_at_five_sizes_and_several_times_in_one_epoch(python: Callable[[str], Path], tmp_path: Path) -> None:
    write_data(tmp_path)
    legs = [Leg(1, 0, "job"), Leg(2, 0, "rank"), Leg(3, 0, "rank"), Leg(4, 0, "job"), Leg(6, 0, "rank")]
    begins = check_history("train_jax.py", [*legs, Leg(2, 0, "end")], tmp_path, by_hand(python("jax")))
    assert sum(epoch == 0 for epoch, _ in begins) >= 4, begins


def test_ray_train_at_other_numbers_of_workers(python: Callable[[str], Path], tmp_path: Path) -> None:
    write_data(tmp_path)
    legs = [Leg(2, 1, "rank"), Leg(3, 0, "job"), Leg(1, 0, "end")]
    check_history("train_ray.py", legs, tmp_path, by_script(python("ray")))


def write_data(folder: Path) -> None:
    """477 samples, of which the last global batch of an epoch is not whole."""
    write_tars(folder / "data", [70, 1, 0, 147, 62, 60, 35, 102])


def test_ranks_of_a_mesh_share_samples_and_one_that_differs_is_found(
    python: Callable[[str], Path], tmp_path: Path
) -> None:
    write_data(tmp_path)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    done = agreed([[*launcher, "agree_torch.py", "data"]], python("frameworks"), tmp_path)
    assert sorted(done) == [f"rank {rank} agrees" for rank in range(4)]


def test_processes_of_a_mesh_share_samples_and_one_that_differs_is_found(
    python: Callable[[str], Path], tmp_path: Path
) -> None:
    write_data(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    commands = [["agree_jax.py", "data", coordinator, "4", str(process)] for process in range(4)]
    done = agreed(commands, python("jax"), tmp_path)
    assert sorted(done) == [f"process {process} agrees" for process in range(4)]


def agreed(commands: list[list[str]], python: Path, folder: Path) -> list[str]:
    """The lines about agreement that scripts of the laws print, started together."""
    laws = Path(__file__).parent / "laws"
    environment = environment_of(folder)
    jobs = [
        subprocess.Popen(
            [python, *(str(laws / word) if word.endswith(".py") else word for word in command)],
            env=environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    try:
        printed = [job.communicate(timeout=200)[0] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    assert [job.returncode for job in jobs] == [0] * len(jobs), "\n".join(printed)[-5000:]
    return [line for text in printed for line in text.splitlines() if line.endswith(" agrees")]

"""The examples of frameworks, each run against the real thing in an environment of its own."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.samples import write_tar_shards

ROOT = Path(__file__).parent.parent.parent
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]

PythonWith = Callable[[str], Path]


@pytest.mark.parametrize(
    ("script", "num_processes", "says"),
    [
        ("lightning_resume.py", 1, "50 steps; resumed at step 33, and saw the same 17 batches"),
        ("hf_trainer.py", 1, "50 steps; resumed at step 33, and saw the same 17 batches"),
        ("accelerate_loop.py", 2, "2 ranks saw each of 200 samples once"),
    ],
)
def test_an_example_does_what_it_says(
    script: str, num_processes: int, says: str, python: PythonWith, tmp_path: Path
) -> None:
    write_tar_shards(tmp_path / "data")
    launcher = [*TORCHRUN, str(num_processes)] if num_processes > 1 else []
    assert says in printed(start(python("frameworks"), script, tmp_path, launcher=launcher))


def test_ddp_goes_on_at_another_size_under_torchrun(python: PythonWith, tmp_path: Path) -> None:
    write_tar_shards(tmp_path / "data")
    for num_processes, at in ((3, "epoch 0, step 5: loss "), (2, "")):
        launcher = [*TORCHRUN, str(num_processes)]
        lines = printed(start(python("frameworks"), "torch_ddp.py", tmp_path, launcher=launcher))
        assert lines[0].startswith(at) if at else lines == []  # the second has three batches to go, and no save


def test_jax_goes_on_with_another_number_of_processes(python: PythonWith, tmp_path: Path) -> None:
    write_tar_shards(tmp_path / "data")
    for num_processes, at in ((2, "epoch 0, step 5: loss "), (3, "")):
        with socket.create_server(("127.0.0.1", 0)) as free:
            coordinator = f"127.0.0.1:{free.getsockname()[1]}"
        more = [[coordinator, str(num_processes), str(number)] for number in range(num_processes)]
        jobs = [start(python("jax"), "jax_train.py", tmp_path, more=arguments) for arguments in more]
        # XLA's collectives say on the same stream that they are connected.
        lines = [line for job in jobs for line in printed(job) if line.startswith("epoch")]
        assert lines[0].startswith(at) if at else lines == []


def test_ray_train_goes_on_with_another_number_of_workers(python: PythonWith, tmp_path: Path) -> None:
    write_tar_shards(tmp_path / "data")
    # 17 global batches an epoch; the seventh step of a run is lost with it, since a checkpoint is of every third.
    for arguments, says in (("2", "step 6 of epoch 0"), ("3 7", "step 12 of epoch 0"), ("1 99", "step 33 of epoch 1")):
        lines = printed(start(python("ray"), "ray_train.py", tmp_path, more=arguments.split()))
        assert lines[-1].endswith(says), lines


@pytest.mark.parametrize(
    ("library", "environment"),
    [
        ("jax", "jax"),
        ("datasets", "datasets"),
        ("torchdata", "datasets"),
        ("torchvision", "torchvision"),
        ("dali", "dali"),
    ],
)
def test_a_door_works_with_the_library_behind_it(
    library: str, environment: str, python: PythonWith, tmp_path: Path
) -> None:
    inside(python(environment), f"inside_{library}.py", tmp_path)


def inside(python: Path, tests: str, folder: Path) -> None:
    """Run tests of ours with another Python."""
    path = Path(__file__).parent / tests
    command = [str(python), "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(
        command, env=environment(folder), cwd=ROOT, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def start(
    python: Path, script: str, folder: Path, *, launcher: Sequence[str] = (), more: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """An example at work; given are the folders "data" and "out" of a folder, and what else it takes."""
    arguments = [str(ROOT / "examples" / script), str(folder / "data"), str(folder / "out"), *more]
    return subprocess.Popen(
        [python, *launcher, *arguments],
        env=environment(folder),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def printed(job: subprocess.Popen[str]) -> list[str]:
    """The lines that an example prints."""
    try:
        out, errors = job.communicate(timeout=300)
    finally:
        job.kill()
    assert job.returncode == 0, errors[-3000:]
    return out.splitlines()


def environment(folder: Path) -> dict[str, str]:
    """Of a process that has nothing of this one but our source."""
    told = {"SHOAL_CACHE_DIR": str(folder / "cache"), "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}
    told |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}  # nothing is left in the home directory
    return {**os.environ, **told, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}

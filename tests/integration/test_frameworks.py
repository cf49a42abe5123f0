"""The examples of frameworks, each run against the real thing in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.installs import HOME, CannotHaveError, run
from tests.samples import write_tar_shards

ROOT = Path(__file__).parent.parent.parent
TORCH = "2.13.0"
FRAMEWORKS = ("accelerate==1.15.0", "lightning==2.6.6", "transformers==5.23.0")


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the programs of an environment with torch and the frameworks."""
    home = HOME / f"frameworks-python{sys.version_info[0]}.{sys.version_info[1]}"
    try:
        if not (home / "done").exists():
            run(sys.executable, "-m", "venv", "--clear", home)
            pip = (home / "bin" / "python", "-m", "pip", "install", "--quiet")
            run(*pip, f"torch=={TORCH}")  # on its own and first, as in the Makefile
            run(*pip, *FRAMEWORKS)
            (home / "done").touch()
    except CannotHaveError as error:
        pytest.skip(str(error))
    return home / "bin"


@pytest.mark.parametrize(
    ("script", "num_processes", "says"),
    [
        ("lightning_resume.py", 1, "50 steps; resumed at step 33, and saw the same 17 batches"),
        ("hf_trainer.py", 1, "50 steps; resumed at step 33, and saw the same 17 batches"),
        ("accelerate_loop.py", 2, "2 ranks saw each of 200 samples once"),
    ],
)
def test_an_example_does_what_it_says(
    script: str, num_processes: int, says: str, programs: Path, tmp_path: Path
) -> None:
    write_tar_shards(tmp_path / "data")
    assert says in example(programs, script, tmp_path, num_processes=num_processes)


def test_ddp_goes_on_at_another_size_under_torchrun(programs: Path, tmp_path: Path) -> None:
    write_tar_shards(tmp_path / "data")
    for num_processes, at in ((3, "epoch 0, step 5: loss "), (2, "")):
        lines = example(programs, "torch_ddp.py", tmp_path, num_processes=num_processes)
        assert lines[0].startswith(at) if at else lines == []  # the second has three batches to go, and no save


def example(programs: Path, script: str, folder: Path, *, num_processes: int) -> list[str]:
    """The lines that an example prints; given are the folders "data" and "out" of a folder."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes)]
    arguments = [str(ROOT / "examples" / script), str(folder / "data"), str(folder / "out")]
    done = subprocess.run(
        [programs / "python", *(launcher if num_processes > 1 else []), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()

"""Workers import torch, and the script of the user, only if a function of the user needs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.stream.made import open_finely, write_tars

SCRIPT = """
import sys
import torch
import shoal, shoal.torch
sys.stdout.write(f"main runs {__name__}\\n")
sys.stdout.flush()

def tell(worker):
    sys.stdout.write(f"worker {'torch' in sys.modules} {__name__}\\n")
    sys.stdout.flush()

def doubled(sample):
    return {"number": 2 * int(sample["cls"])}

ds = shoal.open(sys.argv[1], index=sys.argv[2])
stages = {"none": lambda: ds, "decode": lambda: ds.decode(), "main": lambda: ds.map(doubled)}[sys.argv[3]]()
options = {"worker_init_fn": tell} if sys.argv[4:] else {}
if __name__ == "__main__" or sys.argv[3] != "main":
    loader = shoal.torch.DataLoader(stages.batch(5), num_workers=2, **options)
    for batch in loader:
        pass
    print("batches", loader.stats()["num_batches"], torch.is_tensor(batch.get("number", batch.get("cls"))))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("light")
    open_finely(write_tars(directory / "data", [20, 10]))
    return directory


def run(data: Path, tmp_path: Path, *words: str) -> list[str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(data / "data"), str(data / "fine.index"), *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("stage", ["none", "decode"])
def test_workers_without_functions_of_the_user_run_no_script(stage: str, data: Path, tmp_path: Path) -> None:
    """Such a script needs no `if __name__ == "__main__":`."""
    lines = run(data, tmp_path, stage)
    assert lines.count("main runs __main__") == 1
    assert "main runs __mp_main__" not in lines
    assert any(line.startswith("batches 6") for line in lines)


def test_functions_of_the_script_run_the_script(data: Path, tmp_path: Path) -> None:
    lines = run(data, tmp_path, "main", "tell")
    assert 1 <= lines.count("main runs __mp_main__") <= 2  # by Python's release
    assert lines.count("worker True __mp_main__") == 2
    assert "batches 6 True" in lines


PROBE = """
import sys
import shoal, shoal.torch
from shoal.stream.workers import worker_loop

ds = shoal.open(sys.argv[1], index=sys.argv[2]).with_ids().batch(5)
loader = shoal.torch.DataLoader(ds, num_workers=2)
iterator = iter(loader)
next(iterator)
for process in iterator._source._workers.processes:
    maps = open(f"/proc/{process.pid}/maps").read()
    print("libtorch" in maps)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_that_make_arrays_do_not_load_torch(data: Path, tmp_path: Path) -> None:
    script = tmp_path / "probe.py"
    script.write_text(PROBE)
    done = subprocess.run(
        [sys.executable, str(script), str(data / "data"), str(data / "fine.index")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.stdout.split(), done.stderr) == (["False", "False"], "")

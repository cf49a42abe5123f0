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

def loads_torch(process):
    return "libtorch" in open(f"/proc/{process.pid}/maps").read()

ds = shoal.open(sys.argv[1], index=sys.argv[2])
streams = {
    "none": lambda: ds, "ids": lambda: ds.with_ids(), "decode": lambda: ds.decode(), "main": lambda: ds.map(doubled)
}
options = {"worker_init_fn": tell} if sys.argv[4:] else {}
for name in sys.argv[3].split(","):
    if __name__ == "__main__" or name != "main":
        loader = shoal.torch.DataLoader(streams[name]().batch(5), num_workers=2, **options)
        iterator = iter(loader)
        batch = next(iterator)
        if name == "ids" and sys.platform == "linux":
            print("load torch", *map(loads_torch, iterator._source._workers.processes))
        for batch in iterator:
            pass
        is_tensor = torch.is_tensor(batch.get("number", batch.get("cls")))
        print(name, "batches", loader.stats()["num_batches"], is_tensor)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("light")
    open_finely(write_tars(directory / "data", [20, 10]))
    (directory / "train.py").write_text(SCRIPT)
    return directory


def run(data: Path, *words: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(data / "train.py"), str(data / "data"), str(data / "fine.index"), *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def lines(data: Path) -> list[str]:
    """What a script prints that reads three streams without a function of its own, one after the other."""
    return run(data, "none,ids,decode")


def test_workers_without_functions_of_the_user_run_no_script(lines: list[str]) -> None:
    """Such a script needs no `if __name__ == "__main__":`."""
    assert [line for line in lines if line.startswith("main runs")] == ["main runs __main__"]


@pytest.mark.parametrize("stage", ["none", "ids", "decode"])
def test_all_batches_come(stage: str, lines: list[str]) -> None:
    assert any(line.startswith(f"{stage} batches 6") for line in lines)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_that_make_arrays_do_not_load_torch(lines: list[str]) -> None:
    assert "load torch False False" in lines


def test_functions_of_the_script_run_the_script(data: Path) -> None:
    lines = run(data, "main", "tell")
    assert 1 <= lines.count("main runs __mp_main__") <= 2  # by Python's release
    assert lines.count("worker True __mp_main__") == 2
    assert "main batches 6 True" in lines

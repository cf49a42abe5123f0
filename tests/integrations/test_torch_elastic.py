"""Real jobs under torchrun, killed at random moments and started again at other sizes: every sample once an epoch."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integrations import train_elastic
from tests.integrations.launched import launch
from tests.stream.made import flat, open_finely, write_tars

import shoal.mixing
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

COUNTS = [70, 1, 0, 147, 62, 60, 35, 102]  # 477 samples: the last global batch of an epoch is not whole
SAVE_EVERY = 3


@dataclass(frozen=True)
class Leg:
    """A run at a size, which ends as ``how`` says after some more checkpoints."""

    world_size: int
    num_workers: int
    how: str
    form: str
    checkpoints: int = 2


SHORT = [
    Leg(2, 1, "rank", "json"),
    Leg(3, 0, "job", "dcp"),
    Leg(1, 2, "end", "json"),
]


def random_legs(seed: int) -> list[Leg]:
    draw = random.Random(seed)
    legs = [
        Leg(
            draw.choice([1, 2, 3, 4]),
            draw.choice([0, 1, 2]),
            draw.choice(["rank", "job"]),
            draw.choice(["json", "dcp"]),
            draw.randrange(1, 4),
        )
        for _ in range(7)
    ]
    return [*legs, Leg(draw.choice([1, 2, 4, 6]), draw.choice([0, 3]), "end", "json")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("elastic")
    write_tars(directory / "data", COUNTS)
    open_finely(directory / "data")
    return directory / "data", directory / "fine.index"


def start(leg: Leg, number: int, out: Path, data: tuple[Path, Path], *, by_torchrun: bool) -> Any:
    """The job of a leg: an agent, and ranks that it started."""
    arguments = [train_elastic.__file__, str(data[0]), str(data[1]), str(out)]
    arguments += [str(leg.num_workers), leg.form, str(SAVE_EVERY), "2"]
    environment = {
        "SHOAL_TEST_PIDS": str(out / "pids"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    log, run_id = out / f"stderr-{number}", f"leg{number}"
    if not by_torchrun:
        return launch(arguments, num_processes=leg.world_size, log=log, environment=environment, run_id=run_id)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(leg.world_size)]
    launcher += ["--master-addr", "127.0.0.1", "--master-port", "0", "--rdzv-backend", "c10d"]
    launcher += ["--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", run_id, "--monitor-interval", "0.1"]
    with log.open("wb") as stderr:
        return Started(
            subprocess.Popen(
                [*launcher, *arguments],
                env={**os.environ, **environment},
                stdout=stderr,
                stderr=stderr,
                start_new_session=True,
            )
        )


class Started:
    """A process of `subprocess` with the names of one of `multiprocessing`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self.pid = process, process.pid

    def join(self, timeout: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)

    @property
    def exitcode(self) -> int | None:
        return self._process.poll()


def latest(out: Path) -> int:
    return int((out / "latest").read_text()[:6]) if (out / "latest").exists() else 0


def run_leg(
    leg: Leg, number: int, out: Path, data: tuple[Path, Path], draw: random.Random, *, by_torchrun: bool
) -> int:
    """Run one leg to the end it is meant for; the number of the checkpoint from which the next one starts."""
    begin = latest(out)
    job = start(leg, number, out, data, by_torchrun=by_torchrun)
    try:
        if leg.how == "end":
            job.join(100)
            assert job.exitcode == 0, (out / f"stderr-{number}").read_text()[-3000:]
            return latest(out)
        deadline = time.monotonic() + 60
        while latest(out) < begin + leg.checkpoints * SAVE_EVERY and job.exitcode is None:
            assert time.monotonic() < deadline, (out / f"stderr-{number}").read_text()[-3000:]
            time.sleep(0.002)
        time.sleep(draw.random() * 0.02)
        if leg.how == "rank" and job.exitcode is None:
            pid = int((out / f"rank-{draw.randrange(leg.world_size)}.pid").read_text())
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # its workers are left to find out
            job.join(60)
            assert job.exitcode not in {0, None}, (out / f"stderr-{number}").read_text()[-3000:]
    finally:
        # torchrun makes every rank the leader of a session of its own.
        for leader in [job.pid, *(int(path.read_text()) for path in out.glob("rank-*.pid"))]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGKILL)
        job.join(60)
        for path in out.glob("rank-*.pid"):
            path.unlink()
    return latest(out)


def alive(out: Path) -> list[int]:
    found = []
    for path in (out / "pids").iterdir():
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{path.name}/stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z":
                found.append(int(path.name))
    return found


def entries(out: Path, begin: int, number: int) -> Iterator[tuple[tuple[int, int], list[int]]]:
    """What the ranks of a leg noted: epoch and position before a global batch, and ids of a rank."""
    for path in out.glob(f"log-{begin:06d}-leg{number}-*.jsonl"):
        for line in path.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # the line in which it was killed
                entry = json.loads(line)
                yield (entry["at"][0], entry["at"][1]), entry["ids"]


def check_history(legs: list[Leg], out: Path, data: tuple[Path, Path], seed: int, *, by_torchrun: bool = False) -> None:
    (out / "pids").mkdir(parents=True)
    draw = random.Random(seed)
    consumed: dict[tuple[int, int], list[int]] = {}
    ds: Dataset = train_elastic.dataset(str(data[0]), str(data[1]))
    num_steps = -(-ds.num_samples // train_elastic.GLOBAL_BATCH)
    begins = [0]
    for number, leg in enumerate(legs):
        begin = begins[-1]
        end = run_leg(leg, number, out, data, draw, by_torchrun=by_torchrun)
        begins.append(end)
        last = 2 * num_steps if (out / "done").exists() else end
        for (epoch, position), ids in entries(out, begin, number):
            step = epoch * num_steps + position // train_elastic.GLOBAL_BATCH
            if step < last:  # what came after the last checkpoint is not counted: it was lost, and is done again
                consumed.setdefault((epoch, position), []).extend(ids)
        if (out / "done").exists():
            break
    assert (out / "done").exists(), begins
    # The global batches are those of a run that was never stopped, each sample once.
    expected = {
        (epoch, position): sorted(ds.ids(epoch, position, min(position + train_elastic.GLOBAL_BATCH, ds.num_samples)))
        for epoch, position in itertools.product(range(2), range(0, ds.num_samples, train_elastic.GLOBAL_BATCH))
    }
    assert {key: sorted(ids) for key, ids in consumed.items()} == expected
    for epoch in range(2):
        whole = sorted(flat(ids for (at, _), ids in consumed.items() if at == epoch))
        repeats = ds.repeats or isinstance(ds, shoal.mixing.MixedDataset)
        assert whole == (sorted(ds.ids(epoch)) if repeats else list(range(ds.num_samples)))
    deadline = time.monotonic() + 20
    while (left := alive(out)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


@pytest.mark.drill
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
def test_a_job_that_is_killed_goes_on_at_another_size(data: tuple[Path, Path], tmp_path: Path) -> None:
    check_history(SHORT, tmp_path / "out", data, seed=0)


@pytest.mark.integration
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
def test_a_job_over_balanced_samples_of_a_split_that_is_killed(
    data: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_TEST_BALANCED", "1")
    check_history([Leg(2, 1, "rank", "json"), Leg(3, 2, "end", "json")], tmp_path / "out", data, seed=1)


@pytest.mark.integration
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
def test_a_job_over_a_mixture_whose_weights_change_that_is_killed(
    data: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_TEST_MIXED", "1")
    check_history([Leg(2, 1, "rank", "json"), Leg(3, 2, "end", "json")], tmp_path / "out", data, seed=2)


@pytest.mark.integration
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("order", ["py1s", "hf-block"])
def test_a_job_in_the_order_of_another_library_that_is_killed(
    order: str, data: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_TEST_ORDER", order)
    check_history([Leg(2, 1, "rank", "json"), Leg(3, 2, "end", "json")], tmp_path / "out", data, seed=3)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_a_job_that_is_killed_again_and_again(seed: int, data: tuple[Path, Path], tmp_path: Path) -> None:
    check_history(random_legs(seed), tmp_path / "out", data, seed, by_torchrun=True)

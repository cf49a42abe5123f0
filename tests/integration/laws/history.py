"""A job's history: runs at some sizes, most of them killed; and what must be true of all that they consumed."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.integration.laws import notes

ROOT = Path(__file__).parent.parent.parent.parent
_SECONDS = 400  # for one run, on a machine that has other work too


@dataclass(frozen=True)
class Leg:
    """A run at a size, which ends as ``how`` says after some more checkpoints: of a "rank", the "job", or the "end"."""

    world_size: int
    num_workers: int
    how: str
    form: str = "json"
    checkpoints: int = 2


Launch = Callable[[Sequence[str], Leg, dict[str, str]], list[tuple[list[str], dict[str, str]]]]
"""From the arguments of a script, a leg and an environment to the commands that make the job, each with its own."""


def by_torchrun(python: Path) -> Launch:
    """One agent, which starts the ranks."""

    def commands(
        script: Sequence[str], leg: Leg, environment: dict[str, str]
    ) -> list[tuple[list[str], dict[str, str]]]:
        launcher = [str(python), "-m", "torch.distributed.run", "--nproc-per-node", str(leg.world_size)]
        launcher += ["--master-addr", "127.0.0.1", "--master-port", "0", "--rdzv-backend", "c10d"]
        launcher += ["--rdzv-endpoint", "127.0.0.1:0", "--monitor-interval", "0.1"]
        return [([*launcher, *script], environment)]

    return commands


def by_script(python: Path) -> Launch:
    """One process, which starts the ranks itself."""

    def commands(
        script: Sequence[str], leg: Leg, environment: dict[str, str]
    ) -> list[tuple[list[str], dict[str, str]]]:
        return [([str(python), *script], {**environment, "NUM_PROCESSES": str(leg.world_size)})]

    return commands


def by_hand(python: Path) -> Launch:
    """A process for each rank, which are told of each other; what JAX calls a cluster."""

    def commands(
        script: Sequence[str], leg: Leg, environment: dict[str, str]
    ) -> list[tuple[list[str], dict[str, str]]]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        told = {**environment, "NUM_PROCESSES": str(leg.world_size), "COORDINATOR_PORT": str(port)}
        return [([str(python), *script], {**told, "PROCESS_ID": str(rank)}) for rank in range(leg.world_size)]

    return commands


def check_history(
    script: str, legs: Sequence[Leg], folder: Path, launch: Launch, *, seed: int = 0
) -> list[tuple[int, int]]:
    """Run the legs one after the other, each from the last checkpoint of all before it, and compare what was consumed.

    Every sample once an epoch, and the global batches of a run that was never stopped. Given back is where the legs
    began, as epoch and position.
    """
    out = folder / "out"
    out.mkdir()
    draw = random.Random(seed)
    for number, leg in enumerate(legs):
        _run(script, leg, number, folder, launch, draw)
    ds = notes.dataset(str(folder / "data")).partition(rank=0, world_size=1)
    consumed: dict[tuple[int, int], list[int]] = {}
    begins = [_begin(out, number, ds.num_samples) for number in range(len(legs))]
    assert begins == sorted(begins), begins
    for number, leg in enumerate(legs):
        last = begins[number + 1] if number + 1 < len(legs) else (notes.NUM_EPOCHS, 0)
        ranks = list(out.glob(f"notes-{number}-*.jsonl"))
        assert len(ranks) == leg.world_size
        for at, ids in itertools.chain.from_iterable(map(_steps, ranks)):
            if at < last:  # what came after the last checkpoint was lost with it, and is done again
                consumed.setdefault(at, []).extend(ids)
    expected = {
        (epoch, at): sorted(ds.ids(epoch, at, min(at + notes.GLOBAL_BATCH, ds.num_samples)).tolist())
        for epoch in range(notes.NUM_EPOCHS)
        for at in range(0, ds.num_samples, notes.GLOBAL_BATCH)
    }
    assert {at: sorted(ids) for at, ids in consumed.items()} == expected
    assert len(set(begins)) == len(legs), f"a leg made no checkpoint: {begins}"
    return begins


def environment_of(folder: Path) -> dict[str, str]:
    """The environment of a job, which has our source and keeps what it makes in a folder."""
    return {
        **os.environ,
        "SHOAL_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
        "RAY_AUTH_MODE": "disabled",  # else it would leave a token in the home directory
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _run(script: str, leg: Leg, number: int, folder: Path, launch: Launch, draw: random.Random) -> None:
    out = folder / "out"
    arguments = [str(ROOT / "tests" / "integration" / "laws" / script), str(folder / "data"), str(out)]
    arguments += [str(leg.num_workers), leg.form]
    environment = {**environment_of(folder), "SHOAL_LEG": str(number)}
    begin, log = _num_saves(out), out / f"log-{number}"
    with log.open("wb") as stream:
        jobs = [
            subprocess.Popen(
                command,
                env=own,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
            for command, own in launch(arguments, leg, environment)
        ]
    try:
        if leg.how == "end":
            assert [job.wait(_SECONDS) for job in jobs] == [0] * len(jobs), log.read_text()[-4000:]
            return
        _wait(lambda: _num_saves(out) >= begin + leg.checkpoints or any(job.poll() is not None for job in jobs), log)
        assert all(job.poll() is None for job in jobs), f"ended before it was killed\n{log.read_text()[-4000:]}"
        time.sleep(draw.random() * 0.05)
        if leg.how == "rank":
            os.kill(int((out / f"pid-{number}-{draw.randrange(leg.world_size)}").read_text()), signal.SIGKILL)
            if len(jobs) == 1:  # its launcher ends the others
                assert jobs[0].wait(_SECONDS) != 0
    finally:
        for leader in [*(job.pid for job in jobs), *(int(path.read_text()) for path in out.glob(f"pid-{number}-*"))]:
            for end in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    end(leader, signal.SIGKILL)
        for job in jobs:
            job.wait(_SECONDS)


def _wait(is_so: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + _SECONDS
    while not is_so():
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(0.005)


def _num_saves(out: Path) -> int:
    return len((out / "saves").read_text().splitlines()) if (out / "saves").exists() else 0


def _begin(out: Path, number: int, num_samples: int) -> tuple[int, int]:
    """Where a leg began: all of its ranks at one place, and that after as many steps as their checkpoint counts."""
    heads = [json.loads(path.read_text().splitlines()[0]) for path in out.glob(f"notes-{number}-*.jsonl")]
    begins = {(*head["begin"], head["steps"]) for head in heads}
    assert len(begins) == 1, begins
    epoch, position, steps = begins.pop()
    whole, rest = divmod(steps, -(-num_samples // notes.GLOBAL_BATCH))
    assert (epoch, position) == (whole, rest * notes.GLOBAL_BATCH), (epoch, position, steps)
    return epoch, position


def _steps(path: Path) -> Iterator[tuple[tuple[int, int], list[int]]]:
    for line in path.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # the line in which it was killed
            entry = json.loads(line)
            if "at" in entry:
                yield (entry["at"][0], entry["at"][1]), entry["ids"]

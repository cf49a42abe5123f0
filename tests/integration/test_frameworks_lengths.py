"""What a framework says of the length of an epoch is what comes, on every rank; or it says nothing, and runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.frameworks.lengths import KINDS, Kind, expected, write_data

ROOT = Path(__file__).parent.parent.parent
FRAMEWORKS = ("accelerate", "fabric", "lightning", "torch", "transformers")
_SECONDS = 300


@pytest.mark.parametrize("world_size", [pytest.param(1, marks=pytest.mark.drill), 2])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_said_is_what_comes(
    framework: str, world_size: int, python: Callable[[str], Path], tmp_path: Path
) -> None:
    write_data(tmp_path)
    _run(framework, world_size, python("frameworks"), tmp_path)
    wrong = []
    for rank in range(world_size):
        lines = (tmp_path / f"{framework}-{world_size}-{rank}.jsonl").read_text().splitlines()
        records = {record.pop("kind"): record for record in map(json.loads, lines)}
        assert records.keys() == KINDS.keys()
        for name, record in records.items():
            wrong += [f"rank {rank}, {name}: {text}" for text in _differences(framework, name, world_size, record)]
    assert not wrong, "\n".join(wrong)


def _differences(framework: str, name: str, world_size: int, record: dict[str, Any]) -> list[str]:
    kind = KINDS[name]
    error, warned = record.pop("error"), record.pop("warned")
    if kind.refused and world_size > 1:
        return [] if kind.refused in error else [f"{kind.refused!r} is not in {error!r}"]
    wanted = expected(framework, kind, world_size)
    found = [f"{key}: {record[key]}, not {wanted[key]}" for key in wanted if record[key] != wanted[key]]
    found += [error] if error else []
    return found + _wrong_warnings(framework, kind, warned)


def _wrong_warnings(framework: str, kind: Kind, warned: list[str]) -> list[str]:
    is_asked_again = framework == "lightning" and kind.is_reloaded
    wanted = [kind.warns] if kind.warns and not is_asked_again else []
    if framework == "lightning" and not kind.is_known:
        wanted.append("one batch ahead of the training")
    missing = [f"no warning {text!r}" for text in wanted if not any(text in one for one in warned)]
    allowed = [*wanted, "look sorted"]  # by their sizes, so that estimates of their number are wrong
    return missing + [f"warned: {one}" for one in warned if not any(text in one for text in allowed)]


def _run(framework: str, world_size: int, python: Path, folder: Path) -> None:
    script = [str(ROOT / "tests" / "integration" / "frameworks" / "lengths_runs.py"), framework, str(folder)]
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
    told = {
        "SHOAL_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_OFFLINE": "1",
    }
    with (folder / "log").open("wb") as log:
        job = subprocess.Popen(
            [python, *(ranks if world_size > 1 else []), *script],
            env={**os.environ, **told},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        assert job.wait(_SECONDS) == 0, (folder / "log").read_text()[-4000:]
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()

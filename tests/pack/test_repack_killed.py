"""A repacking that is killed at any moment, and begun again by the same command: as if nothing had happened."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.pack.contents import contents_of
from tests.pack.forks import killed_in_fork
from tests.samples import write_jsonl

from shoal.cli.main import main


def words(source: Path, out: Path, *, mix: bool) -> list[str]:
    how = ["--mix", "--memory", "160KiB", "--seed", "9"] if mix else ["--workers", "2"]
    return ["repack", str(source), str(out), "--to", "tar", "--shard-bytes", "8KiB", *how]


def run_and_kill(arguments: list[str], seconds: float) -> bool:
    """Whether it was killed before it was done."""
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        _, said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return True
    assert process.returncode == 0, said.decode()
    return False


def check_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_kills: int, *, mix: bool) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    source = write_jsonl(tmp_path / "a.jsonl", num_docs=4000)
    began = time.monotonic()
    assert not run_and_kill(words(source, tmp_path / "timed", mix=mix), 100)
    whole_seconds = time.monotonic() - began
    calm = contents_of(tmp_path / "timed")
    moments = np.random.default_rng(int(mix))
    killed = rounds = 0
    while killed < num_kills:
        rounds += 1
        out = tmp_path / f"killed-{rounds}"
        while killed < num_kills and run_and_kill(
            words(source, out, mix=mix), moments.uniform(0.2, 0.95) * whole_seconds
        ):
            killed += 1
            if (out / "shoal.index").exists():  # then all else is there, too
                left = contents_of(out)
                assert {name: left.get(name) for name in calm} == calm
        assert main(words(source, out, mix=mix)) == 0
        assert contents_of(out) == calm  # hidden files count
        assert not (out / ".shoal-pack").exists()


@pytest.mark.drill
def test_killed_twice_at_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_killed(tmp_path, monkeypatch, 2, mix=True)


@pytest.mark.parametrize("how", [["--mix", "--memory", "160KiB", "--seed", "9"], ["--workers", "1"]])
def test_killed_at_some_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: list[str]) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    source, out = write_jsonl(tmp_path / "a.jsonl", num_docs=600), tmp_path / "out"
    arguments = ["repack", str(source), str(out), "--to", "tar", "--shard-bytes", "8KiB", *how]
    for step in (1, 4, 5, 2):
        killed_in_fork(lambda: main(arguments), dies_at=step)
        assert not (out / "shoal.index").exists()
    assert list(out.glob("*.tar"))
    assert main(arguments) == 0
    assert not (out / ".shoal-pack").exists()
    arguments[2] = str(tmp_path / "calm")
    assert main(arguments) == 0
    assert contents_of(out) == contents_of(tmp_path / "calm")  # hidden files count


@pytest.mark.soak
@pytest.mark.parametrize("mix", [False, True])
def test_killed_a_hundred_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mix: bool) -> None:
    check_killed(tmp_path, monkeypatch, 50, mix=mix)

"""Killed at any moment, and begun again by the same command: as if nothing had happened."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.pack.contents import contents_of
from tests.pack.files import make_files
from tests.pack.forks import begin_fork, end_of_fork, killed_in_fork

import shoal
from shoal.cli.main import main
from shoal.errors import SourceError

CLASSES = {"a": 300, "b": 200, "c": 100}
OPTIONS = ["--shuffle", "--seed", "5", "--balance", "cls", "--shard-bytes", "60KB", "--columns", "length"]


def command(source: Path, out: Path, *, workers: int) -> list[str]:
    return [sys.executable, "-m", "shoal", "pack", str(source), str(out), "--workers", str(workers), *OPTIONS]


def run_and_kill(words: list[str], seconds: float) -> bool:
    """Whether it was killed before it was done."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        _, said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return True
    assert process.returncode == 0, said.decode()
    return False


def check_killed(tmp_path: Path, num_kills: int, *, workers: int) -> None:
    """Kill at random moments until it is done, over and over; then compare."""
    source = make_files(tmp_path / "in", classes=CLASSES)
    assert main(["pack", str(source), str(tmp_path / "calm"), *OPTIONS, "--workers", "1"]) == 0
    calm = contents_of(tmp_path / "calm")
    began = time.monotonic()
    assert not run_and_kill(command(source, tmp_path / "timed", workers=workers), 60)
    whole_seconds = time.monotonic() - began
    moments = np.random.default_rng(workers)
    killed = rounds = 0
    while killed < num_kills:
        rounds += 1
        out = tmp_path / f"killed-{rounds}"
        while killed < num_kills and run_and_kill(
            command(source, out, workers=workers), moments.uniform(0.15, 1) * whole_seconds
        ):
            killed += 1
            if (out / "shoal.index").exists():  # then all else is there, too
                left = contents_of(out)
                assert {name: left.get(name) for name in calm} == calm
        assert not run_and_kill(command(source, out, workers=workers), 60)
        assert contents_of(out) == calm  # hidden files count
        assert not (out / ".shoal-pack").exists()


@pytest.mark.drill
def test_killed_once_at_random(tmp_path: Path) -> None:
    check_killed(tmp_path, 1, workers=2)


def test_killed_at_some_steps(tmp_path: Path) -> None:
    source, out = make_files(tmp_path / "in", classes={"a": 60, "b": 30}), tmp_path / "out"
    words = ["pack", str(source), str(out), *OPTIONS, "--shard-bytes", "20KB", "--workers", "1"]
    for step in (1, 4, 5, 2):
        killed_in_fork(lambda: main(words), dies_at=step)
        assert not (out / "shoal.index").exists()
    assert list(out.glob("*.tar"))
    assert main(words) == 0
    assert not (out / ".shoal-pack").exists()
    words[2] = str(tmp_path / "calm")
    assert main(words) == 0
    assert contents_of(out) == contents_of(tmp_path / "calm")  # hidden files count


@pytest.mark.soak
@pytest.mark.parametrize("workers", [1, 3])
def test_killed_a_hundred_times(tmp_path: Path, workers: int) -> None:
    check_killed(tmp_path, 50, workers=workers)


@pytest.mark.parametrize("name", ["tar", "mds"])
def test_nothing_is_in_the_making_beside_the_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Whoever is killed leaves what is unfinished where the next run looks for it, that of an index too."""
    source, out = make_files(tmp_path / "in", classes=CLASSES), tmp_path / "out"
    named: list[str] = []

    def watched(function: Callable[[str, str], None]) -> Callable[[str, str], None]:
        def name_it(before: str, after: str) -> None:
            hidden = [path.name for path in out.iterdir() if path.name.startswith(".")]
            assert hidden == [".shoal-pack"]
            assert Path(before).is_relative_to(out / ".shoal-pack")
            named.append(Path(after).name)
            function(before, after)

        return name_it

    monkeypatch.setattr("os.replace", watched(os.replace))
    monkeypatch.setattr("os.link", watched(os.link))
    assert main(["pack", str(source), str(out), *OPTIONS, "--workers", "1", "--format", name]) == 0
    assert named[-1] == "shoal.index"
    assert ("index.json" in named) == (name == "mds")


def limited(words: list[str], most_bytes: int, *, stderr: Path) -> int:
    """Run where no file may become larger: to a program that writes, a disk that is full."""

    def run() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        return main(words)

    return end_of_fork(begin_fork(run, stderr=stderr))


def test_a_full_disk_leaves_nothing_that_looks_finished_and_the_rest_is_made_later(tmp_path: Path) -> None:
    source = make_files(tmp_path / "in", classes=CLASSES)
    words = ["pack", str(source), str(tmp_path / "out"), "--workers", "1", *OPTIONS]
    assert limited(words, 30_000, stderr=tmp_path / "errors") == 2
    assert "could not write" in (tmp_path / "errors").read_text()
    left = contents_of(tmp_path / "out")
    kept = [name for name in sorted(left) if not name.endswith(".made")]
    assert kept == [".shoal-pack/lock", ".shoal-pack/plan.json"]
    assert main(words) == 0
    assert main(["pack", str(source), str(tmp_path / "calm"), "--workers", "1", *OPTIONS]) == 0
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "calm")


def test_what_is_not_finished_is_not_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = make_files(tmp_path / "in", classes=CLASSES), tmp_path / "out"
    (source / "c" / "099.txt").unlink()
    (source / "c" / "099.txt").symlink_to("nowhere")  # found out late: "c" is the last class
    words = ["pack", str(source), str(out), "--shard-bytes", "60KB", "--workers", "1"]
    assert main(words) == 2
    shards = sorted(path.name for path in out.glob("*.tar"))
    assert len(shards) > 3
    with pytest.raises(SourceError, match="a packing was begun here and is not finished"):
        shoal.open(out)
    assert shoal.open(str(out / "*.tar")).num_samples < 599
    for verb in ("verify", "index", "repack"):
        assert main([verb, str(out), *([str(tmp_path / "re")] if verb == "repack" else [])]) == 2
        assert "is not finished" in capsys.readouterr().err

    # What was made before an input could not be read is kept where such inputs are left out.
    assert main([*words, "--on-error", "skip", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["num_shards_of_earlier_runs"] == len(shards)
    assert [entry["name"] for entry in said["skipped"]] == ["c/099.txt"]
    assert shoal.open(out).num_samples == 599
    assert main(words) == 2  # what it would make has all of them
    assert "made without 1 input\n" in capsys.readouterr().err
    assert main([*words, "--on-error", "skip"]) == 0


def test_other_arguments_do_not_go_on_with_what_was_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = make_files(tmp_path / "in", classes=CLASSES), tmp_path / "out"
    (source / "c" / "099.txt").unlink()
    (source / "c" / "099.txt").symlink_to("nowhere")
    words = ["pack", str(source), str(out), "--shard-bytes", "60KB", "--balance", "cls", "--workers", "1"]
    assert main(words) == 2
    shards = list(out.glob("*.tar"))
    assert shards
    capsys.readouterr()
    assert main([*words, "--shuffle", "--seed", "6"]) == 2
    said = capsys.readouterr().err
    assert "another packing was begun here and not finished: repeats: not the same; seed was 0, is 6" in said
    assert "shuffle was False, is True" in said
    (source / "a" / "new.txt").write_text("one more")
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "inputs (names, sizes, times): not the same; num_inputs was 600, is 601" in said
    assert list(out.glob("*.tar")) == shards


def test_another_seed_is_called_a_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = make_files(tmp_path / "in", classes=CLASSES), tmp_path / "out"
    (source / "c" / "099.txt").unlink()
    (source / "c" / "099.txt").symlink_to("nowhere")
    words = ["pack", str(source), str(out), "--shard-bytes", "60KB", "--shuffle", "--workers", "1"]
    assert main(words) == 2
    assert list(out.glob("*.tar"))
    assert main([*words, "--seed", "3"]) == 2
    assert "not finished: seed was 0, is 3\n" in capsys.readouterr().err
    assert main([word for word in words if word != "--shuffle"]) == 2
    assert "not finished: seed was 0, is not given; shuffle was True, is False\n" in capsys.readouterr().err


def test_what_was_only_begun_is_begun_anew_with_other_arguments(tmp_path: Path) -> None:
    source = make_files(tmp_path / "in", classes=CLASSES)
    words = ["pack", str(source), str(tmp_path / "out"), "--workers", "1", *OPTIONS]
    assert limited(words, 30_000, stderr=tmp_path / "errors") == 2
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".shoal-pack"]
    for out in ("out", "calm"):
        words[2] = str(tmp_path / out)
        assert main([*words, "--seed", "6"]) == 0
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "calm")

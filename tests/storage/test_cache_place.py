from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shoal.storage.cache_place import Scratch, alone, cache_directory


def test_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.delenv("SHOAL_CACHE_DIR", raising=False)
    assert cache_directory() == "/home/me/.cache/shoal"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_directory() == "/x/shoal"
    monkeypatch.setenv("SHOAL_CACHE_DIR", "~/own")
    assert cache_directory() == "/home/me/own"
    assert cache_directory(Path("/given")) == "/given"


def test_scratch_keeps_whole_entries(tmp_path: Path) -> None:
    scratch = Scratch(str(tmp_path / "a" / "b"), suffix=".x")
    assert scratch.get("1.x") is None
    scratch.put("1.x", [b"ab", memoryview(b"cd")])
    scratch.put("2.x", [])
    assert bytes(Scratch(scratch.directory, suffix=".x").get("1.x") or b"") == b"abcd"
    empty = scratch.get("2.x")
    assert empty is not None
    assert len(empty) == 0
    for torn in (b"", b"abc", (tmp_path / "a/b/1.x").read_bytes()[:-1]):
        (tmp_path / "a/b/1.x").write_bytes(torn)
        assert scratch.get("1.x") is None


def test_scratch_clears_only_what_is_its_own(tmp_path: Path) -> None:
    scratch = Scratch(str(tmp_path / "s"), suffix=".x")
    scratch.put("1.x", [b"1"])
    (tmp_path / "s" / "theirs").touch()
    scratch.clear()
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["theirs"]
    (tmp_path / "s" / "theirs").unlink()
    scratch.clear()
    assert not (tmp_path / "s").exists()
    scratch.clear()


HOLD = """
import sys, time
from shoal.storage.cache_place import alone
with alone(sys.argv[1], what="holds"):
    print("in", flush=True)
    time.sleep(60)
"""


def test_the_lock_dies_with_its_holder(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "lock")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, "-c", HOLD, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"in\n"
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as second:
            assert second.stdout is not None
            os.set_blocking(second.stdout.fileno(), False)
            time.sleep(0.4)
            assert not second.stdout.readline()
            first.kill()
            os.set_blocking(second.stdout.fileno(), True)
            assert second.stdout.readline() == b"in\n"
            second.kill()


def test_without_a_place_for_the_lock_all_go_ahead(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with alone(str(tmp_path / "file" / "lock"), what="-"), alone(str(tmp_path / "file" / "lock"), what="-"):
        pass
    with pytest.raises(OSError, match="mine"), alone(str(tmp_path / "lock"), what="-"):
        raise OSError("mine")  # noqa: EM101

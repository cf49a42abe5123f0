from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from tests.samples import write_jsonl

import shoal
from shoal.cli.main import main
from shoal.errors import UsageError
from shoal.storage import cache_directory as caches
from shoal.storage.cache_directory import Scratch, cache_directory, expand_home
from shoal.storage.files.machine_locks import machine_lock


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for temporary files, and nothing that says where a cache is."""
    for name in ("SHOAL_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    monkeypatch.setattr(caches, "_warned", set())
    monkeypatch.chdir(tmp_path)
    return directory


def test_where(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = temporary.parent / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    assert cache_directory() == f"{home}/.cache/shoal"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_directory() == f"{home}/.cache/shoal"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, by its own rules
    assert cache_directory() == f"{home}/.cache/shoal"
    monkeypatch.setenv("XDG_CACHE_HOME", f"{home}/x")
    assert cache_directory() == f"{home}/x/shoal"
    monkeypatch.setenv("SHOAL_CACHE_DIR", "~/own")
    assert cache_directory() == f"{home}/own"
    monkeypatch.setenv("SHOAL_CACHE_DIR", "own")
    assert cache_directory() == str(temporary.parent / "own")
    assert cache_directory(Path("/given")) == "/given"
    assert [*home.iterdir()] == []


def nobody(_: int) -> Any:
    raise KeyError


@pytest.mark.parametrize("home", [None, "", "relative", "/nonexistent", "/dev/null"])
def test_without_a_home_it_is_a_private_directory_that_is_named(
    home: str | None, temporary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    found = cache_directory()
    assert Path(found).parent == temporary
    assert stat.S_IMODE(Path(found).stat().st_mode) == 0o700
    assert found in caplog.text
    assert len(caplog.records) == 1
    assert cache_directory() == found
    assert len(caplog.records) == 1  # said once
    assert [path.name for path in temporary.parent.iterdir()] == ["temporary"]


def test_a_private_directory_of_somebody_else_is_not_used(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    caches._directory_of_this_process.cache_clear()
    monkeypatch.setenv("HOME", "/nonexistent")
    usual = temporary / f"shoal-cache-{os.geteuid()}"
    usual.mkdir(mode=0o777)
    usual.chmod(0o777)
    found = cache_directory()
    assert Path(found).parent == temporary
    assert found != str(usual)
    assert cache_directory() == found
    shutil.rmtree(usual)
    usual.symlink_to(temporary.parent)
    assert cache_directory() == found
    caches._directory_of_this_process.cache_clear()


def test_a_cache_that_is_there_is_read_where_it_may_not_be_written(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = temporary.parent / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    home.mkdir()
    assert Path(cache_directory()).parent == temporary
    (home / ".cache" / "shoal").mkdir(parents=True)
    assert cache_directory() == f"{home}/.cache/shoal"


@pytest.mark.parametrize("path", ["~/a", "~", "~nobody-of-that-name/a"])
def test_no_directory_is_called_like_a_home_that_nobody_knows(
    path: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    write_jsonl(temporary / "a.jsonl", num_docs=3)
    ds = shoal.open(temporary / "a.jsonl", index=None, cache=None)
    for use in (
        lambda: expand_home(path),
        lambda: cache_directory(path),
        lambda: shoal.open(temporary / "a.jsonl", cache=path),
        lambda: ds.reading(quarantine=path),
    ):
        with pytest.raises(UsageError, match="there is no home ~"):
            use()
    assert main(["index", str(temporary / "a.jsonl"), "--output", path]) == 2
    assert not [*temporary.parent.glob("~*")]
    assert expand_home("./~/a") == "./~/a"


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
from shoal.storage.files.machine_locks import machine_lock
with machine_lock(sys.argv[1], what="holds"):
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


FORK = """
import os, sys, time
from shoal.storage.files.machine_locks import machine_lock
with machine_lock(sys.argv[1], what="holds"):
    if os.fork() == 0:
        time.sleep(60)
    print("in", flush=True)
    time.sleep(60)
"""


def test_a_child_of_a_killed_holder_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path / "lock")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, "-c", FORK, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, start_new_session=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"in\n"
        holder.kill()
        holder.wait()
        began = time.monotonic()
        with machine_lock(path, what="comes"):
            assert time.monotonic() - began < 20
        os.killpg(holder.pid, signal.SIGKILL)
    assert f"process {holder.pid}, which holds, has ended" in caplog.text


def test_a_holder_that_gives_no_sign_is_waited_for_until_a_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "lock")
    with machine_lock(path, what="indexes data") as give_sign:
        began = time.time()
        with machine_lock(path, what="comes", limit_seconds=0.3):
            assert 0.3 <= time.time() - began < 20
        assert f"process {os.getpid()} of {socket.gethostname()}, which indexes data" in caplog.text
        os.utime(path, (0, 0))
        give_sign()
        assert Path(path).stat().st_mtime > time.time() - 20
    with machine_lock(path, what="comes", limit_seconds=1e9):
        pass
    before = Path(path).stat()
    give_sign_of_nobody = machine_lock(path, what="comes")
    with give_sign_of_nobody as sign:
        sign()
    assert before.st_ino == Path(path).stat().st_ino


def test_an_inherited_lock_is_let_go_of(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    read, write = os.pipe()
    with machine_lock(path, what="forks"):
        child = os.fork()
        if not child:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
    began = time.monotonic()
    with machine_lock(path, what="comes"):
        assert time.monotonic() - began < 20
    os.close(write)
    os.close(read)
    os.waitpid(child, 0)


def test_without_a_place_for_the_lock_all_go_ahead(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        machine_lock(str(tmp_path / "file" / "lock"), what="-"),
        machine_lock(str(tmp_path / "file" / "lock"), what="-"),
    ):
        pass
    with pytest.raises(OSError, match="mine"), machine_lock(str(tmp_path / "lock"), what="-"):
        raise OSError("mine")

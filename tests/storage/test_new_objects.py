"""Objects that get their name only if nobody has it."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.storage.files.atomic_writes import begin_object, remove_abandoned
from shoal.storage.files.local_store import LocalStore
from shoal.storage.memory_store import MemoryStore
from shoal.storage.store_protocol import Store


class Unconditional(MemoryStore):
    """A store that cannot compare."""

    put_if = Store.put_if


def no_links(*_: Any, **__: Any) -> None:
    raise OSError(errno.EPERM, "")


@pytest.mark.parametrize("where", ["local", "without links", "memory", "without conditions"])
def test_what_has_the_name_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    if where == "without links":
        monkeypatch.setattr("os.link", no_links)
    is_local = where in ("local", "without links")
    store: Any = LocalStore() if is_local else MemoryStore() if where == "memory" else Unconditional()
    path = str(tmp_path / "a") if is_local else f"memory://new-objects/{where}"
    for data, is_first in ((b"first", True), (b"second", False)):
        new = begin_object(path, store=store, scratch=str(tmp_path / "scratch"))
        new.write([data])
        assert new.finish_new() is is_first
    reader: Any = LocalStore() if is_local else MemoryStore()
    assert bytes(reader.read_range(path, 0, 5)) == b"first"
    if is_local:
        assert not list((tmp_path / "scratch").iterdir())


def test_only_what_the_dead_have_left_is_removed(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from shoal.storage.files.atomic_writes import begin_object\n"
        "from shoal.storage.files.local_store import LocalStore\n"
        "new = begin_object(sys.argv[1] + '/a', store=LocalStore(), scratch=sys.argv[1])\n"
        "print('begun', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        (left,) = tmp_path.iterdir()
        remove_abandoned(str(left))
        assert left.exists()
        process.kill()
        process.wait()
    remove_abandoned(str(left))
    assert not left.exists()

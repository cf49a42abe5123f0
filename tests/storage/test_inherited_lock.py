"""The lock of a packing: directories come and go while several processes try to take it."""

import os
from pathlib import Path

import pytest

from shoal.errors import StorageError
from shoal.storage.files.machine_locks import InheritedLock


def test_a_directory_that_is_removed_and_made_again_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process finishes and removes the directory, another makes it again, and both happen before this one opens."""
    path, usual, removals = tmp_path / "packing" / "lock", os.open, list[str]()

    def after_a_removal(opened: str, flags: int, mode: int = 0o777) -> int:
        if not removals:
            removals.append(opened)
            path.parent.rmdir()
            path.parent.mkdir()
            raise FileNotFoundError(opened)
        return usual(opened, flags, mode)

    monkeypatch.setattr(os, "open", after_a_removal)
    lock = InheritedLock(str(path), wait_seconds=5)
    assert removals == [str(path)]
    assert lock.descriptor >= 0
    lock.release()


def test_a_lock_that_is_a_dangling_link_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "nowhere" / "lock")
    with pytest.raises(StorageError, match="it is a link to"):
        InheritedLock(str(tmp_path / "lock"), wait_seconds=60)

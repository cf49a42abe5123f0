"""Decisions that the processes of a job share: the first value that a process gives under a name is everybody's."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Protocol

from shoal.errors import StorageError
from shoal.storage.cache_directory import keep_within
from shoal.storage.files.atomic_writes import write_atomically
from shoal.storage.files.machine_locks import machine_lock
from shoal.storage.objects.torch_store import TorchStore

_SUFFIX = ".decision"
_MOST_FILES, _MOST_BYTES = 2000, 1 << 28
_POLL_SECONDS = 0.02

# A launcher's name of its job; jobs of one machine have different decisions.
_JOBS = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE",
         "MASTER_ADDR", "MASTER_PORT")  # fmt: skip


class SharedDecisions(Protocol):
    """A place for decisions, which all processes of a job reach."""

    def first(self, name: str, value: bytes) -> bytes:
        """Return the first value that any process gave under this name: ``value`` if there is none yet."""

    def wait_for_all(self, name: str, rank: int, num_ranks: int, *, limit_seconds: float) -> list[int]:
        """Wait until all ranks have called this; return the missing ranks after ``limit_seconds``, else nothing."""


class TorchDecisions:
    """Decisions in the store of torch.distributed."""

    def __init__(self, store: TorchStore) -> None:
        self._store = store

    def first(self, name: str, value: bytes) -> bytes:
        """Return the first value under a name."""
        return self._store.first(name, value)

    def wait_for_all(self, name: str, rank: int, num_ranks: int, *, limit_seconds: float) -> list[int]:  # noqa: ARG002
        """Return at once: all ranks of the store see the same value."""
        return []


class MachineDecisions:
    """Decisions in a directory of this machine, by processes that one launcher has started.

    The launcher is identified by its process and by the name of its job. Processes of two launchers do not share
    decisions, and `wait_for_all` says so: no process goes on with a decision of its own.
    """

    def __init__(self, cache_dir: str) -> None:
        self._directory = str(Path(cache_dir, "decisions"))

    def first(self, name: str, value: bytes) -> bytes:
        """Return the first value under a name; `StorageError` if the directory cannot be written."""
        path = self._path(name)
        with machine_lock(f"{path}.lock", what="decides for all ranks"):
            try:
                if os.path.exists(path):
                    return Path(path).read_bytes()
                write_atomically(path, [value], durable=False)
                keep_within(self._directory, suffixes=(_SUFFIX,), limit_bytes=_MOST_BYTES, limit_files=_MOST_FILES)
            except OSError as error:
                msg = f"the ranks of this machine cannot agree through {self._directory}: {error}"
                raise StorageError(msg, hint="set $SHOAL_CACHE_DIR to a directory that can be written") from error
            return value

    def wait_for_all(self, name: str, rank: int, num_ranks: int, *, limit_seconds: float) -> list[int]:
        """Wait until all ranks have called this; return the missing ranks after ``limit_seconds``, else nothing."""
        self.first(f"{name}\0{rank}", b"here")
        limit = time.monotonic() + limit_seconds
        while True:
            missing = [other for other in range(num_ranks) if not os.path.exists(self._path(f"{name}\0{other}"))]
            if not missing or time.monotonic() > limit:
                return missing
            time.sleep(_POLL_SECONDS)

    def _path(self, name: str) -> str:
        job = [os.environ.get(variable, "") for variable in _JOBS]
        words = "\0".join([name, str(os.getppid()), *job])
        return str(Path(self._directory, hashlib.blake2b(words.encode(), digest_size=16).hexdigest() + _SUFFIX))

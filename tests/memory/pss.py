"""The memory of a process and all its children, as the system counts it: what is shared counts once."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

SAMPLED_EVERY_SECONDS = 0.01
MIB = 2**20


@dataclass(frozen=True)
class Peak:
    """The most memory at any sampled moment, how often it was sampled, and what the process printed."""

    peak_bytes: int
    num_samples: int
    printed: str


def tree(pid: int) -> list[int]:
    """A process and its descendants, as far as they are there."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found.extend(int(child) for child in (task / "children").read_text().split())
    return found


def pss_bytes(pid: int) -> int:
    """Proportional set size: a page of n processes counts an n-th in each; 0 when the process has ended."""
    return _sum_of(pid, ("Pss:",))


def own_pss_bytes(pid: int) -> int:
    """The same without pages of files: what the process itself has put there.

    The pages of an interpreter and its libraries are shared with every other process that runs them. Their part in one
    changes by up to 6 MiB when others begin or end, whatever the process does itself.
    """
    return _sum_of(pid, ("Pss_Anon:", "Pss_Shmem:"))


def _sum_of(pid: int, names: tuple[str, ...]) -> int:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(names))
    return 0


def peak_of(script: str, *arguments: str, timeout_seconds: float = 100.0, of: Callable[[int], int] = pss_bytes) -> Peak:
    """Run a Python script in a process of its own, to a good end, and see what ``of`` says of its tree meanwhile."""
    command: Sequence[str] = [sys.executable, "-c", script, *arguments]
    peak = num_samples = 0
    # Files and not pipes: nobody empties these while the process runs.
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(command, stdout=said, stderr=complaints, text=True)
        try:
            deadline = time.monotonic() + timeout_seconds
            while process.poll() is None:
                assert time.monotonic() < deadline, f"still running after {timeout_seconds} s"
                peak = max(peak, sum(of(pid) for pid in tree(process.pid)))
                num_samples += 1
                time.sleep(SAMPLED_EVERY_SECONDS)
        finally:
            process.kill()
            process.wait()
        said.seek(0)
        complaints.seek(0)
        assert process.returncode == 0, complaints.read()
        return Peak(peak, num_samples, said.read())

"""The memory of a process and all its children, as the system counts it: what is shared counts once."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
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
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def peak_of(script: str, *arguments: str, timeout_seconds: float = 100.0) -> Peak:
    """Run a Python script in a process of its own, to a good end, and look at its tree meanwhile."""
    command: Sequence[str] = [sys.executable, "-c", script, *arguments]
    peak = num_samples = 0
    # Files and not pipes: nobody empties these while the process runs.
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(command, stdout=said, stderr=complaints, text=True)
        try:
            deadline = time.monotonic() + timeout_seconds
            while process.poll() is None:
                assert time.monotonic() < deadline, f"still running after {timeout_seconds} s"
                peak = max(peak, sum(pss_bytes(pid) for pid in tree(process.pid)))
                num_samples += 1
                time.sleep(SAMPLED_EVERY_SECONDS)
        finally:
            process.kill()
            process.wait()
        said.seek(0)
        complaints.seek(0)
        assert process.returncode == 0, complaints.read()
        return Peak(peak, num_samples, said.read())

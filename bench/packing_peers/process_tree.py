"""A program with all of its descendants: their processor time and memory as /proc has them, and an end for all."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36


class ProcessTree:
    """A running program, looked at 20 times a second; what a process does after the last look at it is lost.

    ``begun`` is a file that the program makes where its work begins.
    """

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], begun: Path, log: Path) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans become our children, so none is lost
        self._begun_file = begun
        begun.unlink(missing_ok=True)
        self._cpu: dict[tuple[int, int], float] = {}
        self.driver_bytes = self.total_bytes = 0
        self.cpu_when_begun = 0.0
        self.began = time.perf_counter()
        self.begun = self.began
        self.ended = 0.0
        with log.open("ab") as out:
            self._driver = subprocess.Popen(command, env=dict(environment), stdout=out, stderr=out)
        self._is_over = threading.Event()
        self._looks = threading.Thread(target=self._look_on, daemon=True)
        self._looks.start()

    @property
    def cpu_seconds(self) -> float:
        """What all processes have taken so far."""
        return sum(self._cpu.values())

    def wait(self, seconds: float) -> int | None:
        """Return the exit status, or None if the program has not ended after so many seconds."""
        with suppress(subprocess.TimeoutExpired):
            self._driver.wait(seconds)
            self.ended = time.perf_counter()
        return self._driver.returncode

    def kill_driver(self) -> None:
        """Kill the program itself, and none of its children."""
        self._driver.kill()

    def kill_writer(self) -> str:
        """Kill the process that has written most, the driver apart; return its name."""
        written = {pid: _written_bytes(pid) for pid in self._pids() if pid != self._driver.pid}
        most = max(written, key=lambda pid: written[pid])
        name = Path(f"/proc/{most}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:60]
        os.kill(most, signal.SIGKILL)
        return name

    def end(self, seconds: float = 0.0) -> bool:
        """Wait for what is left of the tree, then kill it; return whether there was anything to kill."""
        deadline = time.perf_counter() + seconds
        while (left := self._pids()) and time.perf_counter() < deadline:
            self._reap()
            time.sleep(0.1)
        while pids := self._pids():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            time.sleep(0.05)
        self._is_over.set()
        self._looks.join()
        self._reap()  # what is dead and ours would be counted in the next tree
        return bool(left)

    def _reap(self) -> None:
        self._driver.poll()
        with suppress(ChildProcessError):
            while self._driver.returncode is not None and os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def _look_on(self) -> None:
        number = 0
        while not self._is_over.wait(0.05):
            if self.begun == self.began and self._begun_file.exists():
                self.begun, self.cpu_when_begun = time.perf_counter(), self.cpu_seconds
            pids = self._pids()
            if number % 5 == 0:
                num_bytes = {pid: _proportional_bytes(pid) for pid in pids}
                self.driver_bytes = max(self.driver_bytes, num_bytes.get(self._driver.pid, 0))
                self.total_bytes = max(self.total_bytes, sum(num_bytes.values()))
            number += 1

    def _pids(self) -> list[int]:
        """Return the processes of the tree that run, and remember what processor time they have taken."""
        parents, found = {}, {}
        for pid, stat in _stats():
            parents.setdefault(int(stat[1]), []).append(pid)
            found[pid] = stat
        pids, todo = [], [self._driver.pid] if self._driver.pid in found else []
        todo += [pid for pid in parents.get(os.getpid(), []) if pid != self._driver.pid]
        while todo:
            pid = todo.pop()
            todo += parents.get(pid, [])
            stat = found[pid]
            self._cpu[pid, int(stat[19])] = (int(stat[11]) + int(stat[12])) / _TICK
            if stat[0] not in ("Z", "X"):
                pids.append(pid)
        return pids


def _stats() -> Iterator[tuple[int, list[str]]]:
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                yield int(process.name), (process / "stat").read_text().rpartition(")")[2].split()


def _written_bytes(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/io").read_text().split()[3])
    return 0


def _proportional_bytes(pid: int) -> int:
    """Return the PSS of a process: its own pages, and its share of those that it shares."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return 0

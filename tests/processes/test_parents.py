"""Processes of our own end with the one that started them, also where nobody closes what they listen to."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")

# It dies when its child has a second thread, by a signal that it does not handle.
STARTER = """
    import os, signal, sys, time
    sys.path[:0] = {path!r}
    from shoal.processes.interpreters import start_python
    child = start_python({module!r}, str({descriptor}), stdin={descriptor}, pass_fds=[{descriptor}])
    until = time.monotonic() + 20
    while len(os.listdir(f"/proc/{{child.pid}}/task")) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    print(child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("module", ["shoal.indexing.scan.scan_worker", "shoal.pack.jobs.pack_worker"])
def test_a_process_that_waits_for_work_ends_with_the_one_that_gives_it(module: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        source = [str(Path(__file__).parents[2] / "src")]
        script = STARTER.format(path=source, module=module, descriptor=theirs.fileno())
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            pass_fds=[theirs.fileno()],
        )
        child = int(done.stdout)
        until = time.monotonic() + 3
        while is_running(child) and time.monotonic() < until:
            time.sleep(0.02)
        assert not is_running(child), done.stderr
        assert done.stderr == ""

"""Processes that call a function of a test: forked from its own, so that they begin at once, or started anew."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

_HOME = Path(__file__).parents[1]
_CALL = "import pickle, sys; call = pickle.load(sys.stdin.buffer); pickle.dump(call(), sys.stdout.buffer)"


class Fork:
    """A process that calls a function once, and then ends."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._result, result = os.pipe()
        self._exit_code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            exit_code = 1
            try:
                os.close(self._result)
                with open(result, "wb") as file:  # noqa: PTH123
                    pickle.dump(call(), file)
                exit_code = 0
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(exit_code)
        os.close(result)

    def exit_code(self) -> int:
        """Wait for the end; a process that was killed has the negative number of the signal."""
        if self._exit_code is None:
            self._exit_code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._exit_code

    def result(self) -> Any:
        """Return what the function returned, at the end of the process; None if it was killed."""
        with open(self._result, "rb") as file:  # noqa: PTH123
            data = file.read()
        assert self.exit_code() in (0, -signal.SIGKILL)
        return pickle.loads(data) if self.exit_code() == 0 else None

    def kill(self) -> int:
        """Kill the process, if it has not ended, and return its exit code."""
        if self._exit_code is None:
            os.kill(self.pid, signal.SIGKILL)
        return self.exit_code()


class Interpreter:
    """A process like `Fork` that imports all anew, for what cannot be forked; the function must pickle."""

    def __init__(self, call: Callable[[], Any]) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(_HOME), str(_HOME / "src")])}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment}
        self._process = subprocess.Popen([sys.executable, "-c", _CALL], **pipes)
        assert self._process.stdin is not None
        self._process.stdin.write(pickle.dumps(call))
        self._process.stdin.close()
        self._process.stdin = None

    def exit_code(self) -> int:
        """Wait for the end; a process that was killed has the negative number of the signal."""
        return self._process.wait()

    def result(self) -> Any:
        """Return what the function returned, at the end of the process; None if it was killed."""
        data, _ = self._process.communicate()
        assert self.exit_code() in (0, -signal.SIGKILL)
        return pickle.loads(data) if self.exit_code() == 0 else None

    def kill(self) -> int:
        """Kill the process, if it has not ended, and return its exit code."""
        self._process.kill()
        self._process.communicate()
        return self.exit_code()


class Meeting:
    """Processes that share a directory wait here for each other."""

    def __init__(self, directory: Path, num_processes: int) -> None:
        self._directory, self._num_processes = directory, num_processes
        directory.mkdir()

    def wait(self) -> None:
        """Return once all processes have called this."""
        (self._directory / uuid.uuid4().hex).touch()
        deadline = time.monotonic() + 60
        while len(os.listdir(self._directory)) < self._num_processes:  # noqa: PTH208
            assert time.monotonic() < deadline, "the other processes do not come"
            time.sleep(0.002)


def results(*calls: Callable[[], Any]) -> list[Any]:
    """Return what functions return that run at the same time, each in a process of its own."""
    forks = [Fork(call) for call in calls]
    try:
        return [fork.result() for fork in forks]
    finally:
        for fork in forks:
            fork.kill()

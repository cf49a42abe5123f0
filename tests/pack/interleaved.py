"""Machines that work in one store at once, and each of whose steps is a request: a test decides who is next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import ShoalError
from shoal.storage.memory_store import MemoryStore
from shoal.storage.store_protocol import Buffer, ObjectInfo, Store

_here = threading.local()


class Killed(BaseException):
    """A machine that makes no step any more."""


@dataclass
class Machine:
    """One machine: what it does, and what came of it; ``dies_at`` is the number of the step at which it is killed."""

    work: Callable[[], Any]
    dies_at: int | None = None
    result: Any = None
    error: ShoalError | None = None
    is_over: bool = False
    steps: list[str] = field(default_factory=list)
    _may_step: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _has_stopped: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def begin(self) -> None:
        """Run up to the first request."""
        threading.Thread(target=self._run, daemon=True).start()
        self._has_stopped.acquire()

    def step(self) -> None:
        """Let it make its next request, and come to the one after it, or to its end."""
        self._may_step.release()
        self._has_stopped.acquire()

    def wait(self, what: str) -> None:
        """Stop before a request until it is this machine's turn."""
        self._has_stopped.release()
        self._may_step.acquire()
        if self.dies_at is not None and len(self.steps) >= self.dies_at:
            raise Killed
        self.steps.append(what)

    def _run(self) -> None:
        _here.machine = self
        try:
            self.result = self.work()
        except ShoalError as error:
            self.error = error
        except Killed:
            pass
        self.is_over = True
        self._has_stopped.release()


def run_interleaved(machines: Sequence[Machine], turns: Sequence[int]) -> None:
    """Run all machines to their end: first in the order of ``turns``, then one after the other."""
    for machine in machines:
        machine.begin()
    for turn in turns:
        left = [machine for machine in machines if not machine.is_over]
        if not left:
            return
        left[turn % len(left)].step()
    for machine in machines:
        while not machine.is_over:
            machine.step()


class SteppedStore(Store):
    """The objects of this process, each request a step of the machine in whose thread it is made."""

    reads_ahead = True  # requests come one after the other, from one thread

    def __init__(self) -> None:
        self._store = MemoryStore()

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        _step(f"read {path}")
        return self._store.read_range(path, first_byte, end_byte)

    def reader(self, path: str) -> Any:
        return self._store.reader(path)

    def stat(self, path: str) -> ObjectInfo:
        _step(f"stat {path}")
        return self._store.stat(path)

    def find(self, path: str) -> ObjectInfo | None:
        _step(f"find {path}")
        return self._store.find(path)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        _step(f"list {prefix}")
        return self._store.list(prefix)

    def put(self, path: str, data: Buffer | Sequence[Buffer]) -> None:
        _step(f"put {path}")
        self._store.put(path, data)

    def put_if(self, path: str, data: Buffer | Sequence[Buffer], *, replaces: ObjectInfo | None) -> bool:
        _step(f"put_if {path}")
        return self._store.put_if(path, data, replaces=replaces)

    def delete(self, path: str) -> None:
        _step(f"delete {path}")
        self._store.delete(path)

    def map(self, path: str) -> memoryview:
        _step(f"map {path}")
        return self._store.map(path)

    def close(self) -> None:
        self._store.close()


def _step(what: str) -> None:
    machine = getattr(_here, "machine", None)
    if machine is not None:
        machine.wait(what)

"""A fork server that imports this package and none of the user's code: its processes start in milliseconds.

The fork server of `multiprocessing` imports the main module of the user before the first process starts. The main
module of a training script imports torch, which takes 1.6 s; the modules of this package take 0.25 s. Processes of the
light fork server import the main module only if they unpickle one of its functions (`main_module.py`).
"""

from __future__ import annotations

import io
import os
import threading
from multiprocessing import context, forkserver, popen_forkserver, process, reduction, spawn, util
from typing import Any

from shoal.processes.main_module import MAIN_ENTRIES
from shoal.processes.start_methods import existing_main

_PRELOAD = ["shoal.processes.one_thread", "shoal.stream.workers.worker_loop"]
_lock = threading.Lock()
_servers: dict[int, forkserver.ForkServer] = {}  # by process: a forked child has its own


def _server() -> forkserver.ForkServer:
    """Return the fork server of this process; the server is running."""
    with _lock:
        server = _servers.get(os.getpid())
        if server is None:
            server = _servers[os.getpid()] = forkserver.ForkServer()
            server.set_forkserver_preload(_PRELOAD)
    server.ensure_running()
    return server


class _Popen(popen_forkserver.Popen):
    """A process of the light fork server; its preparation leaves out the main module."""

    _fds: list[int]

    def _launch(self, process_obj: Any) -> None:
        preparation = spawn.get_preparation_data(process_obj.name)
        for entry in MAIN_ENTRIES:
            preparation.pop(entry, None)
        packed = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(preparation, packed)
            reduction.dump(process_obj, packed)
        finally:
            context.set_spawning_popen(None)
        self.sentinel, write_end = _server().connect_to_new_process(self._fds)
        parent_end = os.dup(write_end)  # open while this process lives: the sentinel of the child's parent
        self.finalizer = util.Finalize(self, _close, (parent_end, self.sentinel))
        try:
            rest = packed.getbuffer()
            while rest:
                rest = rest[os.write(write_end, rest) :]
        finally:
            os.close(write_end)
        self.pid = forkserver.read_signed(self.sentinel)


def _close(*files: int) -> None:
    for file in files:
        os.close(file)


class _Process(context.ForkServerProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802  # the name in multiprocessing
        return _Popen(process_obj)


class LightContext(context.ForkServerContext):
    """Context of `multiprocessing` whose processes come from the light fork server."""

    Process = _Process


def light_context(usual: Any) -> Any:
    """Return the context of the light fork server in place of `multiprocessing`'s; other contexts stay."""
    return LightContext() if type(usual) is context.ForkServerContext else usual


def begin_importing(chosen: Any) -> None:
    """Start the fork server of a context, if it has one: the server imports while this process goes on."""
    if chosen.get_start_method() != "forkserver" or getattr(process.current_process(), "_inheriting", False):
        return
    if isinstance(chosen, LightContext):
        _server()
        return
    with existing_main():
        forkserver.ensure_running()

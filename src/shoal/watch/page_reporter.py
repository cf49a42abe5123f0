"""The page of a run as a reporter, for ``reading(progress="page")``: one server for each dataset object.

The server lives as long as the counters of the dataset, so a browser keeps its address over epochs.
"""

from __future__ import annotations

import os
import weakref

from shoal.stats.counters import Counters
from shoal.stats.live_line import note
from shoal.stream.iterating.iterator_specs import IteratorSpec
from shoal.stream.states.iterator_position import Position
from shoal.watch.page_server import PageServer
from shoal.watch.watched_run import WatchedRun, run_of_counters

_servers: dict[tuple[int, int], PageServer] = {}  # by process and counters


class PageReporter:
    """Shows one iterator on the page of its dataset."""

    needs_steps = False

    def __init__(self, spec: IteratorSpec, position: Position) -> None:
        self._position = position
        self._run: WatchedRun | None = None
        try:
            run = self._run = server_of(spec).run
        except (OSError, RuntimeError) as error:  # no loopback interface, no socket, no thread: training goes on
            note(f"shoal: the page of this run cannot be served: {error}")
        else:
            run.follow(spec, position)

    def step(self, began: float) -> None:
        """Do nothing: the server's thread measures the run."""

    def close(self) -> None:
        """Show that the iterator has ended; the page stays as long as the dataset."""
        if self._run is not None:
            self._run.end(self._position)


def server_of(spec: IteratorSpec) -> PageServer:
    """Return the server of a dataset; start it, and write its address on stderr, if there is none."""
    key = os.getpid(), id(spec.counters)
    server = _servers.get(key)
    if server is None:
        run = run_of_counters(weakref.proxy(spec.counters), spec)
        server = _servers[key] = PageServer(run, rank=spec.work.pipeline.rank)
        weakref.finalize(spec.counters, _end, key)
        note(f"shoal: the page of this run: {server.url}")
    return server


def _end(key: tuple[int, int]) -> None:
    server = _servers.pop(key, None)
    if server is not None:
        server.close()


def address_of(counters: Counters) -> str | None:
    """Return the address of the page of these counters; None without a page."""
    server = _servers.get((os.getpid(), id(counters)))
    return None if server is None else server.url

"""A process that scans shards for `shoal.indexing.build`: tasks arrive on stdin, scans leave on stdout.

It is started with ``python -m`` and not by multiprocessing, which would import the user's script again (and run it
again if it has no ``__main__`` guard), or fork a process that may have threads and connections.
It ends when its stdin does, or when its parent is gone.
"""

from __future__ import annotations

import signal
import sys
import time
import traceback
from functools import partial
from typing import IO, Any

from shoal.formats.known_formats import format_named
from shoal.formats.metadata.manifests import Expected
from shoal.formats.metadata.scanning import checked_scan
from shoal.index.shard_scan import Buffer
from shoal.indexing.scan.pipe_frames import header_of_error, read_frame, write_frame
from shoal.processes.parents import end_with_parent
from shoal.storage.files.local_store import LocalStore

_PROGRESS_SECONDS = 0.5


def main() -> int:
    """Serve tasks until there are no more, and return the exit status."""
    # The parent handles Ctrl-C: it ends this process, and reports the interrupt once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    tasks, answers = sys.stdin.buffer, sys.stdout.buffer
    # Output printed by a library must not mix with the results.
    sys.stdout = sys.stderr
    store = LocalStore(max_open=1)
    try:
        while (frame := read_frame(tasks)) is not None:
            _serve(frame[0], store, answers)
            store.close()
    except BrokenPipeError:
        return 1
    return 0


def _serve(task: dict[str, Any], store: LocalStore, answers: IO[bytes]) -> None:
    read = _Reading(store, task["path"], answers)
    try:
        expected = None if task["expected"] is None else Expected(*task["expected"])
        reader = format_named(task["format"], task["options"])
        index = None if task["index"] is None else partial(store.read_range, task["index"][0], 0, task["index"][1])
        scan = checked_scan(reader, read, task["num_bytes"], shard=task["name"], expected=expected, index=index)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - any error must reach the parent
        write_frame(answers, header_of_error(error, traceback.format_exc()))
    else:
        write_frame(answers, {"kind": "scan"}, scan)


class _Reading:
    """Reads of one shard that report progress now and then."""

    def __init__(self, store: LocalStore, path: str, answers: IO[bytes]) -> None:
        self._store = store
        self._path = path
        self._answers = answers
        self._next_report_seconds = time.monotonic() + _PROGRESS_SECONDS

    def __call__(self, first_byte: int, end_byte: int) -> Buffer:
        if time.monotonic() >= self._next_report_seconds:
            self._next_report_seconds = time.monotonic() + _PROGRESS_SECONDS
            write_frame(self._answers, {"kind": "progress", "done_bytes": first_byte})
        return self._store.read_range(self._path, first_byte, end_byte)


if __name__ == "__main__":
    sys.exit(main())

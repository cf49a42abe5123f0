"""A process that scans shards for `shoal.indexing.build`: tasks arrive on stdin, scans leave on stdout.

It is started with ``python -m`` and not by multiprocessing, which would import the user's script again (and run it
again if it has no ``__main__`` guard), or fork a process that may have threads and connections.
It ends when its stdin does, or when its parent is gone.
"""

from __future__ import annotations

import signal
import sys
import traceback
from functools import partial
from typing import IO, Any

from shoal.formats.format_registry import format_named
from shoal.formats.metadata.manifests import Expected
from shoal.indexing.scan.scan_frames import header_of_error, read_frame, write_frame
from shoal.indexing.scan.scan_task import ScanTask, scan_shard
from shoal.processes.process_ends import end_with_parent
from shoal.storage.files.local_store import LocalStore


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


def _serve(request: dict[str, Any], store: LocalStore, answers: IO[bytes]) -> None:
    def on_progress(done_bytes: int) -> None:
        write_frame(answers, {"kind": "progress", "done_bytes": done_bytes})

    try:
        stated = request["task"].pop("expected")
        task = ScanTask(**request["task"], expected=None if stated is None else Expected(**stated))
        reader, read = format_named(request["format"], request["options"]), partial(store.read_range, task.path)
        scan = scan_shard(task, reader, read, read_range=store.read_range, on_progress=on_progress)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - any error must reach the parent
        write_frame(answers, header_of_error(error, traceback.format_exc()))
    else:
        write_frame(answers, {"kind": "scan"}, scan)


if __name__ == "__main__":
    sys.exit(main())

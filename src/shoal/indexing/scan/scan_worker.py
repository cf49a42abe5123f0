"""A process that scans shards for `shoal.indexing.build`: tasks arrive on stdin, scans leave on stdout.

``python -m`` starts this process. multiprocessing would import the user's script again (and run it again without a
``__main__`` guard), or fork a process with threads and connections. This process ends when its stdin closes or its
parent ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import IO, Any

from shoal.formats.format_registry import format_named
from shoal.formats.metadata.manifests import Expected
from shoal.formats.shard_format import Format
from shoal.index.shard_scan import ShardScan
from shoal.indexing.scan.remote_scans import ScanReads, answers_in_threads
from shoal.indexing.scan.scan_frames import header_of_error, read_frame, write_frame
from shoal.indexing.scan.scan_task import ScanTask, scan_shard
from shoal.processes.process_ends import end_with_parent
from shoal.storage.files.local_store import LocalStore


def main() -> int:
    """Serve tasks until there are no more, and return the exit status."""
    # The parent handles Ctrl-C: it ends this process, and reports the interrupt once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    pipe, answers = sys.stdin.buffer, sys.stdout.buffer
    # Output printed by a library must not mix with the results.
    sys.stdout = sys.stderr
    frame = read_frame(pipe)
    if frame is None or frame[0]["parent"] != os.getppid():  # the parent ended before this process could watch it
        return 0
    common = frame[0]
    # For packages with formats. Appended: a json.py in the user's directory must not shadow the library's.
    sys.path += [entry for entry in common["path"] if entry not in sys.path]
    scan_all = _scan_files if common["store"] is None else partial(_scan_objects, store=common["store"])
    try:
        scan_all(_Tasks(pipe), format_named(common["format"], common["options"]), common["num_at_once"], answers)
    except BrokenPipeError:
        return 1
    return 0


class _Tasks(Iterator[ScanTask]):
    """The arriving tasks, for any number of threads."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._lock = pipe, threading.Lock()

    def __next__(self) -> ScanTask:
        with self._lock:
            frame = read_frame(self._pipe)
        if frame is None:
            raise StopIteration
        known, stated = frame[0], frame[0].pop("expected")
        return ScanTask(**known, expected=None if stated is None else Expected(**stated))


def _scan_files(tasks: _Tasks, format: Format, _: int, answers: IO[bytes]) -> None:  # noqa: A002
    """Scan files of this machine, one after another."""
    store = LocalStore(max_open=1)
    for task in tasks:
        on_progress, read = partial(_answer, answers, task), partial(store.read_range, task.path)
        try:
            scan = scan_shard(task, format, read, read_range=store.read_range, on_progress=on_progress)
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001  # any error must reach the parent
            _answer(answers, task, error)
        else:
            _answer(answers, task, scan)
        store.close()


def _scan_objects(tasks: _Tasks, format: Format, num_at_once: int, answers: IO[bytes], *, store: str) -> None:  # noqa: A002
    """Scan objects in a store side by side. After an error, wait for the parent to end this process."""
    reads = ScanReads(pickle.loads(bytes.fromhex(store)))  # noqa: S301  # of the parent, through its own pipe
    results = answers_in_threads(tasks, format, reads, side_by_side=num_at_once, num_requests=num_at_once)
    for task, answer in results:
        _answer(answers, task, answer, traffic=asdict(reads.take_traffic()))


def _answer(answers: IO[bytes], task: ScanTask, answer: ShardScan | Exception | int, **more: Any) -> None:
    """Send the bytes done of a task, its scan, or an error."""
    about = {"number": task.number, **more}
    if isinstance(answer, ShardScan):
        write_frame(answers, {"kind": "scan", **about}, answer)
    elif isinstance(answer, Exception):
        write_frame(answers, {**header_of_error(answer, "".join(traceback.format_exception(answer))), **about})
    else:
        write_frame(answers, {"kind": "progress", "done_bytes": answer, **about})


if __name__ == "__main__":
    sys.exit(main())

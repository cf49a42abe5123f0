"""Scanning of shards in worker processes: the parent's side, and the number of processes for remote shards.

Threads of one process parse about 300 MB/s of small samples, since they take turns, however fast the network is.
"""

from __future__ import annotations

import os
import pickle
import pickletools
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from shoal.formats.format_registry import options_of
from shoal.formats.shard_format import Format
from shoal.index.shard_scan import ShardScan
from shoal.indexing.scan.remote_scans import NUM_REQUESTS, ScanTraffic
from shoal.indexing.scan.scan_frames import error_of, read_frame, write_frame
from shoal.indexing.scan.scan_task import ScanTask
from shoal.processes.interpreters import start_python
from shoal.storage.http.http_store import HttpStore
from shoal.storage.objects.object_store import ObjectStore
from shoal.storage.retry import RetryingStore

WORKERS_VARIABLE = "SHOAL_INDEX_WORKERS"
_WORKER = "shoal.indexing.scan.scan_worker"

# From so many bytes or shards on, several processes scan remote shards, if each gets so many: their start takes half a
# second, and an empty shard 0.7 ms.
MUCH_BYTES, MANY_SHARDS, SHARDS_EACH = 1 << 30, 8192, 8
# Requests in flight of all processes, and the least of each.
_MOST_REQUESTS, _LEAST_REQUESTS_EACH = 128, 8

_OURS = ("shoal", "builtins", "__builtin__", "copyreg", "copy_reg")

_Answer = tuple[ScanTask, dict[str, Any], ShardScan | None]


def scan_in_processes(
    tasks: Sequence[ScanTask],
    format: Format,  # noqa: A002
    *,
    num_workers: int,
    on_progress: Callable[[ScanTask, int], None],
    store: bytes | None = None,
    num_at_once: int = 1,
    traffic: ScanTraffic | None = None,
) -> Iterator[tuple[ScanTask, ShardScan]]:
    """Scan every shard in one of ``num_workers`` processes, and yield the scans in the order in which they finish.

    A process scans local files one at a time; of objects in ``store``, a process scans ``num_at_once`` in parallel,
    with as many requests, and adds the requests to ``traffic``. Workers find the format by its name, also in packages
    on ``sys.path``.

    ``on_progress`` is called now and then, in this thread, with the bytes done of a shard. After the iteration ends,
    no process and no thread is left. Raises the error of a worker, with its type; or, if a worker ended, a `ShoalError`
    that names the signal and a shard of the worker.
    """
    num_workers = min(num_workers, len(tasks))
    waiting: queue.SimpleQueue[ScanTask | None] = queue.SimpleQueue()
    for task in [*tasks, *[None] * num_workers]:
        waiting.put(task)
    answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
    common = {
        "parent": os.getpid(),
        "path": [str(Path(entry).absolute()) for entry in sys.path],
        "format": format.name,
        "options": options_of(format),
        "num_at_once": num_at_once,
        "store": None if store is None else store.hex(),
    }
    processes: list[subprocess.Popen[bytes]] = []
    threads: list[threading.Thread] = []
    try:
        for _ in range(num_workers):
            processes.append(start_python(_WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            conversation = (processes[-1], common, waiting, answers)
            threads.append(threading.Thread(target=_converse, args=conversation, name="shoal-index", daemon=True))
            threads[-1].start()
        left = len(tasks)
        while left:
            task, header, scan = answers.get()
            if traffic is not None and "traffic" in header:
                traffic.add(ScanTraffic(**header["traffic"]))
            if scan is not None:
                left -= 1
                yield task, scan
            elif header["kind"] == "progress":
                on_progress(task, header["done_bytes"])
            else:
                raise error_of(header, shard=task.name)
    finally:
        # Also on Ctrl-C, and if the consumer stops early.
        for process in processes:
            process.kill()
        for thread in threads:
            thread.join()
        for process in processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(BrokenPipeError):
                    if pipe is not None:
                        pipe.close()


def _converse(
    process: subprocess.Popen[bytes],
    common: dict[str, Any],
    waiting: queue.SimpleQueue[ScanTask | None],
    answers: queue.SimpleQueue[_Answer],
) -> None:
    """Supply one worker with tasks, in a thread of its own, until no task is left or the worker has ended."""
    if process.stdin is None or process.stdout is None:
        return
    tasks = iter(waiting.get, None)
    in_work: dict[int, ScanTask] = {}
    messages = [common]
    while True:
        for task in islice(tasks, common["num_at_once"] - len(in_work)):
            in_work[task.number] = task
            messages.append(asdict(task))
        if not in_work:
            return
        try:
            for message in messages:
                write_frame(process.stdin, message)
            frame = read_frame(process.stdout)
        except (OSError, ValueError):
            frame = None
        if frame is None:
            lost = next(iter(in_work.values()))
            answers.put((lost, _header_of_exit(process.wait(), lost), None))
            return
        messages.clear()
        header, scan = frame
        number = header["number"]
        answers.put((in_work[number] if header["kind"] == "progress" else in_work.pop(number), header, scan))


def _header_of_exit(status: int, task: ScanTask) -> dict[str, Any]:
    """Return the error header for a worker that ended during a task."""
    if status < 0:
        how = f"was killed by {signal.Signals(-status).name}"
        hint = f"out of memory? Try fewer workers ({WORKERS_VARIABLE}=1); finished shards are not scanned again"
    else:
        how = f"ended with exit status {status}"
        hint = f"the message of the process is above; {WORKERS_VARIABLE}=0 scans without worker processes"
    message = f"{task.path}: the process that scanned this shard {how}"
    return {"kind": "error", "type": "ShoalError", "args": [message], "known": {"message": message, "hint": hint}}


def num_remote_processes(most: int, *, num_shards: int, num_bytes: int) -> int:
    """Return how many processes scan remote shards, at most ``most``; 0 if threads of this process do."""
    number = min(most, num_shards // SHARDS_EACH, _MOST_REQUESTS // _LEAST_REQUESTS_EACH)
    is_much = num_bytes >= MUCH_BYTES or num_shards >= MANY_SHARDS
    return number if number > 1 and is_much else 0


def num_requests_in_all(num_processes: int) -> int:
    """Return the number of requests in flight of this many processes; 0 means threads of this process."""
    return max(1, num_processes) * num_requests_each(num_processes)


def num_requests_each(num_processes: int) -> int:
    """Return the number of requests in flight of each process."""
    return min(NUM_REQUESTS, _MOST_REQUESTS // max(1, num_processes))


def store_for_processes(store: object) -> bytes | None:
    """Return a pickled store for processes that import nothing of the user's; None if the store works only here.

    Objects in memory are in one process alone, and so are filesystems and credential providers of users.
    """
    if not isinstance(store.store if isinstance(store, RetryingStore) else store, HttpStore | ObjectStore):
        return None
    try:
        data = pickle.dumps(store, protocol=2)  # the last protocol whose operation GLOBAL names every import
    except (pickle.PicklingError, TypeError, AttributeError):
        return None
    imports = [str(argument) for operation, argument, _ in pickletools.genops(data) if operation.name == "GLOBAL"]
    return data if all(name.partition(" ")[0].partition(".")[0] in _OURS for name in imports) else None

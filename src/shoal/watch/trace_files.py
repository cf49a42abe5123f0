"""Files of traces in the format of Chrome's trace events, which ui.perfetto.dev and chrome://tracing open.

Each process writes its part; the process of the training loop joins the parts into one file, a JSON object.

References
----------
Google, "Trace Event Format", the JSON object format: complete events ("X"), instants ("i") and metadata ("M").
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoal.storage.files.atomic_writes import write_atomically
from shoal.storage.files.local_store import LocalStore
from shoal.storage.storage_errors import os_failure
from shoal.watch.trace_recorder import Span

_HEAD, _TAIL = b'{"displayTimeUnit": "ms", "traceEvents": [\n', b"\n]}\n"
_PART = ".part"


class TraceFile:
    """A trace that grows by the events of this process, and by the parts that other processes have written."""

    def __init__(self, path: str) -> None:
        self._path, self._has_begun = path, False
        for part in _parts_of(path):  # of an earlier run
            os.unlink(part)  # noqa: PTH108

    def append(self, lines: Sequence[str]) -> None:
        """Add events, and the parts of other processes; readers always see a whole trace."""
        parts = _parts_of(self._path)
        new = [line.encode() for line in lines] + [_read(part) for part in parts]
        if not new and self._has_begun:
            return
        before = _read(self._path)[len(_HEAD) : -len(_TAIL)] if self._has_begun else b""
        body = b",\n".join([*([before] if before else []), *new])
        _write(self._path, [_HEAD, body, _TAIL])
        self._has_begun = True
        for part in parts:
            os.unlink(part)  # noqa: PTH108


class TracePart:
    """The part of a process, in files that the process of the training loop joins and removes."""

    def __init__(self, path: str) -> None:
        self._path, self._num_written = path, 0

    def append(self, lines: Sequence[str]) -> None:
        """Write events as one more file."""
        if lines:
            name = f"{self._path}.{os.getpid()}-{self._num_written}{_PART}"
            self._num_written += 1
            _write(name, [",\n".join(lines).encode()])


def _parts_of(path: str) -> list[str]:
    return sorted(glob.glob(f"{glob.escape(path)}.*{_PART}"))  # noqa: PTH207


def _read(path: str) -> bytes:
    store = LocalStore()
    try:
        return bytes(store.read_range(path, 0, store.stat(path).num_bytes))
    finally:
        store.close()


def _write(path: str, buffers: Sequence[bytes]) -> None:
    try:
        write_atomically(path, buffers, durable=False)
    except OSError as error:
        raise os_failure(error, path, verb="write") from error


def lines_of(spans: Iterable[Span], process: int) -> list[str]:
    r"""Return the lines of spans; times are in microseconds.

    >>> lines_of([Span("read", 7, 1.5, 1.75, {"bytes": 3})], 5)
    ['{"name":"read","ph":"X","dur":250000.000,"pid":5,"tid":7,"ts":1500000.000,"args":{"bytes":3}}']
    """
    # Formatted by hand: `json.dumps` of each event takes four times as long.
    quoted: dict[str, str] = {}
    lines = []
    for name, thread, began, ended, args in spans:
        word = quoted.get(name) or quoted.setdefault(name, json.dumps(name))
        when = f'"pid":{process},"tid":{thread},"ts":{1e6 * began:.3f}'
        kind = '"ph":"i","s":"t"' if ended is None else f'"ph":"X","dur":{1e6 * (ended - began):.3f}'
        more = f',"args":{json.dumps(args)}' if len(args) > 1 else _only(args)
        lines.append(f'{{"name":{word},{kind},{when}{more}}}')
    return lines


def _only(args: Mapping[str, Any]) -> str:
    """Return an object of at most one argument; most are a number of bytes or samples."""
    for name, value in args.items():
        return f',"args":{{"{name}":{value if type(value) is int else json.dumps(value)}}}'
    return ""


def name_lines(process: int, name: str, threads: Iterable[tuple[int, str]]) -> list[str]:
    """Return the lines that name a process and its threads."""
    events = [{"name": "process_name", "ph": "M", "pid": process, "tid": 0, "args": {"name": name}}]
    events += [
        {"name": "thread_name", "ph": "M", "pid": process, "tid": number, "args": {"name": word}}
        for number, word in threads
    ]
    return [json.dumps(event, separators=(",", ":")) for event in events]

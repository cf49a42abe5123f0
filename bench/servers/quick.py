"""A far server that takes little of the machine it shares with who is measured.

It answers as `shoal.testing.RangeServer` does (by the same functions), after the same latency and at the same speed of
each connection, but from one thread that waits for all connections at once, where that one has a thread for each: 80 us
of processor for a range of 100 KB, of which the kernel has nearly half, and not 140 to 160. It has no faults.

``python bench/servers/quick.py DIRECTORY --latency-ms 20 --connection-mb 60`` prints its URL as a line of JSON, then,
for each line that it is given, what it was asked since; it ends with its input.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from shoal.testing.answers import Answer, Directory, answer, head_bytes, parse_request

PIECE_BYTES = 1 << 18
MOST_REQUEST_BYTES = 1 << 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--connection-mb", type=float, default=60.0, help="MB/s of each connection")
    parser.add_argument("--link-mb", type=float, default=math.inf, help="MB/s of all connections together")
    arguments = parser.parse_args()
    server = QuickServer(
        arguments.directory,
        latency_seconds=arguments.latency_ms / 1000,
        bytes_per_second=arguments.connection_mb * 1e6,
        link_bytes_per_second=arguments.link_mb * 1e6,
    )
    print(json.dumps(server.url), flush=True)
    server.run()


class Quick:
    """The server in a process of its own, while a context lasts: its work must not count as the client's."""

    def __init__(self, directory: Path, latency_ms: float, connection_mb: float, link_mb: float | None = None) -> None:
        self.directory = directory
        speed = ["--latency-ms", str(latency_ms), "--connection-mb", str(connection_mb)]
        if link_mb is not None:
            speed += ["--link-mb", str(link_mb)]
        self._command = [sys.executable, __file__, str(directory), *speed]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self._told()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=10)  # its end of input is what ends it

    def seen(self) -> dict[str, Any]:
        """What was asked of it since this was last called."""
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return dict(self._told())

    def _told(self) -> Any:
        assert self._process.stdout
        return json.loads(self._process.stdout.readline())


class QuickServer:
    """Serves the files below a directory; told by lines on its standard input, it says there what it was asked."""

    def __init__(
        self, directory: str, *, latency_seconds: float, bytes_per_second: float, link_bytes_per_second: float
    ) -> None:
        self.latency_seconds, self.bytes_per_second = latency_seconds, bytes_per_second
        self._link_bytes_per_second, self._link_free = link_bytes_per_second, 0.0
        self.files = Directory(directory)
        self.exchanges: list[tuple[str, int, int]] = []
        self.num_under_way = self.peak_concurrency = 0
        self.poll = select.epoll()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._listener.setblocking(False)
        self._events: dict[int, Callable[[int], None]] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._is_over = False
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self) -> None:
        """Serve until the standard input ends."""
        self.watch(self._listener.fileno(), self._accept)
        self.watch(sys.stdin.fileno(), self._tell)
        while not self._is_over:
            pause = self._due[0][0] - time.monotonic() if self._due else -1.0
            for fileno, event in self.poll.poll(max(0.0, pause) if self._due else -1.0):
                self._events[fileno](event)
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()

    def watch(self, fileno: int, call: Callable[[int], None]) -> None:
        """Call when something comes."""
        self._events[fileno] = call
        self.poll.register(fileno, select.EPOLLIN)

    def forget(self, fileno: int) -> None:
        """Call no more."""
        del self._events[fileno]
        self.poll.unregister(fileno)

    def later(self, due_seconds: float, call: Callable[[], None]) -> None:
        """Call at that time, or up to a millisecond after."""
        heapq.heappush(self._due, (due_seconds, next(self._count), call))

    def over_the_link(self, num_bytes: int) -> float:
        """Return when all connections together will have carried so many bytes more."""
        self._link_free = max(self._link_free, time.monotonic()) + num_bytes / self._link_bytes_per_second
        return self._link_free

    def began(self) -> None:
        """A request is under way, until `ended`."""
        self.num_under_way += 1
        self.peak_concurrency = max(self.peak_concurrency, self.num_under_way)

    def ended(self) -> None:
        """All of an answer was sent, or never will be."""
        self.num_under_way -= 1

    def _accept(self, _: int) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        Connection(connection, self)

    def _tell(self, _: int) -> None:
        asked = os.read(sys.stdin.fileno(), 1 << 16)
        self._is_over = not asked
        for _ in range(asked.count(b"\n")):
            cpu_seconds = time.process_time()
            told: dict[str, Any] = {"ranges": self.exchanges, "concurrency": self.peak_concurrency}
            print(json.dumps(told | {"cpu_seconds": cpu_seconds}), flush=True)
            self.exchanges, self.peak_concurrency = [], 0


class Connection:
    """One request after the other, answered when the latency is over, at the speed of the connection."""

    def __init__(self, connection: socket.socket, server: QuickServer) -> None:
        self._socket, self._server = connection, server
        self._heard = b""
        self._is_answering = self._is_last = self._is_blocked = self._is_closed = self._closes = False
        self._to_send: list[memoryview] = []
        self._fileno = connection.fileno()
        server.watch(self._fileno, self._event)

    def _event(self, event: int) -> None:
        if event & select.EPOLLOUT:
            self._send()
        if event & ~select.EPOLLOUT and not self._is_closed:
            try:
                more = self._socket.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                more = b""
            self._heard += more
            if not more or len(self._heard) > MOST_REQUEST_BYTES:
                self._close()
            elif not self._is_answering:
                self._hear_or_close()

    def _hear_or_close(self) -> None:
        try:
            self._hear()
        except ValueError:  # what came is no request
            self._close()

    def _hear(self) -> None:
        """Answer the next request, if all of it is here."""
        head, end, rest = self._heard.partition(b"\r\n\r\n")
        if not end:
            return
        request = parse_request(head)
        if len(rest) < request.num_body_bytes:
            return
        self._heard = rest[request.num_body_bytes :]
        self._is_answering, self._closes = True, not request.keeps_alive
        server = self._server
        server.began()
        answered = answer(request, server.files, None)
        body = answered.body if request.method != "HEAD" and answered.status != 304 else answered.body[:0]

        def begin() -> None:
            if not self._is_closed:
                # Written down before the client can know that it has all.
                server.exchanges.append((request.path, answered.first_byte, len(body)))
                self._begin(answered, body)

        server.later(time.monotonic() + server.latency_seconds, begin)

    def _begin(self, answered: Answer, body: memoryview) -> None:
        """The head at once; each piece of the body when a connection of this speed would have carried it."""
        began, rate = time.monotonic(), self._server.bytes_per_second
        length = {} if answered.status == 304 else {"Content-Length": str(len(answered.body))}
        self._to_send.append(memoryview(head_bytes(answered.status, {**answered.headers, **length})))

        def go_on(first: int, end: int) -> None:
            if not self._is_closed:
                self._to_send.append(body[first:end])
                follow(end)
                self._send()

        def follow(first: int) -> None:
            end = min(first + PIECE_BYTES, len(body))
            self._is_last = first == end
            if not self._is_last:
                due_seconds = max(began + end / rate, self._server.over_the_link(end - first))
                self._server.later(due_seconds, lambda: go_on(first, end))

        follow(0)
        self._send()

    def _send(self) -> None:
        """What is due, as far as the system takes it."""
        try:
            while self._to_send:
                sent = self._socket.send(self._to_send[0])
                self._to_send[0] = self._to_send[0][sent:]
                if not self._to_send[0]:
                    del self._to_send[0]
        except BlockingIOError:
            pass
        except OSError:
            self._close()
            return
        self._wait_to_send(wait=bool(self._to_send))
        if self._is_last and not self._to_send:
            self._finish()

    def _wait_to_send(self, *, wait: bool) -> None:
        if wait != self._is_blocked:
            self._is_blocked = wait
            self._server.poll.modify(self._fileno, select.EPOLLIN | (select.EPOLLOUT if wait else 0))

    def _finish(self) -> None:
        self._is_answering = self._is_last = False
        self._server.ended()
        if self._closes:
            self._close()
        elif self._heard:
            self._hear_or_close()

    def _close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self._is_answering:
                self._server.ended()
            self._server.forget(self._fileno)
            self._socket.close()


if __name__ == "__main__":
    main()

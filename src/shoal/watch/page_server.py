"""A server of a run's page on the loopback interface, in one daemon thread and one short thread a request.

Only GET is answered, only for a Host header that names this machine (a foreign name would be DNS rebinding), and only
below a token that cannot be guessed: other users of the machine and pages of other sites learn nothing.
"""

from __future__ import annotations

import contextlib
import hmac
import http.server
import json
import os
import secrets
import socket
import socketserver
import threading
import weakref
from typing import Any
from urllib.parse import urlsplit

from shoal.stats.prometheus_text import CONTENT_TYPE, text
from shoal.tools.reports.page_document import policy_with
from shoal.watch.run_page import SCRIPT, run_page
from shoal.watch.watched_run import WatchedRun

_HOST = "127.0.0.1"
_HOST_NAMES = ("127.0.0.1", "localhost", "::1")
_POLL_SECONDS = 0.25
_CONNECTION_SECONDS = 5.0
_CLOSE_SECONDS = 2.0
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"{policy_with(SCRIPT)}; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class _Handler(http.server.BaseHTTPRequestHandler):
    """One connection: one request, HTTP/1.0."""

    server: _Server
    timeout = _CONNECTION_SECONDS
    server_version, sys_version = "shoal", ""

    def do_GET(self) -> None:
        """Answer with the page, the numbers or the metrics."""
        refused = self._refused()
        if refused is not None:
            self._answer(*refused, "text/plain; charset=utf-8")
            return
        try:
            self._show(self.server.run, urlsplit(self.path).path.rpartition("/")[2])
        except ReferenceError:
            self._answer(503, "the dataset of this run is gone\n", "text/plain; charset=utf-8")

    def _show(self, run: WatchedRun, name: str) -> None:
        if name == "":
            self._answer(200, run_page(run.numbers()), "text/html; charset=utf-8")
        elif name == "stats.json":
            self._answer(200, json.dumps(run.numbers(), ensure_ascii=False), "application/json")
        elif name == "metrics":
            self._answer(200, text(run.stats(), labels={"rank": self.server.rank}), CONTENT_TYPE)
        else:
            self._answer(404, "this server has the page, stats.json and metrics\n", "text/plain; charset=utf-8")

    def _refused(self) -> tuple[int, str] | None:
        with contextlib.suppress(ValueError):
            if urlsplit(f"//{self.headers.get('Host', '')}").hostname in _HOST_NAMES:
                token = urlsplit(self.path).path.strip("/").partition("/")[0]
                is_ours = hmac.compare_digest(token.encode(), self.server.token.encode())
                return None if is_ours else (404, "the address of the page has a token: use the whole address\n")
        return 403, "the Host header names another machine\n"

    def _answer(self, status: int, body: str, content_type: str) -> None:
        data = body.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Refuse other methods than GET, and bad requests, in plain text."""
        code = 405 if code == 501 else code
        with contextlib.suppress(OSError):
            self._answer(code, f"{message or 'the request is refused'}\n", "text/plain; charset=utf-8")

    def log_message(self, *_: Any) -> None:
        """Write nothing: a library does not print."""


class _StoppedError(Exception):
    """The server is closed: leave its loop."""


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """The listening socket, and the connections under way."""

    run: WatchedRun
    token: str
    rank: int

    def __init__(self) -> None:
        self.connections: dict[socket.socket, threading.Thread] = {}
        self.is_stopped = False
        super().__init__((_HOST, 0), _Handler)

    def server_bind(self) -> None:
        """Bind without asking a name server for the name of this machine."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = _HOST, int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, which `PageServer.close` ends."""
        arguments = (request, client_address)
        thread = threading.Thread(
            target=self.process_request_thread, args=arguments, name="shoal-page-request", daemon=True
        )
        self.connections[request] = thread
        thread.start()

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection."""
        self.connections.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Measure the run between requests."""
        if self.is_stopped:
            raise _StoppedError
        with contextlib.suppress(ReferenceError):  # the dataset is gone, and this server will be
            self.run.tick()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that broke off: a page must not disturb training."""


class PageServer:
    """A running server; `url` is the address of the page. `close` ends its threads and sockets.

    A forked child closes its copy of the sockets at once, so that no worker keeps the port open.
    """

    def __init__(self, run: WatchedRun, *, rank: int = 0) -> None:
        self._server = server = _Server()
        server.run, server.token, server.rank = run, secrets.token_urlsafe(12), rank
        self.run = run
        self.url = f"http://{_HOST}:{server.server_port}/{server.token}/"
        self._thread = threading.Thread(target=_serve, args=(server,), name="shoal-page", daemon=True)
        self._thread.start()
        self._close = weakref.finalize(self, _close, server, self._thread, os.getpid())
        _servers.add(server)

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return not self._close.alive

    def close(self) -> None:
        """Stop serving; the sockets are closed and the thread has ended when this returns."""
        self._close()


def _serve(server: _Server) -> None:
    with contextlib.suppress(_StoppedError):
        server.serve_forever(poll_interval=_POLL_SECONDS)


def _close(server: _Server, thread: threading.Thread, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child has closed its sockets, and has no such thread
    _servers.discard(server)
    server.is_stopped = True  # the garbage collector may run in the thread of the server, which cannot wait for itself
    if thread.is_alive() and thread is not threading.current_thread():
        server.shutdown()
    server.server_close()
    connections = dict(server.connections)
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
    for each in (thread, *connections.values()):
        if each is not threading.current_thread():  # the garbage collector may run in any thread
            each.join(_CLOSE_SECONDS)


_servers: weakref.WeakSet[_Server] = weakref.WeakSet()


def _close_in_child() -> None:
    for server in list(_servers):
        for each in (server.socket, *server.connections):
            with contextlib.suppress(OSError):
                each.close()
    _servers.clear()


os.register_at_fork(after_in_child=_close_in_child)

"""Ranges of 40 MB of memory by TLS, from threads: ``python bench/servers/ranges_by_tls.py PEM`` prints its port."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import sys
import threading

NUM_BYTES = 40_000_000


def main() -> None:
    """Serve until the process ends."""
    data = os.urandom(NUM_BYTES)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[1])
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(listener.getsockname()[1], flush=True)
    while True:
        near, _ = listener.accept()
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=serve, args=(near, context, data), daemon=True).start()


def serve(near: socket.socket, context: ssl.SSLContext, data: bytes) -> None:
    """Answer each request of a connection."""
    with contextlib.suppress(OSError), context.wrap_socket(near, server_side=True) as connection:
        while True:
            head = b""
            while b"\r\n\r\n" not in head:
                more = connection.recv(1 << 16)
                if not more:
                    return
                head += more
            first, last = map(int, head.split(b"Range: bytes=")[1].split(b"\r\n")[0].split(b"-"))
            place = b"Content-Range: bytes %d-%d/%d\r\n" % (first, last, len(data))
            fields = b'ETag: "a"\r\nAccept-Ranges: bytes\r\nContent-Length: %d\r\n' % (last - first + 1)
            connection.sendall(b"HTTP/1.1 206 Partial Content\r\n" + place + fields + b"\r\n" + data[first : last + 1])


if __name__ == "__main__":
    main()

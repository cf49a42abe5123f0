"""A far server of very many small objects that are the same tar: ranges, HEAD, and listings as in S3, from one thread.

``python bench/servers/many_objects.py --objects 100000 --latency-ms 20`` serves ``bucket/train-NNNNNN.tar`` and prints
its URL; it ends with its input. ``--backlog`` bounds the connections that wait to be accepted, ``--refused`` is the
share of connections that are reset as soon as they are there, ``--broken`` that of requests answered by a reset.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import random
import socket
import struct
import subprocess
import sys
import tarfile
from typing import Self

from shoal.testing.answers import head_bytes, parse_request, resolve_range

BUCKET, PAGE = "bucket", 1000


class ManyObjects:
    """The server in a process of its own, while a context lasts."""

    def __init__(self, num_objects: int, latency_ms: float, **options: float) -> None:
        given = {"objects": num_objects, "latency_ms": latency_ms, **options}
        words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        self._command = [sys.executable, __file__, *words]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        self.url = self._process.stdout.readline().strip()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=10)


def one_tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(2):
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = 100
            tar.addfile(info, io.BytesIO(bytes(100)))
    return out.getvalue()


class Answers:
    """Answers to requests for ``num_objects`` objects with the same contents."""

    def __init__(self, num_objects: int) -> None:
        self.num_objects, self.data = num_objects, one_tar()

    def of(self, head: bytes) -> tuple[bytes, bool]:
        """Return the answer to a request, and whether the connection stays."""
        request = parse_request(head)
        if "list-type" in request.query:
            return self._listing(request.query), request.keeps_alive
        name = request.path.removeprefix(f"{BUCKET}/")
        number = name.removeprefix("train-").removesuffix(".tar")
        if not number.isdecimal() or int(number) >= self.num_objects or name != f"train-{int(number):06d}.tar":
            return head_bytes(404, {"Content-Length": "0"}), request.keeps_alive
        headers = {"ETag": f'"{number}"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "Accept-Ranges": "bytes"}
        found = resolve_range(request.headers.get("range"), len(self.data)) if request.method == "GET" else None
        first, end = found or (0, len(self.data))
        if found:
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(self.data)}"
        head = head_bytes(206 if found else 200, headers | {"Content-Length": str(end - first)})
        return head + (b"" if request.method == "HEAD" else self.data[first:end]), request.keeps_alive

    def _listing(self, query: dict[str, str]) -> bytes:
        after = query.get("continuation-token") or query.get("start-after") or ""
        first = int(after.removeprefix("train-").removesuffix(".tar")) + 1 if after else 0
        last = min(self.num_objects, first + PAGE)
        rest = "<LastModified>2026-01-01T00:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
        keys = "".join(
            f"<Contents><Key>train-{number:06d}.tar</Key><ETag>&quot;{number:06d}&quot;</ETag>"
            f"<Size>{len(self.data)}</Size>{rest}"
            for number in range(first, last)
        )
        more = (
            f"<NextContinuationToken>train-{last - 1:06d}.tar</NextContinuationToken>"
            if last < self.num_objects
            else ""
        )
        body = (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET}</Name><Prefix></Prefix><MaxKeys>{PAGE}</MaxKeys><KeyCount>{last - first}</KeyCount>"
            f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>{keys}{more}</ListBucketResult>"
        ).encode()
        return head_bytes(200, {"Content-Type": "application/xml", "Content-Length": str(len(body))}) + body


class Connection(asyncio.Protocol):
    """One request after the other, each answered when the latency is over."""

    def __init__(self, answers: Answers, arguments: argparse.Namespace, chance: random.Random) -> None:
        self.answers, self.arguments, self.chance, self.heard = answers, arguments, chance, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, or reset the connection."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.chance.random() < self.arguments.refused:
            self.reset()

    def reset(self) -> None:
        """End the connection so that the client sees a reset."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Answer each request that is whole, later."""
        self.heard += data
        while b"\r\n\r\n" in self.heard:
            head, _, self.heard = self.heard.partition(b"\r\n\r\n")
            asyncio.get_running_loop().call_later(self.arguments.latency_ms / 1000, self.answer, head)

    def answer(self, head: bytes) -> None:
        """Answer, or reset the connection."""
        if self.transport.is_closing():
            return
        if self.chance.random() < self.arguments.broken:
            self.reset()
            return
        answer, keeps_alive = self.answers.of(head)
        self.transport.write(answer)
        if not keeps_alive:
            self.transport.close()


async def serve(arguments: argparse.Namespace) -> None:
    answers, chance = Answers(arguments.objects), random.Random(0)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(answers, arguments, chance), "127.0.0.1", 0, backlog=arguments.backlog
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=100_000)
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--backlog", type=int, default=512)
    parser.add_argument("--refused", type=float, default=0.0)
    parser.add_argument("--broken", type=float, default=0.0)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()

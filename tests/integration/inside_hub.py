"""Streams a dataset of Hugging Face through its own filesystem, from a hub of this machine; run by test_hub.py."""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

REPOSITORY = "/api/datasets/me/tars"
COMMIT = "a" * 40


class Hub(BaseHTTPRequestHandler):
    """One public dataset, as far as the filesystem asks."""

    protocol_version = "HTTP/1.1"
    shards: dict[str, bytes]
    ranges: list[tuple[int, int]]

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        """Describe the repository, list it, or send a range of a file."""
        path = unquote(urlsplit(self.path).path)
        if path.startswith(f"{REPOSITORY}/tree/"):
            self._send(200, json.dumps([self._entry(name) for name in self.shards]).encode())
        elif path == REPOSITORY or path.startswith(f"{REPOSITORY}/revision"):
            self._send(200, json.dumps({"id": "me/tars", "sha": COMMIT, "private": False, "siblings": []}).encode())
        elif (data := self.shards.get(path.rpartition("/resolve/main/")[2])) is not None:
            self._send_file(data)
        else:
            self._send(404)

    def do_HEAD(self) -> None:
        """The same, without the body."""
        self.do_GET()

    def do_POST(self) -> None:
        """Describe files by their names."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._send(200, json.dumps([self._entry(name) for name in body["paths"] if name in self.shards]).encode())

    def _entry(self, name: str) -> dict[str, object]:
        return {"type": "file", "oid": "0" * 40, "size": len(self.shards[name]), "path": name}

    def _send_file(self, data: bytes) -> None:
        headers = {"ETag": f'"{len(data)}"', "X-Repo-Commit": COMMIT}
        asked = self.headers.get("Range")
        if asked is None:
            self._send(200, data, headers)
            return
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        self.ranges.append((first, last + 1))
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        self._send(206, data[first : last + 1], headers)

    def _send(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def main(directory: Path) -> None:
    """Compare what comes by hf:// with what the files hold."""
    Hub.shards = {path.name: path.read_bytes() for path in sorted(directory.glob("*.tar"))}
    Hub.ranges = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"  # before the library is imported

    import shoal

    def delivered(source: str) -> list[tuple[int, bytes]]:
        ds = shoal.open(source).shuffle(seed=1, window="1MiB", chunk="64KiB").with_ids()
        return [(sample["__id__"], sample["txt"]) for sample in ds]

    near, far = delivered(str(directory)), delivered("hf://datasets/me/tars/*.tar")
    same = "the same" if near == far else "NOT the same"
    print(f"{len(far)} samples, {same}; some by ranges: {any(first for first, _ in Hub.ranges)}")
    server.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

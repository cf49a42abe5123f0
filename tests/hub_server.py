"""A Hugging Face Hub of this machine: datasets with several commits, as far as its filesystem and `datasets` ask."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

Files = Mapping[str, bytes]


class HubServer:
    """Serves ``repositories``: by name ``owner/name``, the files of each commit, and commits by branch or tag."""

    def __init__(self) -> None:
        self.commits: dict[tuple[str, str], dict[str, bytes]] = {}
        self.refs: dict[str, dict[str, str]] = {}
        self.requests: list[str] = []
        handler = type("_OfThisHub", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def commit(self, repository: str, files: Files, *refs: str) -> str:
        """Add a commit of a repository, the head of "main" and of these refs; return its digest."""
        digest = hashlib.sha1(repr((repository, sorted(files.items()))).encode()).hexdigest()
        self.commits[repository, digest] = dict(files)
        for ref in ("main", *refs):
            self.refs.setdefault(repository, {})[ref] = digest
        return digest

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        """Describe a repository, list a commit, or send a file."""
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        if match := re.match(r"^/api/datasets/([^/]+/[^/]+)(?:/(\w+)(?:/(.*))?)?$", path):
            self._api(match[1], match[2], match[3] or "main")
        elif match := re.match(r"^/datasets/([^/]+/[^/]+)/resolve/(refs/\w+/[^/]+|[^/]+)/(.+)$", path):
            self._file(match[1], match[2], match[3])
        else:
            self._send(404)

    def do_HEAD(self) -> None:
        """The same, without the body."""
        self.do_GET()

    def do_POST(self) -> None:
        """Describe files by their names."""
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        match = re.match(r"^/api/datasets/([^/]+/[^/]+)/paths-info/(.+)$", path)
        if match is None or (files := self._files(match[1], match[2])) is None:
            self._send(404)
            return
        is_json = self.headers.get("Content-Type", "").startswith("application/json")
        names = json.loads(body)["paths"] if is_json else re.findall(r"paths=([^&]*)", unquote(body.replace("+", " ")))
        found = [_entry(name, files[name]) for name in names if name in files]
        directories = [
            name for name in names if name not in files and any(each.startswith(f"{name}/") for each in files)
        ]
        self._json([*found, *({"type": "directory", "oid": "0" * 40, "path": name} for name in directories)])

    def _api(self, repository: str, what: str | None, rest: str) -> None:
        if repository not in self.hub.refs:
            self._send(404, headers={"X-Error-Code": "RepoNotFound"})
        elif what == "refs":
            refs = self.hub.refs[repository].items()
            listed = [{"name": name, "ref": f"refs/heads/{name}", "targetCommit": sha} for name, sha in refs]
            self._json({"branches": listed, "converts": [], "tags": []})
        elif what in (None, "revision"):
            commit = self._commit(repository, rest)
            if commit is None:
                self._send(404, headers={"X-Error-Code": "RevisionNotFound"})
            else:
                siblings = [{"rfilename": name} for name in self.hub.commits[repository, commit]]
                self._json({"id": repository, "sha": commit, "private": False, "siblings": siblings, "tags": []})
        elif what == "tree":
            self._tree(repository, rest)
        else:
            self._send(404)

    def _tree(self, repository: str, rest: str) -> None:
        revision, _, directory = rest.partition("/")
        files = self._files(repository, revision)
        if files is None:
            self._send(404, headers={"X-Error-Code": "RevisionNotFound"})
            return
        is_deep = "recursive=true" in self.path.lower()
        inside = {name: data for name, data in files.items() if not directory or name.startswith(f"{directory}/")}
        depth = directory.count("/") + 1 if directory else 0
        entries, directories = [], set[str]()
        for name, data in inside.items():
            parts = name.split("/")
            directories |= {
                "/".join(parts[:end]) for end in range(depth + 1, len(parts)) if is_deep or end == depth + 1
            }
            if is_deep or len(parts) == depth + 1:
                entries.append(_entry(name, data))
        entries += [{"type": "directory", "oid": "0" * 40, "size": 0, "path": name} for name in sorted(directories)]
        if directory and not inside:
            self._send(404, headers={"X-Error-Code": "EntryNotFound"})
        else:
            self._json(entries)

    def _file(self, repository: str, revision: str, name: str) -> None:
        files, commit = self._files(repository, revision), self._commit(repository, revision)
        if files is None or commit is None or name not in files:
            self._send(404, headers={"X-Error-Code": "EntryNotFound", **({"X-Repo-Commit": commit} if commit else {})})
            return
        data = files[name]
        headers = {"ETag": f'"{_digest(data)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        wanted = self.headers.get("Range")
        if wanted is None:
            self._send(200, data, headers)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        end = min(int(last) + 1, len(data)) if last else len(data)
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(data)}"
        self._send(206, data[int(first) : end], headers)

    def _commit(self, repository: str, revision: str) -> str | None:
        commit = self.hub.refs.get(repository, {}).get(revision, revision)
        return commit if (repository, commit) in self.hub.commits else None

    def _files(self, repository: str, revision: str) -> dict[str, bytes] | None:
        return self.hub.commits.get((repository, self._commit(repository, revision) or ""))

    def _json(self, answer: Any) -> None:
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def _entry(name: str, data: bytes) -> dict[str, object]:
    return {"type": "file", "oid": _digest(data), "size": len(data), "path": name}

"""Errors name what a server said: expired credentials, no right to list, a page in place of an object."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import shoal
from shoal.cli.main import main
from shoal.errors import IndexFileError, SourceError, StorageError
from shoal.storage.http.http_store import HttpStore
from shoal.storage.objects.object_store import ObjectStore
from shoal.storage.sources.source import expand

Answer = tuple[int, dict[str, str], bytes]
PAGE = b"<!DOCTYPE html>\n<html><body>Not here, but welcome</body></html>\n"
LINES = b'{"n": 0}\n{"n": 1}\n'


class ClockWithoutPauses:
    """A clock that goes on by the length of a pause, and does not wait."""

    def __init__(self) -> None:
        self._slept_seconds = 0.0

    def sleep(self, seconds: float) -> None:
        self._slept_seconds += seconds

    def monotonic(self) -> float:
        return time.monotonic() + self._slept_seconds


@contextmanager
def serving(answer: Callable[[str, str], Answer]) -> Iterator[str]:
    """Serve what ``answer`` gives for a path and a range; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, body = answer(self.path, self.headers.get("range", ""))
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def part_of(data: bytes, wanted: str, kind: str) -> Answer:
    """Answer a range of an object."""
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    end = min(int(last) + 1, len(data))
    headers = {"Content-Type": kind, "ETag": '"1"', "Content-Range": f"bytes {first}-{end - 1}/{len(data)}"}
    return 206, headers, data[int(first) : end]


@pytest.mark.parametrize("with_ranges", [False, True])
def test_a_page_is_no_index(with_ranges: bool) -> None:
    def answer(path: str, wanted: str) -> Answer:
        if path == "/a.jsonl":
            return part_of(LINES, wanted, "text/html" if with_ranges else "text/plain")
        if with_ranges:  # nginx: try_files $uri /index.html
            return part_of(PAGE, wanted, "text/html; charset=utf-8")
        return 200, {"Content-Type": "text/html"}, PAGE

    with serving(answer) as url:
        assert [sample["n"] for sample in shoal.open(f"{url}/a.jsonl")] == [0, 1]
        store = HttpStore()
        assert store.find(f"{url}/shoal.index") is None
        assert store.find(f"{url}/a.jsonl") is not None
        with pytest.raises(SourceError, match=r"there is no shoal\.index"):
            shoal.open(f"{url}/directory/")


@pytest.mark.parametrize(
    ("body", "kind", "with_ranges"),
    [
        (b'{"error": "there is no such file", "status": 404}', "application/json", True),
        (b'{"error": "there is no such file", "status": 404}', "application/json", False),
        (b"no", "text/plain", True),
        (b"gone, gone\n" * 900, "application/octet-stream", True),
        (PAGE, "application/octet-stream", True),
    ],
)
def test_what_is_no_index_is_passed_over_with_a_warning(
    body: bytes,
    kind: str,
    with_ranges: bool,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some servers answer 200 for what is not there, with anything."""
    monkeypatch.setattr("shoal.storage.retry.time", ClockWithoutPauses())

    def answer(path: str, wanted: str) -> Answer:
        if path == "/a.jsonl":
            return part_of(LINES, wanted, "text/plain")
        return part_of(body, wanted, kind) if with_ranges else (200, {"Content-Type": kind}, body)

    with serving(answer) as url:
        assert [sample["n"] for sample in shoal.open(f"{url}/a.jsonl")] == [0, 1]
        (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
        assert f"{url}/shoal.index" in record.getMessage()
        assert main(["verify", f"{url}/a.jsonl"]) == 0
        assert main(["index", f"{url}/a.jsonl", "--plan", "--json"]) == 0
        assert '"index_there": null' in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["short", "shorter", "changed"])
def test_an_index_that_was_damaged_stays_an_error(damage: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    assert main(["index", str(tmp_path)]) == 0
    whole = (tmp_path / "shoal.index").read_bytes()
    index = {"short": whole[:-8], "shorter": whole[:40], "changed": whole[:-9] + b"?" + whole[-8:]}[damage]

    def answer(path: str, wanted: str) -> Answer:
        return part_of(index if "index" in path else LINES, wanted, "text/plain")

    with serving(answer) as url, pytest.raises(IndexFileError, match=r"shoal\.index"):
        shoal.open(f"{url}/a.jsonl")


def refusal(status: int, code: str) -> Answer:
    body = f"<Error><Code>{code}</Code><Message>No.</Message></Error>"
    return status, {"Content-Type": "application/xml"}, body.encode()


def store_at(url: str) -> ObjectStore:
    return ObjectStore({"endpoint": url, "anonymous": True, "region": "x", "virtual_hosted_style_request": False})


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (400, "ExpiredToken", "the credentials have expired"),
        (403, "ExpiredToken", "the credentials have expired"),
        (403, "InvalidAccessKeyId", "does not know this access key"),
        (403, "SignatureDoesNotMatch", "the secret key"),
        (403, "RequestTimeTooSkewed", "the clock of this machine"),
        (400, "AuthorizationHeaderMalformed", "in another region"),
        (403, "AccessDenied", "these credentials (or none) do not allow it"),
        (400, "InvalidArgument", "the request was not understood"),
    ],
)
def test_the_code_of_a_refusal_makes_the_hint(status: int, code: str, words: str) -> None:
    pytest.importorskip("obstore")
    with serving(lambda *_: refusal(status, code)) as url:
        with pytest.raises(StorageError, match=code) as caught:
            store_at(url).read_range("s3://bucket/a", 0, 5)
        assert words in caught.value.hint
        assert ("in another region" in caught.value.hint) == (words == "in another region")


def test_who_may_not_list_is_told_what_needs_no_listing() -> None:
    pytest.importorskip("obstore")
    with serving(lambda *_: refusal(403, "AccessDenied")) as url:
        with pytest.raises(StorageError, match="could not list") as caught:
            list(store_at(url).list("s3://bucket/train"))
        assert "braces" in caught.value.hint
        assert "shoal.index" in caught.value.hint


def test_a_chain_of_filesystems_is_named() -> None:
    for source in (
        "simplecache::https://host/a.tar",
        "filecache::s3://bucket/a.tar",
        "zip://a.tar::https://host/b.zip",
    ):
        with pytest.raises(SourceError, match="chain of fsspec") as caught:
            expand(source, suffixes=[".tar"])
        assert source.partition("::")[2] in caught.value.hint


def test_a_directory_with_brackets_in_its_name_is_meant_literally(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("run[1]/a.tar", "run[1]/b.tar", "run1/c.tar", "x[ab]/{d}/e.tar"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(b"x")
    for source, names in {
        "run[1]": ("a.tar", "b.tar"),
        "run[1]/*.tar": ("a.tar", "b.tar"),
        "run[1]/{a,b}.tar": ("a.tar", "b.tar"),
        "run[1]/[a]*": ("a.tar",),
        "run[[]1]/*.tar": ("run[1]/a.tar", "run[1]/b.tar"),
    }.items():
        assert expand(source, suffixes=[".tar"]).names == names
    assert expand("run[1]/*.tar", suffixes=[".tar"]).root == str(tmp_path / "run[1]")
    with pytest.raises(SourceError, match="matches nothing"):
        expand("ran[1]/*.tar", suffixes=[".tar"])

"""Store of objects over http and https, read by ranges.

Each answer must be the requested range (206 with a matching Content-Range) of the object that was seen first (its etag,
else its date). A client (`http_client.py`) keeps the connections, and knows nothing of objects.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, NoReturn

from shoal.errors import StorageError
from shoal.storage.http.best_client import BestClient
from shoal.storage.http.http_client import Answer, HttpClient, NoConnectionError, connection_failure
from shoal.storage.http.http_options import HttpOptions
from shoal.storage.http.http_urls import host_of, origin_of, redirected, sendable
from shoal.storage.storage_errors import NO_RANGE, check_range, status_failure
from shoal.storage.store_protocol import Buffer, KnownObjects, ObjectInfo, Store, check_length, version_of
from shoal.storage.urls import object_path, redacted, secrets_in, tagged_path, without_secrets

_SERVER_HINT = "the server, or a proxy before it, is at fault"
_MAX_REDIRECTS = 5
_REDIRECT_SECONDS = 60.0  # signed URLs are valid for minutes; following each redirect again would double the requests
_REDIRECTS = {301, 302, 303, 307, 308}
# For an object that was never read, an answer without a range may come from a proxy cache that is still filling.
_FIRST_ATTEMPTS = 6
# Some servers refuse requests without a User-Agent; the user's own header replaces it.
_ALWAYS_SENT = {"Accept-Encoding": "identity", "User-Agent": "shoal"}
_UP_TO_PATH = re.compile(r"[^:/?#]+://[^/?#]*")
_CONTENT_RANGE = re.compile(r"\s*bytes\s+(?:(\d{1,19})-(\d{1,19})|\*)/(\d{1,19}|\*)\s*", re.IGNORECASE)
_GZIP, _BZIP2, _ZSTD = ("gzip", "x-gzip"), ("bzip2", "x-bzip2"), ("zstd",)
_STORED_AS = {
    "gz": _GZIP,
    "tgz": _GZIP,
    "bz2": _BZIP2,
    "xz": ("xz", "x-xz"),
    "zst": _ZSTD,
    "zstd": _ZSTD,
    "br": ("br",),
}
# "aws-chunked": a client uploaded the object with this encoding, and the store kept the header.
_NO_CODES = ("", "identity", "aws-chunked")
_PAGE_BEGINS = (b"<!doctype", b"<html", b"<head", b"<?xml")
_BEGINNING_BYTES = 64


class _FirstRequest(NamedTuple):
    """First request for an object: its URL and host, and headers for servers of this origin alone."""

    url: str
    headers: dict[str, str]
    origin: tuple[str, str, int | None]
    host: str = ""


class _Redirect(NamedTuple):
    """Redirect target of an object, and the time when it must be requested again."""

    url: str
    until_seconds: float


class HttpStore(Store):
    """Store of objects by URL without query and password, which this store keeps to itself (`learn`).

    ``storage_options`` may hold ``headers`` (sent to the hosts of the URLs themselves, never to redirect targets),
    ``timeout_seconds`` (the longest silence, 30), ``connect_timeout_seconds`` (10), ``ca_bundle`` (a file of trusted
    certificates) and ``proxy`` (a URL; by default from the environment).
    """

    def __init__(self, storage_options: Mapping[str, Any] | None = None) -> None:
        self._options = HttpOptions.of(storage_options or {})
        self._known = KnownObjects()
        self._full: dict[str, str] = {}
        self._of_hosts: dict[str, str] = {}
        self._firsts: dict[str, _FirstRequest] = {}  # parsed once: parsing URLs takes longer than all other steps
        self._servers: dict[str, _FirstRequest] = {}  # without a URL; keys are URLs up to their path
        self._redirects: dict[str, _Redirect] = {}
        self._client: HttpClient = BestClient(self._options)
        self._answered: set[str] = set()  # hosts
        self._pages: set[str] = set()  # paths of objects that the server sends as pages of HTML

    def __repr__(self) -> str:
        return "HttpStore()"

    def __reduce__(self) -> tuple[object, ...]:
        attributes = ("_full", "_of_hosts", "_answered")
        options = {field.name: getattr(self._options, field.name) for field in fields(self._options)}
        return HttpStore, (options,), {name: getattr(self, name) for name in attributes}

    def learn(self, url: str) -> None:
        """Remember query and password of ``url``, for requests of its `object_path` and its `tagged_path`."""
        if object_path(url) != url:
            self._firsts.clear()
            self._redirects.clear()
            self._full.setdefault(object_path(url), url)
            self._full[tagged_path(url)] = url
            self._of_hosts.setdefault(host_of(url), url)

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """Return exactly the bytes ``[first_byte, end_byte)``, by one request (more for redirects)."""
        return self._read(path, first_byte, end_byte)

    def fill(self, path: str, first_byte: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes from ``first_byte`` on; raises the errors of `read_range`."""
        self._read(path, first_byte, first_byte + len(buffer), buffer)

    def _read(self, path: str, first_byte: int, end_byte: int, buffer: memoryview | None = None) -> bytes:
        """Read a range by one request; return its bytes, or put them into the buffer and return none."""
        check_range(path, first_byte, end_byte)
        if first_byte == end_byte:
            return b""
        verb = f"read bytes [{first_byte}, {end_byte}) of"
        answer = self._answer(path, first_byte, end_byte, verb=verb, buffer=buffer)
        if not _has_part(answer):
            self._info(path, answer)
            raise status_failure(416, path, verb=verb, headers=answer.headers)
        if self._is_exact(path, answer, first_byte, end_byte):
            return answer.body
        info, first, end = self._range_of(path, answer)
        if first != first_byte or end > end_byte:
            msg = f"could not {verb} {path}: the server sent bytes [{first}, {end}) instead"
            raise StorageError(msg, hint=_SERVER_HINT, transient=True)
        check_length(path, first_byte, end_byte, end - first, info.num_bytes)
        announced = answer.headers.get("content-length", str(end - first))
        if announced.strip() != str(end - first):
            msg = f"could not {verb} {path}: the server announced {announced} bytes instead of {end - first}"
            raise StorageError(msg, hint=_SERVER_HINT, transient=True)
        check_length(path, first_byte, end_byte, answer.num_bytes, info.num_bytes)
        return answer.body

    def stat(self, path: str) -> ObjectInfo:
        """Return size and version (etag, else date) of an object; requests its first byte unless they are known.

        HEAD is not used: URLs that are signed for reading refuse HEAD, and a response to HEAD does not show that ranges
        work. Raises `StorageError` if the object does not exist, or the server does not support ranges.
        """
        if known := self._known.get(path):
            return known
        answer = self._answer(path, 0, 1, verb="look at")
        return self._range_of(path, answer)[0] if _has_part(answer) else self._info(path, answer)[0]

    def find(self, path: str) -> ObjectInfo | None:
        """`stat`, or None if the object does not exist; a page of HTML in its place is not an object.

        Two requests if the Content-Type is HTML, else one.
        """
        info = super().find(path)
        if info is None or path not in self._pages:
            return info
        begin = self.read_range(path, 0, min(_BEGINNING_BYTES, info.num_bytes)).lstrip().lower()
        return None if begin.startswith(_PAGE_BEGINS) else info

    def stat_again(self, path: str) -> ObjectInfo:
        """`stat` with a new request."""
        self._known.forget(path)
        return self.stat(path)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Raise an error always: http cannot list."""
        msg = f"{without_secrets(prefix)}: its contents cannot be listed over http"
        raise StorageError(msg, hint="name the shards by braces or a list, or put a shoal.index beside them")

    def put(self, path: str, data: Buffer | Sequence[Buffer]) -> NoReturn:  # noqa: ARG002
        """Raise an error always: shoal does not write over http."""
        msg = f"{path}: shoal does not write over http"
        raise StorageError(msg, hint="write it to a local file; index=FILE takes an index from anywhere")

    def delete(self, path: str) -> NoReturn:
        """Raise an error always: shoal does not delete over http."""
        raise StorageError(f"{path}: shoal does not remove over http", hint="ask the administrator of the server")

    def close(self) -> None:
        """Close the connections of this process, and forget sizes and versions of objects."""
        self._client.close()
        self._known.forget()
        self._redirects.clear()

    def _answer(
        self, path: str, first_byte: int, end_byte: int, *, verb: str, buffer: memoryview | None = None
    ) -> Answer:
        """Request a range; return the answer if it is 206, 416 or the whole object; else raise an error."""
        first = self._firsts.get(path) or self._firsts.setdefault(path, self._first(path))
        part = {"Range": f"bytes={first_byte}-{end_byte - 1}"}
        redirect = self._redirects.get(path)
        url = redirect.url if redirect is not None and time.monotonic() < redirect.until_seconds else first.url
        for num_redirects in range(_MAX_REDIRECTS + 1):
            is_own = url is first.url or origin_of(url) == first.origin
            headers = (first.headers if is_own else _ALWAYS_SENT) | part
            try:
                answer = self._client.get(url, headers, end_byte - first_byte, buffer)
            except Exception as error:  # noqa: BLE001  # other errors are raised unchanged
                raise self._no_answer(error, path, url, verb) from None
            self._answered.add(first.host if url is first.url else host_of(url))
            if _is_page(path, answer):
                self._pages.add(path)
            if answer.status in (206, 416) or self._is_whole(path, answer, first_byte, end_byte):
                if num_redirects:
                    self._redirects[path] = _Redirect(url, time.monotonic() + _REDIRECT_SECONDS)
                return answer
            if answer.status in _REDIRECTS and "location" in answer.headers:
                url = redirected(url, answer.headers["location"], path, verb)
            elif redirect is not None and url is redirect.url and 400 <= answer.status < 500:
                url = first.url  # the signature may have expired: request the redirect again
            else:
                raise self._refusal(answer, path, verb, secrets=self._secrets(path, url))
        msg = f"could not {verb} {path}: redirected more than {_MAX_REDIRECTS} times"
        raise StorageError(msg, hint="the server redirects in a circle; does it want credentials?")

    def _first(self, path: str) -> _FirstRequest:
        full = self._full_url(path)
        begin = _UP_TO_PATH.match(full)
        server = begin[0] if begin else full
        first = self._servers.get(server)
        if first is None:
            origin_of(full)  # raises for an invalid URL
            own_headers = self._options.headers_for(full)
            own_names = {name.lower() for name in own_headers}
            always = {name: value for name, value in _ALWAYS_SENT.items() if name.lower() not in own_names}
            first = self._servers[server] = _FirstRequest("", always | own_headers, origin_of(sendable(full)))
        url = sendable(full)
        return first._replace(url=url, host=host_of(url))

    def _full_url(self, path: str) -> str:
        """Return the learnt URL for ``path``, else ``path`` with the password and query of another URL of its host.

        So an index beside shards with a password is readable, and so are shards beside an index with a signature.
        """
        known = self._full.get(path)
        if known is not None or (other := self._of_hosts.get(host_of(path))) is None:
            return known or path
        scheme, mark, rest = path.partition("://")
        user, at, _ = other.partition("://")[2].partition("/")[0].rpartition("@")
        _, question, query = other.partition("#")[0].partition("?")
        return f"{scheme}{mark}{user}{at}{rest}{question}{query}"

    def _no_answer(self, error: Exception, path: str, url: str, verb: str) -> StorageError:
        self._redirects.pop(path, None)
        failure = connection_failure(error, path, verb=verb, secrets=self._secrets(path, url))
        failure.unmet = isinstance(error, NoConnectionError) and host_of(url) not in self._answered
        return failure

    def _secrets(self, path: str, url: str) -> Sequence[str]:
        """Return the secrets to strike from quoted answers: servers like to echo requests."""
        options, full = self._options, self._full_url(path)
        return [*secrets_in(url), *secrets_in(full), *options.secrets_for(full), *options.proxy_secrets(url)]

    def _refusal(self, answer: Answer, path: str, verb: str, *, secrets: Sequence[str]) -> StorageError:
        if answer.status != 200:
            text = redacted(answer.body.decode("utf-8", "replace"), secrets)
            return status_failure(answer.status, path, verb=verb, body=text, headers=answer.headers)
        msg = f"could not {verb} {path}: the server sent the whole object (200), not the requested range"
        hint = "serve the shards from a server that supports ranges (nginx, any object store), or copy the shards"
        if _is_page(path, answer):
            msg = f"could not {verb} {path}: the server sent an HTML page (200), as some servers do for missing objects"
            hint = "check the URL in a browser: does it lead to a page, or ask for a login?"
        failure = self._no_range(path, msg, hint)
        failure.errno = errno.ENOENT if _is_page(path, answer) and not failure.transient else None
        return failure

    def _is_whole(self, path: str, answer: Answer, first_byte: int, end_byte: int) -> bool:
        """Return True for a whole object (200) that equals the range, or is empty and has no range.

        The standard allows that, and some servers (Tornado) do it.
        """
        validator = answer.headers.get("etag") or answer.headers.get("last-modified")
        length, known = _length(answer), self._known.get(path)
        is_range = length == "0" or (not first_byte and length == str(end_byte))
        is_same = known is None or length == str(known.num_bytes)
        return answer.status == 200 and bool(validator) and is_range and is_same

    def _no_range(self, path: str, msg: str, hint: str) -> StorageError:
        """Return the error for a response without a range: transient if ranges worked before, else soon permanent."""
        is_known = self._known.get(path) is not None
        return StorageError(msg, hint=hint, transient=is_known, worth_attempts=_FIRST_ATTEMPTS, evidence=NO_RANGE)

    def _is_exact(self, path: str, answer: Answer, first_byte: int, end_byte: int) -> bool:
        """Return True for the requested range of a known object: the usual answer, recognized without parsing."""
        known, fields = self._known.get(path), answer.headers
        if known is None or answer.status != 206 or "content-encoding" in fields:
            return False
        content_range = f"bytes {first_byte}-{end_byte - 1}/{known.num_bytes}"
        length = str(end_byte - first_byte)
        if fields.get("content-range") != content_range or fields.get("content-length") != length:
            return False
        modified = fields.get("last-modified", "")
        self._known.check(path, known.num_bytes, version_of(fields.get("etag")) or modified, modified)
        return answer.num_bytes == end_byte - first_byte

    def _range_of(self, path: str, answer: Answer) -> tuple[ObjectInfo, int, int]:
        """Return the object that a partial answer describes, and its range."""
        encoding = answer.headers.get("content-encoding", "")
        if encoding and _is_encoded_in_transit(encoding, path):
            msg = f"{path}: the server encodes its answers ({encoding}), so their ranges are not ranges of the object"
            hint = "switch compression off for these files; names of compressed files end in .gz, .zst, ..."
            raise self._no_range(path, msg, hint)
        info, match = self._info(path, answer)
        if match[1] is None:
            raise self._unclear(path, answer)
        return info, int(match[1]), int(match[2]) + 1

    def _info(self, path: str, answer: Answer) -> tuple[ObjectInfo, re.Match[str]]:
        """Return the object that an answer describes, and the match of its Content-Range."""
        content_range = answer.headers.get("content-range", "")
        if answer.status == 200:
            length = _length(answer)
            content_range = f"bytes 0-{int(length) - 1}/{length}" if _has_part(answer) else "bytes */0"
        match = _CONTENT_RANGE.fullmatch(content_range)
        if match is None or match[3] == "*":
            raise self._unclear(path, answer)
        modified = answer.headers.get("last-modified", "")
        version = version_of(answer.headers.get("etag")) or modified
        return self._known.check(path, int(match[3]), version, modified), match

    def _unclear(self, path: str, answer: Answer) -> StorageError:
        content_range = answer.headers.get("content-range")
        msg = f"{path}: the response does not give its byte range and the object size (Content-Range: {content_range})"
        return self._no_range(path, msg, _SERVER_HINT)


def _is_page(path: str, answer: Answer) -> bool:
    """Return True if the Content-Type of an answer is HTML, and the name of the object is no page's."""
    is_html = answer.headers.get("content-type", "").lower().startswith("text/html")
    return is_html and not path.partition("#")[0].lower().endswith((".html", ".htm"))


def _length(answer: Answer) -> str:
    return answer.headers.get("content-length", "").strip()


def _has_part(answer: Answer) -> bool:
    """Return True if an accepted answer has bytes: a range, or a whole object."""
    return answer.status == 206 or (answer.status == 200 and _length(answer) != "0")


def _is_encoded_in_transit(encoding: str, path: str) -> bool:
    """Return True if an answer for ``path`` with this Content-Encoding holds other bytes than the stored object.

    Ranges count bytes of the stored object, so an answer encoded in transit is useless. But many stores repeat the
    encoding from the upload of the object in each answer, often "gzip" for "train.jsonl.gz": then the bytes are the
    stored bytes.

    >>> [_is_encoded_in_transit(code, "a/b.jsonl.gz") for code in ("gzip", "aws-chunked, gzip", "br", "gzip, gzip")]
    [False, False, True, True]
    >>> _is_encoded_in_transit("gzip", "a/b.jsonl")
    True
    """
    codes = [code for part in encoding.split(",") if (code := part.strip().lower()) not in _NO_CODES]
    stored_as = _STORED_AS.get(path.partition("#")[0].rpartition(".")[2].lower(), ())
    return bool(codes) and (len(codes) > 1 or codes[0] not in stored_as)

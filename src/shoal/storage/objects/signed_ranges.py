"""Ranges of objects behind plain http:// endpoints, by signed URLs and one exchange over a socket for each range.

An epoch takes 0.57 to 0.79 of the processor time of obstore (bench/LOG.md). A signed URL is made without a
request, and serves every range of its object. After a refusal the next attempt is obstore's, which explains refusals.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from shoal.errors import StorageError
from shoal.storage.http.http_client import Answer, connection_failure
from shoal.storage.http.http_options import HttpOptions
from shoal.storage.http.plain_client import PlainClient
from shoal.storage.objects.object_options import ObjectLocation, client_of
from shoal.storage.storage_errors import NO_RANGE, status_failure
from shoal.storage.store_protocol import check_length
from shoal.storage.urls import redacted, secrets_in

_VALID_SECONDS = 3600
_USED_SECONDS = 240.0  # temporary credentials are usually renewed five minutes before their end
_MOST_URLS = 4096
_ATTEMPTS = 6  # before an answer is believed that may be of a proxy, or of an old URL
_REFUSED = "a signed URL was refused"
_SERVER_HINT = "the server, or a proxy before it, is at fault"
_CONTENT_RANGE = re.compile(r"\s*bytes\s+(\d{1,19})-(\d{1,19})/(\d{1,19})\s*", re.IGNORECASE)
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "shoal"}
_TIMEOUTS = ("timeout_seconds", "connect_timeout_seconds")
_KEYS = {
    "access_key_id",
    "key",
    "secret_access_key",
    "secret",
    "session_token",
    "token",
    "profile",
    "credential_provider",
}
_ANONYMOUS = ("anonymous", "anon", "skip_signature")
# With other options a request has headers that a signed URL lacks, or another way to the server.
_KNOWN_OPTIONS = {"endpoint", "endpoint_url", "region", "allow_http", *_TIMEOUTS, *_KEYS, *_ANONYMOUS}


class SignedRange(NamedTuple):
    """The bytes of a range, unless they are in a buffer; and the object's size, etag and date."""

    body: bytes
    num_bytes: int
    etag: str | None
    modified: str | None


class _Url(NamedTuple):
    url: str
    until_seconds: float


class SignedRanges:
    """Reads of ranges by signed URLs, for a store with these ``storage_options``; threads may share it."""

    def __init__(self, options: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._options, self._clock = options, clock
        self._is_usable = options.keys() <= _KNOWN_OPTIONS and "AWS_SKIP_SIGNATURE" not in os.environ
        self._http = HttpOptions.of({name: options[name] for name in _TIMEOUTS if name in options})
        self._client = PlainClient(self._http)
        self._urls: dict[str, _Url] = {}  # secrets
        self._answered: set[str] = set()  # buckets that have answered a signed request as expected
        self._left: set[str] = set()  # buckets that are left to obstore
        self._refused: set[str] = set()  # paths whose next attempt is left to obstore, which explains refusals

    def read(
        self,
        location: ObjectLocation,
        client: Any,
        path: str,
        first_byte: int,
        end_byte: int,
        buffer: memoryview | None,
    ) -> SignedRange | None:
        """Return a range of an object, in ``buffer`` if given; None to leave the range to obstore.

        Raises `StorageError` if the connection or the server fails, other bytes came, or the URL is refused: then the
        next attempt is left to obstore.
        """
        if not self._is_usable or location.kind != "s3" or location.root in self._left:
            return None
        if path in self._refused:
            self._refused.discard(path)
            return None
        url = self._url_of(path, location, client)
        if url is None:
            self._left.add(location.root)
            return None
        part = {"Range": f"bytes={first_byte}-{end_byte - 1}"}
        verb = f"read bytes [{first_byte}, {end_byte}) of"
        try:
            answer = self._client.get(url, _HEADERS | part, end_byte - first_byte, buffer)
        except Exception as error:  # noqa: BLE001  # other errors are raised unchanged
            origin, secrets = url.partition("?")[0], secrets_in(url)
            raise connection_failure(error, path, verb=verb, secrets=secrets, origin=origin) from None
        if answer.status in (200, 206):
            self._answered.add(location.root)
            return _checked(answer, path, first_byte, end_byte)
        text = redacted(answer.body.decode("utf-8", "replace"), secrets_in(url))
        failure = status_failure(answer.status, path, verb=verb, body=text, headers=answer.headers)
        if not failure.transient:
            self._urls.pop(path, None)
            self._refused.add(path)
            if location.root not in self._answered:  # some servers refuse all signed URLs
                self._left.add(location.root)
            failure.worth_attempts, failure.evidence = _ATTEMPTS, _REFUSED
        raise failure

    def close(self) -> None:
        """Close the connections of this process, and forget the URLs."""
        self._client.close()
        self._urls.clear()

    def _url_of(self, path: str, location: ObjectLocation, client: Any) -> str | None:
        """Return the signed URL of an object; None unless a request may go by plain http straight to its server."""
        known = self._urls.get(path)
        if known is not None and self._clock() < known.until_seconds:
            return known.url
        url = _signed(location, client, self._options)
        if not url.startswith("http://") or self._http.proxy_for(url):
            return None
        if len(self._urls) >= _MOST_URLS:
            self._urls.clear()
        self._urls[path] = _Url(url, self._clock() + _USED_SECONDS)
        return url


def _signed(location: ObjectLocation, client: Any, options: Mapping[str, Any]) -> str:
    """Return the signed URL of an object; without a signature for anonymous requests, and "" if none can be made."""
    import obstore  # noqa: PLC0415  # optional, but installed: it made the client

    is_anonymous = client.config.get("skip_signature") == "true"
    if is_anonymous:  # obstore signs URLs only with keys
        rest = {name: value for name, value in options.items() if name not in _ANONYMOUS}
        client = client_of(location, {**rest, "access_key_id": "none", "secret_access_key": "none"})
    try:
        url = obstore.sign(client, "GET", location.key, timedelta(seconds=_VALID_SECONDS))
    except Exception:  # noqa: BLE001  # the request that obstore then makes names the error
        return ""
    return url.partition("?")[0] if is_anonymous else url


def _checked(answer: Answer, path: str, first_byte: int, end_byte: int) -> SignedRange:
    """Return the range in an answer; raise `StorageError` unless the answer has exactly these bytes."""
    content_range = answer.headers.get("content-range", "")
    match = _CONTENT_RANGE.fullmatch(content_range)
    verb = f"could not read bytes [{first_byte}, {end_byte}) of {path}"
    if answer.status == 200 or match is None:
        msg = f"{verb}: the server answered {answer.status} with Content-Range: {content_range or 'none'}"
        raise StorageError(msg, hint=_SERVER_HINT, transient=True, worth_attempts=_ATTEMPTS, evidence=NO_RANGE)
    first, last, num_bytes = map(int, match.groups())
    if first != first_byte or last >= end_byte:
        msg = f"{verb}: the server sent bytes [{first}, {last + 1}) instead"
        raise StorageError(msg, hint=_SERVER_HINT, transient=True)
    check_length(path, first_byte, end_byte, last + 1 - first, num_bytes)
    check_length(path, first_byte, end_byte, answer.num_bytes, num_bytes)
    return SignedRange(answer.body, num_bytes, answer.headers.get("etag"), answer.headers.get("last-modified"))

"""Interpretation of a server's refusal: whether to retry, when, and what to check."""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Mapping
from http import HTTPStatus

from shoal.errors import StorageError
from shoal.storage.http.dates import timestamp
from shoal.storage.urls import without_secrets

_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_HINTS = {
    400: "the request was not understood: check the endpoint and the region",
    401: "the server wants credentials: see storage_options in docs/guides/remote-data.md",
    403: "these credentials (or none) do not allow it; some stores say so of what is not there, too",
    404: "check the URL; was it moved or deleted?",
    405: "this server does not let objects be read, or written, in this way",
    407: "the proxy wants credentials",
    410: "it was deleted",
    416: "it is shorter than that; was it replaced?",
    429: "the server asks for fewer requests",
    451: "access is blocked for legal reasons",
}
_ERRNO = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT, 410: errno.ENOENT}
_MAX_SAID = 200


def refusal(
    status: int, path: str, *, verb: str, said: str = "", headers: Mapping[str, str] | None = None
) -> StorageError:
    """Return the error for an answer with a status other than success; ``said`` is the body, or what is known of it.

    The names of ``headers`` are in lower case.
    """
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else ""
    msg = f"could not {verb} {path}: the server answered {f'{status} {phrase}'.strip()}"
    if text := trimmed(said):
        msg += f" ({text})"
    transient = status in _TRANSIENT or status > 511
    hint = _HINTS.get(status, "the server is not well; wait, or ask who runs it" if status >= 500 else "")
    headers = headers or {}
    wait = retry_after_seconds(headers.get("retry-after"), now=headers.get("date")) if transient else None
    error = StorageError(msg, hint=hint, transient=transient, retry_after_seconds=wait)
    error.errno = _ERRNO.get(status)
    return error


def is_missing(error: StorageError) -> bool:
    """Return True if the store knows that the object does not exist."""
    return error.errno == errno.ENOENT


def is_broken(error: StorageError) -> bool:
    """Return True if a retry would not help: something other than a file is there, or the disk cannot read it."""
    return error.errno in (errno.EISDIR, errno.ESPIPE, errno.ELOOP, errno.EIO)


def is_forbidden(error: StorageError) -> bool:
    """Return True if access is denied, so that something may be there or not."""
    return error.errno in (errno.EACCES, errno.EPERM)


def retry_after_seconds(header: str | None, *, now: str | None = None) -> float | None:
    """Return the wait that a server asks for: a number of seconds, or a date, compared with the server's ``now``.

    If it gives no ``now``, with the clock of this machine, which may be wrong.
    """
    if header is None:
        return None
    if header.strip().isdecimal():
        return float(header)
    when = timestamp(header)
    if when is None:
        return None
    said = timestamp(now or "")
    return max(0.0, when - (time.time() if said is None else said))


def trimmed(said: str) -> str:
    """Shorten a server's answer for a message: the code and text of an error in XML, without URLs' secrets."""
    parts = [match[2] for match in re.finditer(r"<(Code|Message)>([^<]*)</\1>", said)]
    text = ": ".join(parts) if parts else re.sub(r"<[^>]*>", " ", said)
    text = re.sub(r"[A-Za-z][A-Za-z0-9+.-]+://[^\s\"'<>)]+", lambda url: without_secrets(url[0]), text)
    text = " ".join(text.split())
    return text if len(text) <= _MAX_SAID else text[: _MAX_SAID - 3] + "..."

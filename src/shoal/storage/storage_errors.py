"""Errors of storage, made from error numbers of the system and answers of servers: transient or final, with hints."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Mapping
from http import HTTPStatus

from shoal.errors import StorageError, UsageError
from shoal.storage.urls import without_secrets

NO_RANGE = "no range"
"""Evidence of an answer without a range of an object."""

_SYSTEM_HINTS = {
    errno.ENOENT: "check the path; was it moved or deleted?",
    errno.ENOTDIR: "a part of the path is a file, not a directory",
    errno.EISDIR: "name a file",
    errno.EACCES: "its permissions, or the permissions of a directory above it, forbid this",
    errno.EPERM: "its permissions, or the permissions of a directory above it, forbid this",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "this file system is mounted read-only",
    errno.EMFILE: "this process may not open more files (see ulimit -n)",
    errno.ENFILE: "this machine has too many files open",
    errno.ESTALE: "the file was removed on the server that it is mounted from",
    errno.EIO: "the disk, or the network that it is mounted over, reports a failure",
    errno.ELOOP: "the links on this path lead in a circle",
    errno.ENAMETOOLONG: "a part of the path is longer than the file system allows",
}
_ENDS_OF_LINKS = {errno.ENOENT: "which does not exist", errno.ELOOP: "and the links lead in a circle"}
_STATUS_HINTS = {
    400: "the request was not understood: check the endpoint and the region",
    401: "the server wants credentials: see storage_options in docs/guides/remote-data.md",
    403: "these credentials (or none) do not allow it; some stores also answer this for objects that do not exist",
    404: "check the URL; was it moved or deleted?",
    405: "this server does not let objects be read, or written, in this way",
    407: "the proxy wants credentials",
    410: "it was deleted",
    416: "it is shorter than that; was it replaced?",
    429: "the server asks for fewer requests",
    451: "access is blocked for legal reasons",
}
_TRANSIENT_STATUSES = {408, 425, 429, 500, 502, 503, 504}
_ERRNO = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT, 410: errno.ENOENT}
_MAX_QUOTED = 200
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a write that found no space."""
CHANGED_HINT = (
    "shards must not change during a run; resume from the last state, and run `shoal index` first if the contents "
    "are new"
)
CUT_SHORT_HINT = "it was cut short (an unfinished copy?); copy it again, or index it again"


def check_range(path: str, first_byte: int, end_byte: int) -> None:
    """Raise `UsageError` for an invalid range."""
    if not 0 <= first_byte <= end_byte:
        raise UsageError(f"{path}: asked for bytes [{first_byte}, {end_byte}), which is not a range")


def os_failure(error: OSError, path: str, *, verb: str) -> StorageError:
    """Return an `OSError` as a `StorageError`: the failed action on ``path``, the reason, and a hint."""
    what, hint = os.strerror(error.errno) if error.errno else str(error), _SYSTEM_HINTS.get(error.errno or 0, "")
    if error.errno in _ENDS_OF_LINKS and (target := link_target(path)):
        what, hint = (
            f"it is a link to {target}, {_ENDS_OF_LINKS[error.errno]}",
            "restore its target, or remove the link",
        )
    msg = f"could not {verb} {path}: {what}"
    failure = StorageError(msg, hint=hint)
    failure.errno = error.errno
    return failure


def link_target(path: str) -> str:
    """Return the target of a symbolic link; empty if there is no link of this name."""
    try:
        return os.readlink(path)
    except (OSError, ValueError):
        return ""


def status_failure(
    status: int, path: str, *, verb: str, body: str = "", headers: Mapping[str, str] | None = None
) -> StorageError:
    """Return the error for the status of a failed request; names of ``headers`` are in lower case."""
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else ""
    msg = f"could not {verb} {path}: the server answered {f'{status} {phrase}'.strip()}"
    if text := trimmed(body):
        msg += f" ({text})"
    transient = status in _TRANSIENT_STATUSES or status > 511
    hint = _STATUS_HINTS.get(status, "the server is failing; wait, or ask its administrator" if status >= 500 else "")
    headers = headers or {}
    wait = retry_after_seconds(headers.get("retry-after"), now=headers.get("date")) if transient else None
    error = StorageError(msg, hint=hint, transient=transient, retry_after_seconds=wait)
    error.errno = _ERRNO.get(status)
    return error


def is_missing(error: StorageError) -> bool:
    """Return True if the store knows that the object does not exist."""
    return error.errno == errno.ENOENT


def is_broken(error: StorageError) -> bool:
    """Return True if a retry would not help: the path is not a file, or the disk cannot read it."""
    return error.errno in (errno.EISDIR, errno.ESPIPE, errno.ELOOP, errno.EIO)


def is_forbidden(error: StorageError) -> bool:
    """Return True if access is denied, so that the object may exist or not."""
    return error.errno in (errno.EACCES, errno.EPERM)


def is_without_ranges(error: StorageError) -> bool:
    """Return True if a server has sent no range; the answer may not have been the object."""
    return error.evidence == NO_RANGE


def retry_after_seconds(header: str | None, *, now: str | None = None) -> float | None:
    """Return the wait that a server asks for: a number of seconds, or a date, compared with the server's ``now``.

    Without ``now``, the date is compared with the clock of this machine, which may be wrong.
    """
    if header is None:
        return None
    if header.strip().isdecimal():
        return float(header)
    until, server_now = timestamp(header), timestamp(now or "")
    return None if until is None else max(0.0, until - (time.time() if server_now is None else server_now))


def timestamp(date: str) -> float | None:
    """Return an http date in seconds since 1970; None if it is not a valid date."""
    import email.utils  # noqa: PLC0415  # slow to import, and seldom needed

    try:
        return email.utils.parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def trimmed(text: str) -> str:
    """Shorten an answer for a message: the code and text of an error in XML; without secrets of URLs."""
    parts = [match[2] for match in re.finditer(r"<(Code|Message)>([^<]*)</\1>", text)]
    text = ": ".join(parts) if parts else re.sub(r"<[^>]*>", " ", text)
    text = re.sub(r"[A-Za-z][A-Za-z0-9+.-]+://[^\s\"'<>)]+", lambda url: without_secrets(url[0]), text)
    text = " ".join(text.split())
    return text if len(text) <= _MAX_QUOTED else text[: _MAX_QUOTED - 3] + "..."

"""Parsing of URLs, and removal of their secrets.

Inside shoal a URL never carries a secret: only the store of a URL keeps its query and password. So no message, log,
state, index or cache name can leak a secret.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Iterable
from urllib.parse import quote, unquote, unquote_plus

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
# Azure writes container@account where others write user:password@host.
_CONTAINER_IN_FRONT = ("abfs", "abfss", "wasb", "wasbs")
_WITH_QUERY = ("http", "https")
_HAS_STEPS = re.compile(r"(?:\A|/)\.{0,2}(?:/|\Z)")  # some part is empty, "." or ".."
# user:password@ with an unescaped "/", "?" or "#" in it: the text after the colon is not a port.
_UNESCAPED = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]+:/{1,2})(?!/)[^/?#@:\[]*:(?!\d*[/?#])(?:[^/?#@]*|[^/?#]*@)[/?#].*@", re.DOTALL
)
_SHORTEST_SECRET = 4  # shorter ones occur in any text


def scheme_of(text: str) -> str:
    """Return the scheme of a URL in lower case; "" for a path."""
    match = _URL.match(text)
    return match[1].lower() if match else ""


def without_secrets(url: str) -> str:
    """Return ``url`` without user, password, query and fragment, safe to print."""
    url = _UNESCAPED.sub(r"\1", url, count=1)
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+:/+)([^/?#]*)([^?#]*)", url)
    if match is None:
        return url
    scheme, host, path = match.groups()
    user, _, host = host.rpartition("@")
    if user and scheme_of(url) in _CONTAINER_IN_FRONT:
        host = f"{user.partition(':')[0]}@{host}"
    return f"{scheme}{host}{path}"


def has_unescaped_password(url: str) -> bool:
    """Return True if the password in ``url`` has an unescaped "/", "?" or "#", which makes its host ambiguous.

    >>> has_unescaped_password("s3://me:half/of@bucket/a"), has_unescaped_password("http://host:80/a@b")
    (True, False)
    """
    return _UNESCAPED.match(url) is not None


def secrets_in(url: str) -> list[str]:
    """Return the possible secrets of ``url``: the password, the query, each value in it; if 4 characters or longer."""
    rest = url.partition("://")[2]
    host, _, path = rest.partition("/")
    query = path.partition("?")[2].partition("#")[0]
    texts = {host.rpartition("@")[0], host.rpartition("@")[0].partition(":")[2], query}
    texts |= {part.partition("=")[2] for part in query.split("&")}
    return [text for text in texts | {unquote_plus(text) for text in texts} if len(text) >= _SHORTEST_SECRET]


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Return ``text`` with each of ``secrets`` replaced by ``***``."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def object_path(url: str) -> str:
    """Return the path of an object: an http URL without its secrets; any other URL unchanged.

    Outside http, "?" and "#" are ordinary letters of a name.
    """
    return without_secrets(url) if scheme_of(url) in _WITH_QUERY else url


def tagged_path(url: str) -> str:
    """Return `object_path` of ``url`` with a digest of its query, for URLs that differ in the query alone."""
    _, mark, query = url.partition("?")
    digest = hashlib.blake2b(query.encode(), digest_size=6).hexdigest()
    return f"{object_path(url)}#{digest}" if mark else object_path(url)


def join(root: str, name: str) -> str:
    """Return the full path of the shard ``name`` (with "/" between its parts) below ``root``."""
    scheme = scheme_of(root)
    if not scheme:
        return os.path.join(root, *name.split("/"))
    safe = "/:[]" if root.endswith("://") else "/"  # below a bare scheme the name begins with its host
    return posixpath.join(root, quote(name, safe=safe, errors="surrogateescape") if scheme in _WITH_QUERY else name)


def relative(path: str, root: str) -> str:
    """Return the name of ``path`` below ``root``, with "/" between its parts: the inverse of `join`."""
    if not scheme_of(root):
        name = path.removeprefix(root.rstrip(os.sep) + os.sep)
        if root and name != path and os.sep == "/" and not _HAS_STEPS.search(name):
            return name  # `os.path.relpath` takes ten times as long, too long for a million files
        return os.path.relpath(path, root).replace(os.sep, "/")
    above = root if is_top(root) else root.rstrip("/") + "/"
    name = path.removeprefix(above)
    return unquote(name, errors="surrogateescape") if scheme_of(root) in _WITH_QUERY else name


def parent(url: str) -> str:
    """Return the directory of an object: at the top, its host or bucket; for a host or bucket, a URL that `is_top`."""
    scheme, mark, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    directory = posixpath.dirname(path)
    if not slash and scheme not in _WITH_QUERY:
        return f"{scheme}{mark}"
    return f"{scheme}{mark}{host}{slash if directory or not host else ''}{directory}"


def is_top(url: str) -> bool:
    """Return True if a directory holds all hosts or buckets, or all names of a filesystem with names from "/"."""
    return url.endswith(("://", ":///"))

"""URLs in requests of http, targets of redirects, and origins."""

from __future__ import annotations

import contextlib
import re
from urllib.parse import quote, urljoin, urlsplit

from shoal.errors import StorageError
from shoal.storage.urls import without_secrets

_IS_SENT_AS_IT_IS = re.compile(r"[!#-;=?-\[\]_a-z~]*")  # other characters must be encoded in a URL
_IS_NO_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def host_of(url: str) -> str:
    """Return scheme, host and port as written, without a password."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.partition('/')[0].partition('?')[0].rpartition('@')[2]}"


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Return the scheme, the host in lower case, and the port; the default port if the URL has none."""
    with contextlib.suppress(ValueError):  # the message of this error may quote a password
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        return parts.scheme, (parts.hostname or "").lower(), port
    msg = f"{without_secrets(url)}: this is not a URL"
    raise StorageError(msg, hint="http://HOST:PORT/PATH; is the port a number?")


def sendable(url: str) -> str:
    """Return the URL for a request: without user and fragment, and with an escaped path."""
    scheme, mark, rest = url.partition("#")[0].partition("://")
    length = min(end for end in (rest.find("/"), rest.find("?"), len(rest)) if end >= 0)
    host, target = rest[:length].rpartition("@")[2], rest[length:]
    if not host.partition(":")[0]:
        raise StorageError(f"{without_secrets(url)}: this URL names no host", hint="http://HOST:PORT/PATH")
    if not target.startswith("/"):
        target = f"/{target}"
    if "/." in target:
        target = _without_dots(target)
    target = _IS_NO_ESCAPE.sub("%25", target)
    if not _IS_SENT_AS_IT_IS.fullmatch(target):
        target = quote(target, safe="!#$%&'()*+,/:;=?@[]~")
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            msg = f"{without_secrets(url)}: this is not a URL: no host can have such a name"
            raise StorageError(msg, hint="http://HOST:PORT/PATH") from None
    return f"{scheme}{mark}{host}{target}"


def _without_dots(target: str) -> str:
    """Resolve . and .. in the path of a target, by RFC 3986; empty names stay."""
    path, mark, query = target.partition("?")
    resolved: list[str] = []
    names = path.split("/")[1:]
    for name in names:
        if name == "..":
            resolved = resolved[:-1]
        elif name != ".":
            resolved.append(name)
    if names[-1] in (".", ".."):
        resolved.append("")
    return f"/{'/'.join(resolved)}{mark}{query}"


def redirected(url: str, location: str, path: str, verb: str) -> str:
    """Return the target of a redirect, without the credentials of the first host."""
    target_url = ""
    with contextlib.suppress(UnicodeError):
        location = location.encode("latin-1").decode()  # undo the decoding of headers as ISO-8859-1
    with contextlib.suppress(ValueError):
        target_url = urljoin(url, location)
    if not target_url:
        msg = f"could not {verb} {path}: redirected to {without_secrets(location)}, which is not a URL"
        raise StorageError(msg, hint="the server is at fault; name the target's URL itself")
    schemes = origin_of(url)[0], origin_of(target_url)[0]
    if schemes[1] not in ("http", "https") or schemes == ("https", "http"):
        msg = f"could not {verb} {path}: redirected from {schemes[0]}:// to {without_secrets(target_url)}"
        raise StorageError(msg, hint="name that URL itself, if you want it")
    return sendable(target_url)

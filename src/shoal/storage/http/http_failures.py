"""Errors for http requests that fail before there is an answer, or whose connection breaks."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from http.client import BadStatusLine, HTTPException, InvalidURL, RemoteDisconnected
from urllib.parse import urlsplit

from shoal.errors import StorageError, UsageError
from shoal.storage.http.connections import NoConnectionError
from shoal.storage.http.proxies import PROXY_HINT
from shoal.storage.storage_errors import trimmed
from shoal.storage.urls import struck_out, without_secrets


def broken(error: Exception, path: str, *, verb: str, secrets: Iterable[str] = ()) -> StorageError:
    """Return the error for a failed or broken connection; raise errors of any other kind unchanged."""
    if isinstance(error, StorageError | UsageError):
        return error  # type: ignore[return-value]
    if not isinstance(error, HTTPException | OSError | ValueError):
        raise error
    text = trimmed(struck_out(str(error), secrets)) or type(error).__name__
    hint, transient = "is the network up, and the server?", True
    if isinstance(error, ssl.SSLCertVerificationError):
        hint, transient = 'the certificate is not trusted; {"ca_bundle": FILE} in storage_options trusts another', False
    elif isinstance(error, InvalidURL | ValueError):
        hint, transient = "check the URL", False
    elif isinstance(error, NoConnectionError):
        text, hint = _no_connection(error, text, path, hint)
    elif isinstance(error, BadStatusLine) and not isinstance(error, RemoteDisconnected):
        text = f"what came is no answer of http: {text}"
    elif isinstance(error, TimeoutError):
        text, hint = "nothing came for too long", '{"timeout_seconds": ...} in storage_options waits longer'
    elif text.startswith("Tunnel connection failed"):
        hint = PROXY_HINT
    return StorageError(f"could not {verb} {without_secrets(path)}: {text}", hint=hint, transient=transient)


def _no_connection(error: NoConnectionError, text: str, path: str, hint: str) -> tuple[str, str]:
    """Return text and hint for a connection that could not be made, direct or by a proxy."""
    goal = f"by the proxy {error.proxy}" if error.proxy else f"to {urlsplit(path).netloc}"
    if isinstance(error.reason, socket.gaierror):
        name = error.proxy or urlsplit(path).hostname
        text, hint = f"the name of the host {name} is not known", "check the URL, and the network"
    elif isinstance(error.reason, TimeoutError):
        text = f"no connection {goal}: nothing came for too long"
        hint = '{"connect_timeout_seconds": ...} in storage_options waits longer'
    else:
        text = f"no connection {goal}: {text}"
    return text, PROXY_HINT if error.proxy else hint

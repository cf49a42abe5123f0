"""Connections of one process to http servers, and what it means when one breaks."""

from __future__ import annotations

import base64
import contextlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from shoal.errors import StorageError, UsageError
from shoal.storage.answers import trimmed
from shoal.storage.http_options import HttpOptions
from shoal.storage.http_timed import timed_pools
from shoal.storage.urls import secrets_in, struck_out, without_secrets

if TYPE_CHECKING:
    from urllib3 import HTTPConnectionPool, PoolManager, Retry
    from urllib3.response import BaseHTTPResponse

__all__ = ["Pools", "broken", "unlogged"]

# More than any stream asks for at a time: a connection over this would be thrown away after one use.
_MAX_IDLE_PER_HOST = 256
_MAX_HOSTS = 256
_PROXY_HINT = "check proxy in storage_options, or http_proxy, https_proxy and all_proxy in the environment"


class Pools:
    """Connections that are kept from request to request, by the process that made them."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._pid = 0
        self._managers: dict[str, PoolManager] = {}
        self._of_hosts: dict[str, PoolManager] = {}
        self._pools: dict[str, HTTPConnectionPool] = {}

    def get(self, url: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        """The head of the answer to one GET, its body to be read; redirects are for the caller, as are other tries.

        A host that is asked without a proxy is asked by its own connections: the manager parses URLs and finds these
        anew for each request, a tenth of all that a request costs.
        """
        manager = self._manager_of(url)
        begin = url.find("/", url.find("//") + 2)
        target = url[begin:] if begin > 0 else ""
        ask: dict[str, Any] = {"headers": headers, "preload_content": False, "redirect": False, "retries": _none()}
        if manager.proxy is not None or not target or "/." in target:
            return manager.request("GET", url, **ask)
        host = url[:begin]
        if len(self._pools) >= _MAX_HOSTS:
            self._pools.clear()  # long before the manager closes one of them
        pool = self._pools.get(host) or self._pools.setdefault(host, manager.connection_from_url(host))
        return pool.urlopen("GET", target, assert_same_host=False, **ask)

    def _manager_of(self, url: str) -> PoolManager:
        if self._pid != os.getpid():
            # Never closed here: the parent's sockets and locks are not ours to touch, not even at the end.
            _left_alone.append((self._managers, self._of_hosts, self._pools))
            self._managers, self._of_hosts, self._pools, self._pid = {}, {}, {}, os.getpid()
        host = url[: url.find("/", url.find("//") + 2)]
        return self._of_hosts.get(host) or self._of_hosts.setdefault(host, self._made_for(url))

    def _made_for(self, url: str) -> PoolManager:
        proxy = self._proxy_for(url)
        # Two threads may both make one; the first to arrive is used by both.
        return self._managers.get(proxy) or self._managers.setdefault(proxy, _manager(self._options, proxy))

    def _proxy_for(self, url: str) -> str:
        """What was given or else the environment says; without a scheme it is http, as others take it."""
        proxy = self._options.proxy or _proxy_of(url)
        return f"http://{proxy}" if proxy and "://" not in proxy else proxy

    def secrets(self, url: str) -> list[str]:
        """What of the proxy for this URL must not be shown, also as it is sent there."""
        proxy = self._proxy_for(url)
        words = [*secrets_in(proxy), _sent_to(proxy).partition(" ")[2]]
        return [word for word in words if word]

    def close(self) -> None:
        """Close the connections of this process that nobody reads from."""
        managers, self._managers, self._of_hosts, self._pools = self._managers, {}, {}, {}
        if self._pid == os.getpid():
            for manager in managers.values():
                manager.clear()


@lru_cache(maxsize=1)
def _none() -> Retry:
    """No other tries; made once, since urllib3 makes this from False for each request."""
    from urllib3 import Retry  # noqa: PLC0415  # optional, and there

    return Retry(total=False, redirect=False)


_left_alone: list[Any] = []


def _manager(options: HttpOptions, proxy: str) -> PoolManager:
    try:
        import urllib3  # noqa: PLC0415  # optional
    except ImportError as error:
        msg = "reading over http needs urllib3, which is not installed"
        raise UsageError(msg, hint="pip install 'shoal[remote]'") from error
    settings: dict[str, Any] = {
        "maxsize": _MAX_IDLE_PER_HOST,
        "num_pools": 2 * _MAX_HOSTS,
        "timeout": urllib3.Timeout(connect=options.connect_timeout_seconds, read=options.timeout_seconds),
        "ca_certs": options.ca_bundle,
        "cert_reqs": "CERT_REQUIRED",
    }
    if not proxy:
        return _timed(urllib3.PoolManager(**settings))
    parts = urlsplit(proxy)
    headers = {"Proxy-Authorization": sent} if (sent := _sent_to(proxy)) else None
    place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return _timed(urllib3.ProxyManager(place, proxy_headers=headers, **settings))


def _sent_to(proxy: str) -> str:
    """By which a proxy knows who asks; "" where its URL names nobody."""
    user, at, _ = proxy.partition("://")[2].partition("/")[0].rpartition("@")
    name, _, password = user.partition(":")
    pair = f"{unquote(name)}:{unquote(password)}".encode()
    return f"Basic {base64.b64encode(pair).decode()}" if at else ""


def _timed(manager: PoolManager) -> PoolManager:
    """The same, whose answers are given up when they come too slowly."""
    manager.pool_classes_by_scheme = timed_pools()
    return manager


def _proxy_of(url: str) -> str:
    """What the environment says (http_proxy, https_proxy, no_proxy); "" for none."""
    import urllib.request  # noqa: PLC0415  # slow to import, and seldom needed

    proxies = urllib.request.getproxies()
    parts = urlsplit(url)
    proxy = proxies.get(parts.scheme) or proxies.get("all") or ""
    # With its port, and an address of IPv6 as some write it in no_proxy: without brackets.
    is_near = any(urllib.request.proxy_bypass(host) for host in (parts.netloc, parts.hostname or ""))
    return "" if not proxy or is_near else proxy


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """While this lasts, urllib3 leaves queries out of what it logs of its requests (at the level DEBUG)."""
    if not _logger.isEnabledFor(logging.DEBUG):
        yield
        return
    token = _unlogged.set(True)
    try:
        yield
    finally:
        _unlogged.reset(token)


_logger = logging.getLogger("urllib3.connectionpool")
_unlogged: ContextVar[bool] = ContextVar("shoal.unlogged", default=False)


def _without_queries(record: logging.LogRecord) -> bool:
    if _unlogged.get() and isinstance(record.args, tuple):
        record.args = tuple(word.partition("?")[0] if isinstance(word, str) else word for word in record.args)
    return True


_logger.addFilter(_without_queries)


def broken(error: Exception, path: str, *, verb: str, secrets: Iterable[str] = ()) -> StorageError:
    """The error for a connection that could not be made or broke; errors that are no one's doing pass unchanged."""
    if isinstance(error, StorageError | UsageError):
        return error  # type: ignore[return-value]
    import urllib3.exceptions as kinds  # noqa: PLC0415  # optional, and there, since it raised

    if not isinstance(error, kinds.HTTPError | OSError | ValueError):
        raise error
    text = trimmed(struck_out(str(error), secrets)) or type(error).__name__
    hint, transient = "is the network up, and the server?", True
    if "CERTIFICATE_VERIFY_FAILED" in text:
        hint, transient = 'the certificate is not trusted; {"ca_bundle": FILE} in storage_options trusts another', False
    elif isinstance(error, kinds.ProxySchemeUnknown):
        hint, transient = _PROXY_HINT, False
    elif isinstance(error, kinds.LocationParseError | kinds.LocationValueError) or type(error) is ValueError:
        hint, transient = "check the URL", False
    elif isinstance(error, kinds.NameResolutionError):
        text, hint = f"the name of the host {urlsplit(path).hostname} is not known", "check the URL, and the network"
    elif isinstance(error, kinds.NewConnectionError):
        text = f"no connection to {urlsplit(path).netloc}: {text.rpartition(': ')[2]}"
    elif isinstance(error, kinds.TimeoutError):
        text, hint = "nothing came for too long", '{"timeout_seconds": ...} in storage_options waits longer'
    return StorageError(f"could not {verb} {without_secrets(path)}: {text}", hint=hint, transient=transient)

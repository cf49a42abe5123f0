"""User options for http: headers, timeouts, certificates and proxies."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import unquote, urlsplit

from shoal.errors import UsageError
from shoal.hints import did_you_mean
from shoal.storage.urls import secrets_in

PROXY_HINT = (
    "check proxy in storage_options, or http_proxy, https_proxy and all_proxy in the environment: the URL of a proxy "
    "begins with http://; with https://, install pycurl, or request only http:// URLs"
)


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Checked options of `HttpStore`. ``repr`` hides possible secrets."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_seconds: float = 30.0
    connect_timeout_seconds: float = 10.0
    ca_bundle: str | None = None
    proxy: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> HttpOptions:
        """Check the options; an error never shows a value."""
        known = {option.name for option in fields(cls)}
        if unknown := sorted(set(options) - known):
            msg = f"storage_options: http has no option {', '.join(unknown)}"
            raise UsageError(msg, hint=f"{did_you_mean(unknown[0], known)}it takes {', '.join(sorted(known))}")
        headers = options.get("headers", {})
        is_dict = isinstance(headers, Mapping)
        texts: list[Any] = [text for pair in headers.items() for text in pair] if is_dict else [None]
        if not all(isinstance(text, str) for text in texts):
            msg = f"storage_options: headers are a dict of texts, not {type(headers).__name__}"
            raise UsageError(msg, hint='{"headers": {"Authorization": "Bearer ..."}}')
        if any(letter in text for text in texts for letter in "\r\n"):
            msg = "storage_options: a header contains a line break"
            raise UsageError(msg, hint="was it read from a file with its final line break? strip() it")
        if any(ord(letter) > 255 for text in texts for letter in text):
            msg = "storage_options: a header contains a character that headers cannot have"
            raise UsageError(msg, hint="they are of ISO-8859-1; encode the value, by base64 for example")
        timeouts = {name: positive_seconds(name, options[name]) for name in _TIMEOUTS if name in options}
        if (bundle := options.get("ca_bundle")) is not None and not os.path.isfile(bundle):
            msg = f"storage_options: ca_bundle={bundle} is not a file"
            raise UsageError(msg, hint="it is a file of certificates in PEM")
        return cls(**{**options, **timeouts, "headers": dict(headers)})

    def headers_for(self, url: str) -> dict[str, str]:
        """Return the user's headers, and the Authorization header for user and password in the URL."""
        parts = urlsplit(url)
        if parts.username is None:
            return dict(self.headers)
        return {"Authorization": _basic(parts.username, parts.password or ""), **self.headers}

    def secrets_for(self, url: str) -> list[str]:
        """Return the secret words in the headers for a URL; messages hide these words even if a server echoes them."""
        words = [word for value in self.headers_for(url).values() for word in (value, *value.split())]
        return [word for word in words if len(word) > 3 and word != "Basic"]

    def proxy_for(self, url: str) -> str:
        """Return the proxy from the options, else the environment, "" for none; the default scheme is http."""
        proxy = self.proxy or _proxy_in_environment(url)
        return f"http://{proxy}" if proxy and "://" not in proxy else proxy

    def proxy_secrets(self, url: str) -> list[str]:
        """Return the secrets of this URL's proxy, also in the encoding of the request."""
        proxy = self.proxy_for(url)
        return [word for word in (*secrets_in(proxy), proxy_authorization(proxy).partition(" ")[2]) if word]


_TIMEOUTS = ("timeout_seconds", "connect_timeout_seconds")


def positive_seconds(name: str, value: object) -> float:
    """Return the option ``name`` of a store as seconds; raise `UsageError` unless it is a number above 0."""
    try:
        seconds = 0.0 if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"storage_options: {name} is a number of seconds above 0", hint=f'{{"{name}": 30}}')
    return seconds


def proxy_authorization(proxy: str) -> str:
    """Return the Proxy-Authorization header for a proxy's URL; "" if the URL names no user."""
    user, at, _ = proxy.partition("://")[2].partition("/")[0].rpartition("@")
    name, _, password = user.partition(":")
    return _basic(name, password) if at else ""


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{unquote(user)}:{unquote(password)}'.encode()).decode()}"


def _proxy_in_environment(url: str) -> str:
    """Return the proxy by http_proxy, https_proxy, all_proxy and no_proxy; "" for none."""
    import urllib.request  # noqa: PLC0415  # slow to import, and seldom needed

    proxies = urllib.request.getproxies()
    parts = urlsplit(url)
    proxy = proxies.get(parts.scheme) or proxies.get("all") or ""
    # Try the host with its port, and an IPv6 address without brackets: no_proxy may have either.
    is_direct = any(urllib.request.proxy_bypass(host) for host in (parts.netloc, parts.hostname or ""))
    return "" if not proxy or is_direct else proxy

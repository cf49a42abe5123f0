"""The proxy by which a URL is requested, and the credentials sent to it."""

from __future__ import annotations

import base64
from urllib.parse import unquote, urlsplit

from shoal.storage.http.http_options import HttpOptions

PROXY_HINT = (
    "check proxy in storage_options, or http_proxy, https_proxy and all_proxy in the environment: a proxy is named by "
    "http://, or by https:// where it is asked for http"
)


def proxy_for(url: str, options: HttpOptions) -> str:
    """Return the proxy from the options, else the environment, "" for none; without a scheme, http, as elsewhere."""
    proxy = options.proxy or _in_environment(url)
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


def authorization_for(proxy: str) -> str:
    """Return the Proxy-Authorization header for a proxy's URL; "" if it names no user."""
    user, at, _ = proxy.partition("://")[2].partition("/")[0].rpartition("@")
    name, _, password = user.partition(":")
    pair = f"{unquote(name)}:{unquote(password)}".encode()
    return f"Basic {base64.b64encode(pair).decode()}" if at else ""


def _in_environment(url: str) -> str:
    """Return the proxy by http_proxy, https_proxy, all_proxy and no_proxy; "" for none."""
    import urllib.request  # noqa: PLC0415  # slow to import, and seldom needed

    proxies = urllib.request.getproxies()
    parts = urlsplit(url)
    proxy = proxies.get(parts.scheme) or proxies.get("all") or ""
    # Try the host with its port, and an IPv6 address without brackets, as some write it in no_proxy.
    is_near = any(urllib.request.proxy_bypass(host) for host in (parts.netloc, parts.hostname or ""))
    return "" if not proxy or is_near else proxy

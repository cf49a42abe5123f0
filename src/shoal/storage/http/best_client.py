"""The client for each server: sockets for http, libcurl for https if it is installed.

libcurl takes half of the processor time of the standard library over TLS. Without TLS an `exchange` takes half of the
processor time of libcurl, which calls Python for each line of a head and each 16 KiB of a body (bench/LOG.md).
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.storage.http.curl_client import CurlClient
from shoal.storage.http.http_client import Answer, HttpClient, has_libcurl
from shoal.storage.http.http_options import HttpOptions
from shoal.storage.http.plain_client import PlainClient


class BestClient:
    """Clients by the origin of a URL; see `HttpClient`."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._plain = PlainClient(options)
        self._of_tls: HttpClient = CurlClient(options) if has_libcurl() else self._plain
        self._of_origins: dict[str, HttpClient] = {}

    def get(self, url: str, headers: Mapping[str, str], num_bytes: int, buffer: memoryview | None = None) -> Answer:
        """Send one GET by the client for its server."""
        origin = url[: url.index("/", url.index("//") + 2)]
        client = self._of_origins.get(origin) or self._of_origins.setdefault(origin, self._client_for(origin))
        return client.get(url, headers, num_bytes, buffer)

    def close(self) -> None:
        """Close the connections of all clients."""
        self._plain.close()
        self._of_tls.close()

    def _client_for(self, origin: str) -> HttpClient:
        """Return libcurl for TLS, and for kinds of proxies that only libcurl knows."""
        is_plain = origin.startswith("http:") and (self._options.proxy_for(origin) or origin).startswith("http:")
        return self._plain if is_plain else self._of_tls

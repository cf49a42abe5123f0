"""The numbers of a run, fetched from the address of its page."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from shoal.errors import StorageError, UsageError

_SECONDS = 10.0
_MOST_BYTES = 16 << 20
_HERE = ("127.0.0.1", "localhost", "::1")


def numbers_at(url: str) -> dict[str, Any]:
    """Return the numbers of a run, as `WatchedRun.numbers`. Errors name the machine and port, and not the token.

    Raises
    ------
    UsageError
        The address is not one of a page on this machine.
    StorageError
        No page answers there.
    """
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme != "http" or host is None or port is None or len(parts.path.strip("/")) == 0:
        msg = "shoal watch takes the whole address of a page, as the run wrote it on stderr"
        raise UsageError(msg, hint="for example http://127.0.0.1:40123/TOKEN/")
    if host not in _HERE:
        msg = f"a page is served to its own machine alone, and {host} is another"
        raise UsageError(msg, hint=f"ssh -L {port}:127.0.0.1:{port} {host}, then the address with 127.0.0.1")
    place = f"{host}:{port}"
    connection = http.client.HTTPConnection(host, port, timeout=_SECONDS)
    try:
        connection.request("GET", f"/{parts.path.strip('/')}/stats.json")
        answer = connection.getresponse()
        body = answer.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException) as error:
        msg = f"no run answers at {place}: {error}"
        raise StorageError(msg, hint="the run has ended, or the tunnel to its machine is closed") from error
    finally:
        connection.close()
    if answer.status != 200:
        msg = f"{place} answered with status {answer.status}"
        raise StorageError(msg, hint="take the whole address that the run wrote on stderr, with its token")
    try:
        numbers = json.loads(body)
    except ValueError:
        numbers = None
    if not isinstance(numbers, dict) or "verdict" not in numbers:
        raise StorageError(f"{place} is no page of a run of shoal", hint="another server has this port")
    return numbers

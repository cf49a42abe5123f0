"""User options for http: headers, timeouts, certificates, a proxy."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import unquote, urlsplit

from shoal.errors import UsageError
from shoal.hints import did_you_mean


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """The options of `HttpStore`, checked. ``repr`` does not show those that may be secret."""

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
            msg = f"storage_options: http knows no {', '.join(unknown)}"
            raise UsageError(msg, hint=f"{did_you_mean(unknown[0], known)}it takes {', '.join(sorted(known))}")
        headers = options.get("headers", {})
        if not isinstance(headers, Mapping) or not all(isinstance(x, str) for pair in headers.items() for x in pair):
            msg = f"storage_options: headers are a dict of texts, not {type(headers).__name__}"
            raise UsageError(msg, hint='{"headers": {"Authorization": "Bearer ..."}}')
        if any(letter in text for pair in headers.items() for text in pair for letter in "\r\n"):
            msg = "storage_options: a header holds an end of line"
            raise UsageError(msg, hint="was it read from a file with its last line end? strip() it")
        if not all(_is_latin(text) for pair in headers.items() for text in pair):
            msg = "storage_options: a header holds a letter that headers cannot have"
            raise UsageError(msg, hint="they are of ISO-8859-1; encode the value, by base64 for example")
        for name in ("timeout_seconds", "connect_timeout_seconds"):
            if name in options:
                options = {**options, name: _positive(options[name], name)}
        if (bundle := options.get("ca_bundle")) is not None and not os.path.isfile(bundle):
            msg = f"storage_options: ca_bundle={bundle} is no file"
            raise UsageError(msg, hint="it is a file of certificates in PEM")
        return cls(**{**options, "headers": dict(headers)})

    def headers_for(self, url: str) -> dict[str, str]:
        """Return the user's headers, and the Authorization header for user and password in the URL."""
        parts = urlsplit(url)
        if parts.username is None:
            return dict(self.headers)
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}", **self.headers}

    def secrets(self) -> list[str]:
        """Return the words that must never be shown, even if a server echoes them."""
        words = [word for value in self.headers.values() for word in (value, *value.split())]
        return [word for word in words if len(word) > 3]


def _is_latin(text: str) -> bool:
    return all(ord(letter) < 256 for letter in text)


def _positive(value: object, name: str) -> float:
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        msg = f"storage_options: {name} is a number of seconds above 0"
        raise UsageError(msg, hint=f'{{"{name}": 30}}')
    return seconds

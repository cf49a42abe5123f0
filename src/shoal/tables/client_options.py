"""Options of the clients of other libraries for a store, from the ``storage_options`` of shoal."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from shoal.errors import SourceError, UsageError
from shoal.storage.objects.object_options import OBJECT_SCHEMES, client_settings, location_of
from shoal.storage.urls import scheme_of, without_secrets

_OF_SHOAL = ("deadline_seconds", "max_open_files", "catalog")
# Settings that are no texts, and shoal's options for them.
_NOT_TEXT = {"root_certificate": "ca_bundle", "default_headers": "headers", "proxy_ca_certificate": "ca_bundle"}
_CREDENTIALS = ("access_key_id", "secret_access_key", "token", "expires_at")


def delta_options(url: str, storage_options: Mapping[str, Any], *, library: str = "deltalake") -> dict[str, str] | None:
    """Return the options of ``deltalake``, or of another library, for a table; None for a table on this machine.

    Raises `SourceError`: the library cannot read from this kind of store; `UsageError`: it cannot be given an option.
    """
    options = {name: value for name, value in storage_options.items() if name not in _OF_SHOAL}
    scheme = scheme_of(url)
    if scheme in ("", "file"):
        return None
    if scheme not in OBJECT_SCHEMES or "filesystem" in options:
        what = "a filesystem object" if "filesystem" in options else f"{scheme}://"
        msg = f"{without_secrets(url)}: {library} reads the table's own files, and cannot read them from {what}"
        raise SourceError(msg, hint="open the table from this machine, s3://, gs:// or az://")
    config, client, provider = client_settings(location_of(url), options)
    if provider is not None:
        config |= _credentials(provider)
    settings = {name: value for name, value in {**client, **config}.items() if value is not None}
    # Certificates that the environment names, the library finds there by itself.
    if unusable := [name for name in _NOT_TEXT if name in settings and {name, _NOT_TEXT[name]} & options.keys()]:
        msg = f"{without_secrets(url)}: {library} takes no {unusable[0]} in storage_options"
        raise UsageError(msg, hint="leave it out: SSL_CERT_FILE names certificates for every client of the process")
    return {name: _text(value) for name, value in settings.items() if name not in _NOT_TEXT}


def _credentials(provider: Any) -> dict[str, Any]:
    """Return the keys that a provider of credentials gives now; the log is read at once."""
    given = provider()
    if not isinstance(given, Mapping):
        msg = "storage_options: credential_provider must return a dict at once, for deltalake, which reads the log"
        raise UsageError(msg, hint="give a provider that is no coroutine function, or the keys themselves")
    named = {name: given[name] for name in _CREDENTIALS if name in given}
    named.pop("expires_at", None)
    if "token" in named:
        named["session_token"] = named.pop("token")
    return named


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value.total_seconds():g}s" if isinstance(value, timedelta) else str(value)

"""Options of the clients of other libraries for a store, from the ``storage_options`` of shoal."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from shoal.errors import SourceError, UsageError
from shoal.storage.objects.object_options import OBJECT_SCHEMES, client_settings, location_of
from shoal.storage.urls import scheme_of, without_secrets

_OF_SHOAL = ("deadline_seconds", "max_open_files", "catalog")
_NOT_TEXT = ("root_certificate", "default_headers", "proxy_ca_certificate")
_CERTIFICATES = ("ca_bundle", "root_certificate", "client_options")
_CREDENTIALS = ("access_key_id", "secret_access_key", "token", "expires_at")


def library_options(url: str, storage_options: Mapping[str, Any], library: str) -> dict[str, str] | None:
    """Return the options of a library of Rust, ``deltalake`` or ``hudi``; None for a table on this machine.

    Raises `SourceError`: the library cannot read from this kind of store; `UsageError`: it cannot be given an option.
    """
    options = {name: value for name, value in storage_options.items() if name not in _OF_SHOAL}
    scheme = scheme_of(url)
    if scheme in ("", "file"):
        return None
    if scheme not in OBJECT_SCHEMES or "filesystem" in options:
        what = "a filesystem object" if "filesystem" in options else f"{scheme}://"
        msg = f"{without_secrets(url)}: {library} reads the log of a table, and cannot read it from {what}"
        raise SourceError(msg, hint="open the table from this machine, s3://, gs:// or az://")
    config, client, provider = client_settings(location_of(url), options)
    if provider is not None:
        config |= _credentials(provider, library)
    if not any(name in options for name in _CERTIFICATES):
        client.pop("root_certificate", None)  # of AWS_CA_BUNDLE: the library has certificates of its own
    settings = {name: value for name, value in {**client, **config}.items() if value is not None}
    if unusable := [name for name in _NOT_TEXT if name in settings]:
        msg = f"{without_secrets(url)}: {library}, which reads the log, takes no {unusable[0]} in storage_options"
        raise UsageError(msg, hint="leave it out: SSL_CERT_FILE names certificates for every client of the process")
    return {name: _text(value) for name, value in settings.items()}


def _credentials(provider: Any, library: str) -> dict[str, Any]:
    """Return the keys that a provider of credentials gives now; the log is read at once."""
    given = provider()
    if not isinstance(given, Mapping):
        msg = f"storage_options: credential_provider must return a dict at once, for {library}, which reads the log"
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

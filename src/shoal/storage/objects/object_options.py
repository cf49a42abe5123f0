"""Conversion of a URL and storage_options into a client of obstore."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from shoal.errors import SourceError, UsageError
from shoal.hints import pip_install
from shoal.storage.objects.aws_profile import add_profile
from shoal.storage.objects.object_failures import has_panicked, scrubbed
from shoal.storage.urls import scheme_of, without_secrets

Kind = Literal["s3", "gs", "az"]

OBJECT_SCHEMES: Mapping[str, Kind] = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "azure": "az",
    "abfs": "az",
    "abfss": "az",
}

# Option names of other libraries, and obstore's names for them.
_ALIASES = {
    "anon": "skip_signature",
    "anonymous": "skip_signature",
    "requester_pays": "request_payer",
    "key": "access_key_id",
    "secret": "secret_access_key",
    "endpoint_url": "endpoint",
    "token": "session_token",
    "account": "account_name",
}
_ALIASES_OF_S3_ONLY = {"key", "secret", "token", "requester_pays"}
_OF_THE_CLIENT = {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "default_headers",
    "http1_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "randomize_addresses",
    "read_timeout",
    "root_certificate",
    "timeout",
    "user_agent",
}
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": (),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
# Limit for a whole request; the limit for silence is far shorter.
_WHOLE_REQUEST_SECONDS = 300


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """Parts of an object's URL: ``root`` is the URL of the bucket, ``account`` that of Azure where the URL names it."""

    kind: Kind
    bucket: str
    key: str
    root: str
    account: str = ""


def place_of(url: str) -> ObjectPlace:
    """Split a URL into its parts.

    Raises
    ------
    SourceError
        It names no bucket, or holds a password.
    """
    scheme, mark, rest = url.partition("://")
    host, _, key = rest.partition("/")
    bucket, _, account = host.partition("@")
    kind = OBJECT_SCHEMES[scheme_of(url)]
    if not bucket or (account and kind != "az") or ":" in host:
        msg = f"{without_secrets(url)}: this is no {scheme}://BUCKET/KEY"
        raise SourceError(msg, hint="credentials and ports go into storage_options")
    return ObjectPlace(kind, bucket, key, f"{scheme}{mark}{host}", account.partition(".")[0])


def client_of(place: ObjectPlace, options: Mapping[str, Any]) -> Any:
    """Make a client for the bucket of ``place``; makes no request.

    Raises
    ------
    UsageError
        obstore is not installed, or does not know an option; no value is shown.
    """
    try:
        from obstore import store as stores  # noqa: PLC0415  # optional
    except ImportError as error:
        msg = f"{place.root}: reading it needs obstore, which is not installed"
        raise UsageError(msg, hint=pip_install("remote")) from error
    make = {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}[place.kind]
    config, client, provider = _sorted(place, options)
    try:
        # The caller retries; each call here is one request.
        retries = {"max_retries": 0, "retry_timeout": timedelta(seconds=_WHOLE_REQUEST_SECONDS)}
        given = {} if provider is None else {"credential_provider": provider}
        return make(place.bucket, config=config, client_options=client, retry_config=retries, **given)
    except BaseException as error:
        if not (isinstance(error, Exception) or has_panicked(error)):
            raise
        said = scrubbed(str(error).partition("\n\nDebug source")[0], options)
        msg = f"storage_options for {place.root}: {said}"
        raise UsageError(msg, hint="see docs/guides/remote-data.md for what they may hold") from None


def _sorted(place: ObjectPlace, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Split the options into those of the store and those of its http client, plus a credential provider, if any."""
    config: dict[str, Any] = {"account_name": place.account} if place.account else {}
    client: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=10),
        "read_timeout": timedelta(seconds=30),
        "timeout": timedelta(seconds=_WHOLE_REQUEST_SECONDS),
    }
    rest = dict(options)
    for name, value in rest.items():
        if isinstance(value, str) and value != value.strip() and not value.lstrip().startswith("{"):  # a key in JSON
            msg = f"storage_options: {name} begins or ends with a blank or an end of line"
            raise UsageError(msg, hint="was it read from a file with its last line end? strip() it")
    provider = rest.pop("credential_provider", None)
    profile = rest.pop("profile", None)
    for name, value in rest.items():
        if name == "timeout_seconds":
            client["read_timeout"] = _seconds(name, value)
        elif name == "connect_timeout_seconds":
            client["connect_timeout"] = _seconds(name, value)
        elif name == "headers":
            client["default_headers"] = dict(value)
        elif name == "proxy":
            client["proxy_url"] = value
        elif name == "ca_bundle":
            client["root_certificate"] = _certificates(value)
        elif name == "client_options":
            client |= value
        elif name in _OF_THE_CLIENT:
            client[name] = value
        else:
            config[_config_name(name, place.kind)] = value
    if place.kind == "s3":
        if "root_certificate" not in client and (bundle := os.environ.get("AWS_CA_BUNDLE")):
            client["root_certificate"] = _certificates(bundle)
        if provider is None:
            provider = add_profile(config, profile)
    endpoint = str(config.get(_config_name("endpoint", place.kind)) or _from_environment(place.kind))
    if endpoint and not re.match(r"https?://[^/?#]", endpoint, re.IGNORECASE):  # obstore would panic
        msg = f"storage_options for {place.root}: the endpoint is no URL"
        raise UsageError(msg, hint='{"endpoint": "https://HOST:PORT"}, or http:// where that is what the server speaks')
    if endpoint.lower().startswith("http://"):
        client.setdefault("allow_http", True)  # an explicit http:// implies it
    return config, client, provider


def _config_name(name: str, kind: Kind) -> str:
    """Return obstore's name for an option."""
    if kind == "gs" and name in ("endpoint", "endpoint_url"):
        return "base_url"
    return _ALIASES.get(name, name) if kind == "s3" or name not in _ALIASES_OF_S3_ONLY else name


def _from_environment(kind: Kind) -> str:
    return next((value for name in _ENDPOINTS[kind] if (value := os.environ.get(name))), "")


def _seconds(name: str, value: object) -> timedelta:
    try:
        found = timedelta(seconds=float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        found = timedelta()
    if found <= timedelta():
        msg = f"storage_options: {name} is a number of seconds above 0"
        raise UsageError(msg, hint=f'{{"{name}": 30}}')
    return found


def _certificates(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        msg = f"storage_options: the certificates {path} cannot be read: {error.strerror}"
        raise UsageError(msg, hint="it is a file of certificates in PEM") from error

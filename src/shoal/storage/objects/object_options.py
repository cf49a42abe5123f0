"""Conversion of a URL, storage_options and the profiles of the AWS tools into a client of obstore."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from shoal.errors import SourceError, UsageError
from shoal.hints import pip_install
from shoal.storage.http.http_options import positive_seconds
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
    "endpoint_url": "endpoint",
    "account": "account_name",
}
_S3_ALIASES = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "requester_pays": "request_payer",
}
_GS_ALIASES = {"endpoint": "base_url", "endpoint_url": "base_url"}
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

# obstore itself takes credentials of AWS from these variables.
_AWS_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_PROFILE_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
# Entries of profiles that must first be exchanged for keys.
_TO_EXCHANGE = ("sso_session", "sso_start_url", "role_arn", "credential_process", "login_session")


class ObjectLocation(NamedTuple):
    """Parts of an object's URL: ``root`` is the URL of the bucket, ``account`` an account of Azure in the URL."""

    kind: Kind
    bucket: str
    key: str
    root: str
    account: str = ""


def location_of(url: str) -> ObjectLocation:
    """Split a URL into its parts; raise `SourceError` if it names no bucket, or holds a password."""
    scheme, mark, rest = url.partition("://")
    host, _, key = rest.partition("/")
    bucket, _, account = host.partition("@")
    kind = OBJECT_SCHEMES[scheme_of(url)]
    if not bucket or (account and kind != "az") or ":" in host:
        msg = f"{without_secrets(url)}: this is no {scheme}://BUCKET/KEY"
        raise SourceError(msg, hint="credentials and ports go into storage_options")
    return ObjectLocation(kind, bucket, key, f"{scheme}{mark}{host}", account.partition(".")[0])


def client_of(location: ObjectLocation, options: Mapping[str, Any]) -> Any:
    """Make a client for the bucket of ``location``; makes no request.

    Raises `UsageError` if obstore is not installed, or does not know an option; the message shows no values.
    """
    try:
        from obstore import store as stores  # noqa: PLC0415  # optional
    except ImportError as error:
        msg = f"{location.root}: reading it needs obstore, which is not installed"
        raise UsageError(msg, hint=pip_install("obstore", "pycurl")) from error
    make = {"s3": stores.S3Store, "gs": stores.GCSStore, "az": stores.AzureStore}[location.kind]
    config, client, provider = client_settings(location, options)
    try:
        # The caller retries; each call here is one request.
        retries = {"max_retries": 0, "retry_timeout": timedelta(seconds=_WHOLE_REQUEST_SECONDS)}
        provided = {} if provider is None else {"credential_provider": provider}
        return make(location.bucket, config=config, client_options=client, retry_config=retries, **provided)
    except BaseException as error:
        if not (isinstance(error, Exception) or has_panicked(error)):
            raise
        reason = scrubbed(str(error).partition("\n\nDebug source")[0], options)
        msg = f"storage_options for {location.root}: {reason}"
        raise UsageError(msg, hint="docs/guides/remote-data.md lists the options") from None


def client_settings(location: ObjectLocation, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Split the options: options of the store, options of its http client, and a credential provider or None."""
    config: dict[str, Any] = {"account_name": location.account} if location.account else {}
    client: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=10),
        "read_timeout": timedelta(seconds=30),
        "timeout": timedelta(seconds=_WHOLE_REQUEST_SECONDS),
    }
    rest = dict(options)
    for name, value in rest.items():
        if isinstance(value, str) and value != value.strip() and not value.lstrip().startswith("{"):  # a key in JSON
            msg = f"storage_options: {name} begins or ends with a blank or a line break"
            raise UsageError(msg, hint="was it read from a file with its final line break? strip() it")
    aliases = _ALIASES | {"s3": _S3_ALIASES, "gs": _GS_ALIASES, "az": {}}[location.kind]
    provider = rest.pop("credential_provider", None)
    profile = rest.pop("profile", None)
    for name, value in rest.items():
        if name in ("timeout_seconds", "connect_timeout_seconds"):
            setting = "read_timeout" if name == "timeout_seconds" else "connect_timeout"
            client[setting] = timedelta(seconds=min(1e9, positive_seconds(name, value)))
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
            config[aliases.get(name, name)] = value
    if location.kind == "s3":
        if "root_certificate" not in client and (bundle := os.environ.get("AWS_CA_BUNDLE")):
            client["root_certificate"] = _certificates(bundle)
        if provider is None:
            provider = _add_profile(config, profile)
    in_environment = next((value for name in _ENDPOINTS[location.kind] if (value := os.environ.get(name))), "")
    endpoint = str(config.get(aliases.get("endpoint", "endpoint")) or in_environment)
    if endpoint and not re.match(r"https?://[^/?#]", endpoint, re.IGNORECASE):  # obstore would panic
        msg = f"storage_options for {location.root}: the endpoint is not a URL"
        raise UsageError(msg, hint='{"endpoint": "https://HOST:PORT"}, or http:// for a server without TLS')
    if endpoint.lower().startswith("http://"):
        client.setdefault("allow_http", True)  # an explicit http:// implies it
    return config, client, provider


def _certificates(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        msg = f"storage_options: the certificates {path} cannot be read: {error.strerror}"
        raise UsageError(msg, hint="it is a file of certificates in PEM") from error


def _add_profile(config: dict[str, Any], requested: str | None) -> Any:
    """Complete ``config`` from a profile of the AWS tools (``~/.aws``), which obstore does not read.

    The profile is ``requested``, else $AWS_PROFILE, else "default". Credentials in ``config`` take precedence over a
    profile; credentials in the environment take precedence over a profile that is not requested. Keys in a profile are
    used directly. For other entries (single sign-on, a role, a command), returns a credential provider, which uses
    boto3; otherwise returns None.
    """
    name = requested or os.environ.get("AWS_PROFILE") or "default"
    profile = _read_profile("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}")
    profile |= _read_profile("AWS_SHARED_CREDENTIALS_FILE", "credentials", name)
    has_credentials = "access_key_id" in config or config.get("skip_signature")
    has_credentials = has_credentials or (
        not requested and any(os.environ.get(variable) for variable in _AWS_CREDENTIALS)
    )
    if not profile and (requested or (name != "default" and not has_credentials)):
        msg = f"{'storage_options' if requested else 'AWS_PROFILE'}: there is no AWS profile {name}"
        raise UsageError(msg, hint="`aws configure list-profiles` lists the profiles")
    if "region" in profile and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & set(os.environ):
        config.setdefault("region", profile["region"])
    if "endpoint_url" in profile and not {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} & set(os.environ):
        config.setdefault("endpoint", profile["endpoint_url"])
    if has_credentials:
        return None
    if "aws_access_key_id" in profile:
        config.update({key.removeprefix("aws_"): profile[key] for key in _PROFILE_KEYS if key in profile})
        return None
    return _boto3_credentials(name) if any(word in profile for word in _TO_EXCHANGE) else None


def _read_profile(variable: str, file: str, section: str) -> dict[str, str]:
    path = os.environ.get(variable) or os.path.join(os.path.expanduser("~"), ".aws", file)
    import configparser  # noqa: PLC0415  # slow to import, and seldom needed

    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        msg = f"the AWS profiles in {path} cannot be read: {type(error).__name__}"
        raise UsageError(msg, hint="`aws configure` writes such a file") from None
    return dict(parser.items(section)) if parser.has_section(section) else {}


def _boto3_credentials(name: str) -> Any:
    try:
        import boto3  # noqa: PLC0415  # optional
        from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415  # the same
    except ImportError as error:
        msg = f"the AWS profile {name} has no keys: they come from single sign-on, a role or a command"
        raise UsageError(msg, hint="pip install boto3, which gets them") from error
    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=name))
    except Exception as error:  # of several kinds, of two libraries
        msg = f"the AWS profile {name} gives no credentials: {error}"
        hint = f"`aws sts get-caller-identity --profile {name}` must work; `aws sso login` signs on"
        raise UsageError(msg, hint=hint) from error

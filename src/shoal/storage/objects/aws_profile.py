"""Profiles of the AWS tools (``~/.aws``), which obstore does not read.

Keys in a profile are used directly. A profile that must first be exchanged for keys (single sign-on, a role, a
command) is left to boto3, if that is installed.
"""

from __future__ import annotations

import os
from typing import Any

from shoal.errors import UsageError

# obstore itself takes credentials from any of these.
_OTHER_WAYS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
_TO_BE_EXCHANGED = ("sso_session", "sso_start_url", "role_arn", "credential_process", "login_session")


def add_profile(config: dict[str, Any], asked: str | None) -> Any:
    """Complete ``config`` from a profile; return a credential provider if boto3 must find the credentials, else None.

    The profile is the one asked for, else $AWS_PROFILE, else "default". Credentials in ``config`` or, unless a
    profile was asked for, in the environment take precedence over those of a profile.

    Raises
    ------
    UsageError
        The profile that was asked for, here or by $AWS_PROFILE, does not exist or gives no credentials, or needs
        boto3.
    """
    name = asked or os.environ.get("AWS_PROFILE") or "default"
    profile = _read("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}")
    profile |= _read("AWS_SHARED_CREDENTIALS_FILE", "credentials", name)
    given = "access_key_id" in config or config.get("skip_signature")
    given = given or (not asked and any(os.environ.get(way) for way in _OTHER_WAYS))
    if not profile:
        if asked or (name != "default" and not given):
            msg = f"{'storage_options' if asked else 'AWS_PROFILE'}: there is no AWS profile {name}"
            raise UsageError(msg, hint="`aws configure list-profiles` shows those there are")
        return None
    if "region" in profile and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & set(os.environ):
        config.setdefault("region", profile["region"])
    if "endpoint_url" in profile and not {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} & set(os.environ):
        config.setdefault("endpoint", profile["endpoint_url"])
    if given:
        return None
    if "aws_access_key_id" in profile:
        config.update({ours: profile[theirs] for theirs, ours in _KEYS.items() if theirs in profile})
        return None
    return _through_boto3(name) if any(word in profile for word in _TO_BE_EXCHANGED) else None


def _read(variable: str, file: str, section: str) -> dict[str, str]:
    path = os.environ.get(variable) or os.path.join(os.path.expanduser("~"), ".aws", file)
    import configparser  # noqa: PLC0415  # slow to import, and seldom needed

    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        msg = f"the AWS profiles in {path} cannot be read: {type(error).__name__}"
        raise UsageError(msg, hint="`aws configure` writes such a file") from None
    return dict(parser.items(section)) if parser.has_section(section) else {}


def _through_boto3(name: str) -> Any:
    try:
        import boto3  # noqa: PLC0415  # optional
        from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415  # the same
    except ImportError as error:
        msg = f"the AWS profile {name} has no keys: they are got by signing on, from a role or by a command"
        raise UsageError(msg, hint="pip install boto3, which does that") from error
    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=name))
    except Exception as error:  # of several kinds, of two libraries
        msg = f"the AWS profile {name} gives no credentials: {error}"
        hint = f"`aws sts get-caller-identity --profile {name}` must work; `aws sso login` signs on"
        raise UsageError(msg, hint=hint) from error

"""Translation of obstore's exceptions: they have few classes, and the rest is in their texts."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from shoal.errors import ShoalError, StorageError
from shoal.storage.storage_errors import is_forbidden, status_failure, trimmed
from shoal.storage.urls import redacted, secrets_in

_CREDENTIALS_HINT = (
    'no credentials were found: give them in the environment or in storage_options, or {"anonymous": True} for public '
    "data"
)
_REGION_HINT = 'is the bucket in another region? {"region": ...} in storage_options names it'
_NAME_HINT = (
    'obstore can neither read nor list an object with "//", ".", ".." or a control character in its name, nor list '
    "other objects beside it: name the shards by braces or a list, or copy that object to another name; filesystem= in "
    "storage_options may read it"
)
_HEADER_HINT = (
    "stores of this kind send this header with every response: does a proxy remove the header, or is the server of "
    "another kind? "
    "Objects read by https:// need fewer headers"
)
_PANIC_HINT = (
    "look at storage_options and the credentials of the environment: does one contain a character that cannot be sent?"
)
# Words in final errors of obstore, and the hints for them.
_FINAL = {
    "builder error": 'is the endpoint a URL? An http:// one needs {"allow_http": True}',
    "configured region": _REGION_HINT,
    "Encountered object with invalid path": _NAME_HINT,
    "Could not parse path": _NAME_HINT,
    "Header missing": _HEADER_HINT,
}
_EXPIRED_HINT = "the credentials have expired: get new ones (`aws sso login`), and go on from the last state"
_WITHOUT_LISTING = (
    "without the right to list, name the shards by braces or a list, or the shoal.index that `shoal index` makes"
)
# Codes in answers of S3 and its like, and the hints for them.
_CODES = {
    **dict.fromkeys(("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"), _EXPIRED_HINT),
    "InvalidToken": "this store does not accept the session token: is it of another account or another store?",
    "InvalidAccessKeyId": "this store does not know this access key: is it of another account or another store?",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key, or a character of it is missing",
    "RequestTimeTooSkewed": "the clock of this machine differs from the server's: set it",
    **dict.fromkeys(
        ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"), _REGION_HINT
    ),
}
_ERRNO = {409: errno.EEXIST, 412: errno.EEXIST, 501: errno.ENOTSUP}  # of refused conditional writes
_HEADER_ATTEMPTS = 6  # several servers may have one name, and others of them may send the header
# Options that are not secrets, and help in a message.
_PLAIN_OPTIONS = {"base_url", "endpoint", "endpoint_url", "region", "profile", "account_name", "account"}
_CLOUDS = ("AWS_", "AZURE_", "GOOGLE_")
_SECRET_WORDS = ("SECRET", "TOKEN", "SAS", "ACCOUNT_KEY", "PASSWORD")
_SHORTEST_SECRET = 8
# Match obstore's debug output of a failed connection, and capture the reason.
_NO_CONNECTION = re.compile(r'kind: Connect,.*?(?:message|error): "([^"]*)"', re.DOTALL)


def obstore_failure(
    error: BaseException, path: str, options: Mapping[str, Any], *, verb: str, answered: bool
) -> BaseException:
    """Return the `StorageError` for an exception of obstore; return any other exception unchanged.

    ``answered`` is True if the store has answered this client before: then the client has credentials.
    """
    if has_panicked(error):
        text = trimmed(scrubbed(str(error), options))
        return StorageError(f"could not {verb} {path}: obstore failed: {text}", hint=_PANIC_HINT)
    import obstore.exceptions as kinds  # noqa: PLC0415  # optional, but installed, since it raised

    if isinstance(error, ShoalError) or not isinstance(error, kinds.BaseError | ValueError | OSError):
        return error
    text = scrubbed(str(error).partition("\n\nDebug source")[0], options)
    match = re.search(r"status code: (\d{3})[^:\n]*:?", text)
    request = text[: match.start()] if match else text
    asks_for_credentials = re.search(r"169\.254\.|metadata\.google|credential|oauth2|/token", request) is not None
    if match and not asks_for_credentials:
        status = int(match[1])
        failure = status_failure(status, path, verb=verb, body=text[match.end() :])
        failure.errno = _ERRNO.get(status, failure.errno)
        code = re.search(r"<Code>([^<]*)</Code>", text[match.end() :])
        # 400 without a code may be the answer to a HEAD to another region.
        hint = _CODES.get(code[1].strip(), "") if code else _REGION_HINT if status == 400 else ""
        failure.hint = hint or failure.hint
        if verb == "list" and is_forbidden(failure):
            failure.hint += f"; {_WITHOUT_LISTING}"
    else:
        failure = _failure_without_status(error, path, text, verb=verb, answered=answered, asks=asks_for_credentials)
    for cause, number in (
        (FileNotFoundError, errno.ENOENT),
        (kinds.AlreadyExistsError | kinds.PreconditionError, errno.EEXIST),
        (kinds.NotSupportedError | NotImplementedError, errno.ENOTSUP),
    ):
        if isinstance(error, cause):
            failure.errno, failure.transient = number, False
    return failure


def _failure_without_status(
    error: BaseException, path: str, text: str, *, verb: str, answered: bool, asks: bool
) -> StorageError:
    hint = next((hint for words, hint in _FINAL.items() if words in text), "")
    transient = not hint and not isinstance(error, ValueError) and (answered or not asks)
    if not hint and isinstance(error, ValueError):
        hint = "check the URL"
    elif not hint:
        hint = _CREDENTIALS_HINT if asks else "is the network up, and the server?"
    if no_connection := _NO_CONNECTION.search(str(error)):
        text += f": {no_connection[1]}"
    text = trimmed(re.sub(r"^Generic \w+ error: ", "", text)) or type(error).__name__
    attempts = _HEADER_ATTEMPTS if hint is _HEADER_HINT else 1
    msg = f"could not {verb} {path}: {text}"
    return StorageError(
        msg, hint=hint, transient=transient, worth_attempts=attempts, evidence="no header", unmet=bool(no_connection)
    )


def has_panicked(error: BaseException) -> bool:
    """Return True if obstore panicked: its error then is not an `Exception`, and would end a thread."""
    return type(error).__name__ == "PanicException"


def scrubbed(text: str, options: Mapping[str, Any]) -> str:
    """Return ``text`` without possible secrets: values of options, and of environment variables of the clouds' tools.

    A server may echo them.
    """
    in_environment = [
        value
        for name, value in os.environ.items()
        if name.startswith(_CLOUDS) and any(word in name for word in _SECRET_WORDS) and len(value) >= _SHORTEST_SECRET
    ]
    secrets = [*_values(options), *in_environment]
    # Also the parts of a query string: secrets of Azure are sent among other parameters.
    queries = [f"option://x/?{secret.removeprefix('?')}" for secret in secrets if "=" in secret and "&" in secret]
    return redacted(text, [*secrets, *(part for query in queries for part in secrets_in(query))])


def _values(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _values(value)
        elif isinstance(value, str) and len(value) > 2 and name not in _PLAIN_OPTIONS:
            yield value

"""Translation of obstore's exceptions, which have few classes and say the rest in words."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from shoal.errors import ShoalError, StorageError
from shoal.storage.storage_errors import status_failure, trimmed
from shoal.storage.urls import secrets_in, struck_out

_CREDENTIALS_HINT = (
    'no credentials were found: give them in the environment or in storage_options, or {"anonymous": True} for what '
    "is public"
)
_REGION_HINT = 'is the bucket in another region? {"region": ...} in storage_options names it'
_NAME_HINT = (
    'obstore can neither read nor list an object with "//", ".", ".." or a control character in its name, nor list '
    "others beside it: name the shards by braces or a list, or copy that object to another name; filesystem= in "
    "storage_options may read it"
)
_HEADER_HINT = (
    "stores of this kind send it with every answer: is a proxy on the way that takes it off, or is it a server of "
    "another kind? What is read by https:// needs fewer"
)
_ATTEMPTS_TO_BELIEVE = 6  # of several servers behind one name, others may send the header
_PANIC_HINT = "look at storage_options and the credentials of the environment: is there a letter that cannot be sent?"
# Options that are not secret, and that help in a message.
_PLAIN_OPTIONS = {"base_url", "endpoint", "endpoint_url", "region", "profile", "account_name", "account"}
_CLOUDS = ("AWS_", "AZURE_", "GOOGLE_")
_SECRET_WORDS = ("SECRET", "TOKEN", "SAS", "ACCOUNT_KEY", "PASSWORD")
_SHORTEST_SECRET = 8
# Matches obstore's debug output where no connection could be made, and captures the reason.
_NO_CONNECTION = re.compile(r'kind: Connect,.*?(?:message|error): "([^"]*)"', re.DOTALL)


def failure(error: BaseException, path: str, options: Mapping[str, Any], *, verb: str, answered: bool) -> BaseException:
    """Return the `StorageError` for an exception of obstore; any other exception comes back unchanged.

    ``answered`` says that the store has answered this client before, so credentials were found then.
    """
    if has_panicked(error):
        said = trimmed(scrubbed(str(error), options))
        return StorageError(f"could not {verb} {path}: obstore gave up: {said}", hint=_PANIC_HINT)
    if isinstance(error, ShoalError) or not _is_of_obstore(error):
        return error
    text = scrubbed(str(error).partition("\n\nDebug source")[0], options)
    match = re.search(r"status code: (\d{3})[^:\n]*:?", text)
    asked = text[: match.start()] if match else text
    asks_for_credentials = re.search(r"169\.254\.|metadata\.google|credential|oauth2|/token", asked) is not None
    if match and not asks_for_credentials:
        refused = status_failure(int(match[1]), path, verb=verb, body=text[match.end() :])
        if int(match[1]) == 400:
            refused.hint = _REGION_HINT
        return refused
    hint = _CREDENTIALS_HINT if asks_for_credentials else "is the network up, and the server?"
    transient = answered or not asks_for_credentials
    if "builder error" in text:
        hint, transient = 'is the endpoint a URL? An http:// one needs {"allow_http": True}', False
    elif "configured region" in text:
        hint, transient = _REGION_HINT, False
    elif "Encountered object with invalid path" in text or "Could not parse path" in text:
        hint, transient = _NAME_HINT, False
    elif "Header missing" in text:
        hint, transient = _HEADER_HINT, False
    elif isinstance(error, ValueError):
        hint, transient = "check the URL", False
    if no_connection := _NO_CONNECTION.search(str(error)):
        text += f": {no_connection[1]}"
    said = trimmed(re.sub(r"^Generic \w+ error: ", "", text)) or type(error).__name__
    attempts = _ATTEMPTS_TO_BELIEVE if hint is _HEADER_HINT else 1
    msg = f"could not {verb} {path}: {said}"
    found = StorageError(
        msg, hint=hint, transient=transient, worth_attempts=attempts, evidence="no header", unmet=bool(no_connection)
    )
    if isinstance(error, FileNotFoundError):
        found.errno, found.transient = errno.ENOENT, False
    return found


def has_panicked(error: BaseException) -> bool:
    """Return True if obstore panicked: it then raises what is no `Exception`, and would end a thread."""
    return type(error).__name__ == "PanicException"


def was_written_meanwhile(error: BaseException, said: StorageError) -> bool:
    """Return True if a conditional write failed because another object is there; ``said`` is `failure`'s result."""
    import obstore.exceptions as kinds  # noqa: PLC0415  # optional, but installed, since it raised

    is_told = isinstance(error, kinds.AlreadyExistsError | kinds.PreconditionError)
    return is_told or re.search(r"answered (409|412)\b", said.message) is not None


def cannot_compare(error: BaseException, said: StorageError) -> bool:
    """Return True if a conditional write failed because the store does not support conditions."""
    import obstore.exceptions as kinds  # noqa: PLC0415  # the same

    is_told = isinstance(error, kinds.NotSupportedError | NotImplementedError)
    return is_told or re.search(r"answered 501\b", said.message) is not None


def _is_of_obstore(error: BaseException) -> bool:
    import obstore.exceptions as kinds  # noqa: PLC0415  # optional, but installed, since it raised

    return isinstance(error, kinds.BaseError | FileNotFoundError | ValueError | OSError)


def scrubbed(text: str, options: Mapping[str, Any]) -> str:
    """Return ``text`` without the values of options, or of environment variables, that may be secrets."""
    return struck_out(text, [*_values(options), *_of_environment()])


def _values(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _values(value)
        elif isinstance(value, str) and len(value) > 2 and name not in _PLAIN_OPTIONS:
            yield from _with_parts(value)


def _of_environment() -> Iterator[str]:
    """Yield the environment's secrets for the tools of the clouds, which a server could echo."""
    for name, value in os.environ.items():
        if name.startswith(_CLOUDS) and any(word in name for word in _SECRET_WORDS) and len(value) >= _SHORTEST_SECRET:
            yield from _with_parts(value)


def _with_parts(secret: str) -> list[str]:
    """Return a secret and, if it is a query string, its parts: Azure's are, and are sent among other parameters."""
    is_query = "=" in secret and "&" in secret
    return [secret, *(secrets_in(f"option://x/?{secret.removeprefix('?')}") if is_query else ())]
